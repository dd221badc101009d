//! The contract of a device, on one page: what `host` and `cuda` do, and what [`crate::Device`]
//! promises them.
#![allow(unsafe_code, reason = "declares the methods whose preconditions only the caller can keep")]

use crate::digest::{Digest, Keys};
use crate::{Address, Bytes, DeviceInfo, Result, Usage};

/// A back end's name for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub u64);

/// A back end's name for a point in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawMark(pub u64);

/// What a kind of device does. [`crate::Device`] is its only caller and keeps the preconditions.
///
/// Sizes and offsets are multiples of the page unless said otherwise. Every call may fail, and a
/// call that failed has changed nothing.
///
/// # Safety
/// Who implements it promises that what it hands out is what it says: addresses that nobody else
/// has, staged memory that is valid and aligned for a [`Digest`].
///
/// Who calls the unsafe methods promises: handles and addresses come from this back end and were not given back yet. Ranges given to
/// `map` are reserved and unmapped; to `open` and `unmap`, wholly mapped and cut nothing. No work
/// in flight touches what `unmap`, `release`, `destroy`, `unregister` or `unstage` take away.
#[expect(
    clippy::missing_safety_doc,
    clippy::missing_errors_doc,
    reason = "one contract for all, above"
)]
pub unsafe trait Backend: Send + Sync {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;
    /// What it says is in use. Asks the device, never our own books.
    fn usage(&self) -> Result<Usage>;
    /// How many calls were made at the driver so far, through this and its streams.
    fn calls(&self) -> u64;

    /// Takes address space; costs no memory.
    fn reserve(&self, size: Bytes) -> Result<Address>;
    /// Gives address space back.
    unsafe fn release(&self, at: Address, size: Bytes) -> Result<()>;
    /// Takes memory. Its content is undefined.
    fn create(&self, size: Bytes) -> Result<Handle>;
    /// Gives memory back.
    unsafe fn destroy(&self, chunk: Handle, size: Bytes) -> Result<()>;
    /// Puts a whole chunk under an address. Nothing can touch it yet.
    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()>;
    /// Lets the device read and write a range of whole mappings.
    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()>;
    /// Takes whole mappings away; the chunks keep their content.
    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()>;

    /// Makes host memory known to the device so that copies run at the link's speed.
    unsafe fn register(&self, at: *mut u8, size: Bytes) -> Result<()>;
    /// Undoes `register`.
    unsafe fn unregister(&self, at: *mut u8, size: Bytes) -> Result<()>;
    /// Takes a little host memory that the device can read and write in place. Any size.
    fn stage(&self, size: Bytes) -> Result<*mut u8>;
    /// Gives it back.
    unsafe fn unstage(&self, at: *mut u8, size: Bytes) -> Result<()>;

    /// A new stream.
    fn stream(&self) -> Result<Box<dyn BackendStream>>;
    /// Waits for everything that was given to any stream of the device so far.
    fn synchronize(&self) -> Result<()>;
}

/// What a stream does: work in order, later. Any size and offset.
///
/// # Safety
/// Who implements it promises that work is done when `wait` or `synchronize` has succeeded or
/// `is_done` said so, and touches nothing but what it was given.
///
/// Who calls the unsafe methods promises: device ranges are mapped and open, host ranges valid and within one registration, until the
/// work is done. After `destroy` succeeded only `forget` is called.
#[expect(
    clippy::missing_safety_doc,
    clippy::missing_errors_doc,
    reason = "one contract for all, above"
)]
pub unsafe trait BackendStream: Send + Sync {
    /// What no other stream of this kind of device has or had in this process.
    fn id(&self) -> u64;

    /// Copies from the device to the host.
    unsafe fn copy_out(&self, from: Address, to: *mut u8, size: Bytes) -> Result<()>;
    /// Copies from the host to the device.
    unsafe fn copy_in(&self, from: *const u8, to: Address, size: Bytes) -> Result<()>;
    /// Sets every byte.
    unsafe fn fill(&self, at: Address, byte: u8, size: Bytes) -> Result<()>;
    /// Writes the digest of each of `count` pages whose addresses lie at `pages` to `out`; both staged.
    unsafe fn digest(
        &self,
        pages: *const Address,
        out: *mut Digest,
        count: usize,
        keys: &Keys,
    ) -> Result<()>;

    /// Names the point up to which work has been given.
    fn mark(&self) -> Result<RawMark>;
    /// Waits until that point.
    unsafe fn wait(&self, mark: RawMark) -> Result<()>;
    /// Forgets a mark.
    unsafe fn forget(&self, mark: RawMark) -> Result<()>;
    /// Waits for everything given so far.
    fn synchronize(&self) -> Result<()>;
    /// Whether everything given so far is done. Does not wait.
    fn is_done(&self) -> Result<bool>;
    /// Ends the stream. Everything given to it is done.
    unsafe fn destroy(&self) -> Result<()>;
}
