//! The contract of a device, on one page: what `host` and `cuda` do, and what [`crate::Device`]
//! promises them.
#![allow(unsafe_code, reason = "declares the methods whose preconditions only the caller can keep")]

use lowtide_types::{Bytes, DeviceId, Usage, debug_as, words};
use serde::Serialize;

use crate::Result;
use crate::page::digest::{Digest, Keys};

/// An address of device memory. On `host` it is an address of this process too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address `offset` bytes further on.
    #[must_use]
    pub const fn plus(self, offset: Bytes) -> Address {
        Address(self.0 + offset.0)
    }
}

debug_as!(Address, |it| "{:#x}", it.0);

words! {
    /// The kind of a device.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum DeviceKind {
        /// Pages of this machine.
        Host = "host",
        /// A GPU behind the CUDA driver.
        Cuda = "cuda",
        /// A device without memory that only counts.
        DryRun = "dry-run",
    }
}

/// The description of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The name by which lowtide knows the device.
    pub id: DeviceId,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The name that its maker gave it.
    pub name: String,
    /// The whole memory of the device.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// The page: the size of every chunk is a multiple of it.
    #[serde(rename = "page_bytes")]
    pub page: Bytes,
    /// The GPU's UUID, the same in every process and after a restart.
    pub uuid: Option<String>,
}

/// A back end's name for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub u64);

/// A back end's name for a point in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawMark(pub u64);

/// The operations of one kind of device. [`crate::Device`] is the caller and keeps the preconditions; a
/// back end that stands before another one passes them on.
///
/// Sizes and offsets are multiples of the page unless stated otherwise. Every call may fail, and a
/// call that failed has changed nothing.
///
/// # Safety
/// An implementation promises that addresses it returns belong to nobody else, and that staging memory
/// is valid and aligned for a [`Digest`].
///
/// A caller of the unsafe methods promises: handles and addresses come from this back end and have not
/// been given back. Ranges given to `map` are reserved and unmapped; ranges given to `open` and
/// `unmap` are wholly mapped and cut no mapping. No work in flight uses what `unmap`, `release`,
/// `destroy`, `unregister` or `unstage` take away.
#[expect(
    clippy::missing_safety_doc,
    clippy::missing_errors_doc,
    reason = "one contract for all, above"
)]
pub unsafe trait Backend: Send + Sync {
    /// Returns the device's description.
    fn info(&self) -> &DeviceInfo;
    /// Asks the device how much memory is in use; never our own tables.
    fn usage(&self) -> Result<Usage>;
    /// Returns how many driver calls were made through this back end and its streams.
    fn calls(&self) -> u64;

    /// Reserves address space. Uses no memory.
    fn reserve(&self, size: Bytes) -> Result<Address>;
    /// Gives a whole reservation back.
    unsafe fn release(&self, at: Address, size: Bytes) -> Result<()>;
    /// Creates a chunk of memory with undefined content.
    fn create(&self, size: Bytes) -> Result<Handle>;
    /// Gives a chunk's memory back.
    unsafe fn destroy(&self, chunk: Handle, size: Bytes) -> Result<()>;
    /// Maps a whole chunk at an address. Nothing can use it yet.
    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()>;
    /// Lets the device read and write a range of whole mappings.
    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()>;
    /// Unmaps whole mappings. The chunks keep their content.
    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()>;

    /// Registers host memory with the device, so that copies run at the link's speed.
    unsafe fn register(&self, at: *mut u8, size: Bytes) -> Result<()>;
    /// Ends a registration of host memory.
    unsafe fn unregister(&self, at: *mut u8, size: Bytes) -> Result<()>;
    /// Allocates a little host memory, of any size, that the device reads and writes in place.
    fn stage(&self, size: Bytes) -> Result<*mut u8>;
    /// Gives staging memory back.
    unsafe fn unstage(&self, at: *mut u8, size: Bytes) -> Result<()>;

    /// Loads what digests need, if it is not loaded.
    fn prepare_digests(&self) -> Result<()> {
        Ok(())
    }
    /// Returns whether streams of the device pack pages to and from registered host memory.
    fn packs(&self) -> bool {
        true
    }
    /// Loads what packing needs, if it is not loaded.
    fn prepare_packing(&self) -> Result<()> {
        Ok(())
    }
    /// Returns whether kernels of the device read registered host memory in place.
    fn copies_by_kernel(&self) -> bool {
        self.packs()
    }
    /// Loads what copies by a kernel need, if it is not loaded.
    fn prepare_copies(&self) -> Result<()> {
        Ok(())
    }
    /// Creates a stream of the device.
    fn stream(&self) -> Result<Box<dyn BackendStream>>;
    /// Waits for everything that was given to any stream of the device so far.
    fn synchronize(&self) -> Result<()>;
}

/// The operations of a stream: work in order, done later. Sizes and offsets are free.
///
/// # Safety
/// An implementation promises that work is done once `wait` or `synchronize` has succeeded or
/// `is_done` returned true, and that work uses nothing but what it was given.
///
/// A caller of the unsafe methods promises: until the work is done, device ranges are mapped and open,
/// and host ranges are valid and within one registration. After `destroy` succeeded only `forget` is
/// called.
#[expect(
    clippy::missing_safety_doc,
    clippy::missing_errors_doc,
    reason = "one contract for all, above"
)]
pub unsafe trait BackendStream: Send + Sync {
    /// Returns a number that no other stream of this kind of device has or had in this process.
    fn id(&self) -> u64;

    /// Copies from the device to the host.
    unsafe fn copy_out(&self, from: Address, to: *mut u8, size: Bytes) -> Result<()>;
    /// Copies from the host to the device.
    unsafe fn copy_in(&self, from: *const u8, to: Address, size: Bytes) -> Result<()>;
    /// Copies from the host to the device with a kernel, which reads the host memory itself. Addresses and
    /// size are multiples of 4 KiB.
    unsafe fn copy_in_by_kernel(&self, from: *const u8, to: Address, size: Bytes) -> Result<()>;
    /// Copies between two ranges of the device that do not overlap.
    unsafe fn copy_within(&self, from: Address, to: Address, size: Bytes) -> Result<()>;
    /// Sets every byte of a range.
    unsafe fn fill(&self, at: Address, byte: u8, size: Bytes) -> Result<()>;
    /// Writes the digest of each of `count` pages, whose addresses lie at `pages`, to `out`. Both lie
    /// in staging memory.
    unsafe fn digest(
        &self,
        pages: *const Address,
        out: *mut Digest,
        count: usize,
        keys: &Keys,
    ) -> Result<()>;

    /// Writes the look at each of `count` pages, whose addresses lie at `pages`, to `out`, as
    /// [`Look::to_word`](crate::page::packing::Look::to_word) does. Both lie in staging memory.
    unsafe fn look(&self, pages: *const Address, out: *mut u32, count: usize) -> Result<()>;
    /// Packs neighbouring pages to neighbouring packed pages, with a base for each: at most
    /// [`PACKED_AT_ONCE`](crate::page::packing::PACKED_AT_ONCE). Packed pages lie in registered host memory
    /// or on the device.
    unsafe fn pack(&self, from: Address, to: Address, bases: &[u8]) -> Result<()>;
    /// Unpacks neighbouring pages.
    unsafe fn unpack(&self, from: Address, to: Address, count: usize) -> Result<()>;

    /// Marks the point up to which work has been given.
    fn mark(&self) -> Result<RawMark>;
    /// Waits until the stream has passed a mark.
    unsafe fn wait(&self, mark: RawMark) -> Result<()>;
    /// Gives a mark back.
    unsafe fn forget(&self, mark: RawMark) -> Result<()>;
    /// Waits for everything given to this stream so far.
    fn synchronize(&self) -> Result<()>;
    /// Returns whether everything given so far is done. Does not wait.
    fn is_done(&self) -> Result<bool>;
    /// Ends the stream, once everything given to it is done.
    unsafe fn destroy(&self) -> Result<()>;
}

/// Passes operations of a back end or of its stream on to the one that `real` returns.
#[doc(hidden)]
#[macro_export]
macro_rules! passed_on {
    ($(fn $name:ident(&$self:ident $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*) => {$(
        fn $name(&$self $(, $argument: $kind)*) -> $answer {
            $self.real().$name($($argument),*)
        }
    )*};
    ($(unsafe fn $name:ident(&$self:ident $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*) => {$(
        unsafe fn $name(&$self $(, $argument: $kind)*) -> $answer {
            // SAFETY: the caller's promise to this back end is the one to the other.
            unsafe { $self.real().$name($($argument),*) }
        }
    )*};
}
