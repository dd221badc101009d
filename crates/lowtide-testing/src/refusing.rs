//! A device of real pages whose driver refuses a call now and then.
//!
//! It stands before a `host` device and passes everything on, so the kernel's number is behind it
//! untouched. A test can also have something done right after a digest or a copy, such as a stray
//! write; so each of them is done before the call returns.
#![allow(unsafe_code, reason = "is a back end, whose contract is unsafe, over another one")]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_device::digest::{Digest, Keys, PAGE_BYTES};
use lowtide_device::packing::PACKED_BYTES;
use lowtide_device::{
    Address, Backend, BackendStream, Bytes, Device, DeviceId, DeviceInfo, Error, Handle, RawMark,
    Result, Usage, passed_on,
};

use crate::Dice;
use crate::strikes::Strikes;

/// The calls that can be refused.
const CALLS: [&str; 10] = [
    "create",
    "destroy",
    "map",
    "open",
    "unmap",
    "copy",
    "digest",
    "stream",
    "synchronize",
    "usage",
];

/// The calls that a device of [`device_over`] refuses, and what happens between its calls.
#[derive(Default)]
pub struct Faults {
    armed: Mutex<Vec<(&'static str, Strikes)>>,
    struck: AtomicU64,
    /// The number of packs that are still to be spoilt, and of unpacks.
    spoilt: AtomicU64,
    unpacked_wrongly: AtomicU64,
    meddler: Mutex<Option<Box<Meddler>>>,
}

/// A point of time in the work of a device.
#[derive(Debug, Clone, Copy)]
pub enum Moment<'a> {
    /// The digests of these pages were computed.
    Digested(&'a [Address]),
    /// So many bytes from here on were copied to the host.
    CopiedOut(Address, Bytes),
    /// So many bytes from here on were copied to the device.
    CopiedIn(Address, Bytes),
    /// So many bytes from here on were copied to another place on the device.
    CopiedWithin(Address, Bytes),
    /// So many bytes from here on are about to be unmapped.
    Unmapping(Address, Bytes),
}

impl Moment<'_> {
    /// Returns whether the work was on the byte at this address.
    pub fn is_of(&self, byte: Address) -> bool {
        let holds = |at: &Address, size: u64| (at.0..at.0 + size).contains(&byte.0);
        match self {
            Moment::Digested(pages) => pages.iter().any(|page| holds(page, PAGE_BYTES as u64)),
            Moment::CopiedOut(at, size)
            | Moment::CopiedIn(at, size)
            | Moment::CopiedWithin(at, size)
            | Moment::Unmapping(at, size) => holds(at, size.0),
        }
    }
}

type Meddler = dyn FnMut(Moment<'_>) + Send;

impl Faults {
    /// Refuses one or two kinds of calls from now on, for a while or for good.
    pub fn arm(&self, dice: &mut Dice) {
        let mut armed = self.armed();
        for _ in 0..=dice.roll(2) {
            armed.push((dice.pick(&CALLS), Strikes::roll(dice)));
        }
    }

    /// Refuses nothing from now on.
    pub fn disarm(&self) {
        self.armed().clear();
    }

    /// Changes a byte of the next so many packed pieces: a kernel that is wrong.
    pub fn spoil_packs(&self, count: u64) {
        self.spoilt.store(count, Relaxed);
    }

    /// Changes a byte of what the next so many unpacks write: a kernel that is wrong.
    pub fn spoil_unpacks(&self, count: u64) {
        self.unpacked_wrongly.store(count, Relaxed);
    }

    /// Calls `meddler` at every [`Moment`] from now on, before the work goes on.
    pub fn meddle(&self, meddler: impl FnMut(Moment<'_>) + Send + 'static) {
        *self.meddler() = Some(Box::new(meddler));
    }

    /// Calls no meddler from now on.
    pub fn leave_alone(&self) {
        *self.meddler() = None;
    }

    fn meddler(&self) -> MutexGuard<'_, Option<Box<Meddler>>> {
        self.meddler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, moment: Moment<'_>) {
        if let Some(meddler) = self.meddler().as_mut() {
            meddler(moment);
        }
    }

    /// Returns how often a call was refused so far.
    pub fn struck(&self) -> u64 {
        self.struck.load(Relaxed)
    }

    fn armed(&self) -> MutexGuard<'_, Vec<(&'static str, Strikes)>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, call: &'static str) -> Result<()> {
        let mut armed = self.armed();
        let mut is_refused = false;
        for (_, strikes) in armed.iter_mut().filter(|(armed, _)| *armed == call) {
            is_refused |= strikes.strike();
        }
        if !is_refused {
            return Ok(());
        }
        self.struck.fetch_add(1, Relaxed);
        let (device, name) = (Some(DeviceId::Host), "CUDA_ERROR_UNKNOWN".to_owned());
        Err(Error::Driver { device, call, code: 999, name })
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (armed, struck) = (self.armed(), self.struck());
        f.debug_struct("Faults")
            .field("armed", &armed)
            .field("struck", &struck)
            .finish_non_exhaustive()
    }
}

/// Creates a device over another one, with faults between them.
pub fn device_over(real: &Device, faults: &Arc<Faults>) -> Device {
    Device::new(Refusing { real: real.clone(), faults: Arc::clone(faults) })
}

struct Refusing {
    real: Device,
    faults: Arc<Faults>,
}

impl Refusing {
    fn ask(&self, call: &'static str) -> Result<&dyn Backend> {
        self.faults.strike(call)?;
        Ok(self.real())
    }

    fn real(&self) -> &dyn Backend {
        self.real.backend()
    }
}

// SAFETY: every call that is not refused is one of the back end behind it, with the same arguments. The
// callers' promises are passed on with them.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
unsafe impl Backend for Refusing {
    passed_on! {
        fn info(&self) -> &DeviceInfo;
        fn calls(&self) -> u64;
        fn reserve(&self, size: Bytes) -> Result<Address>;
        fn stage(&self, size: Bytes) -> Result<*mut u8>;
    }

    passed_on! {
        unsafe fn release(&self, at: Address, size: Bytes) -> Result<()>;
        unsafe fn register(&self, at: *mut u8, size: Bytes) -> Result<()>;
        unsafe fn unregister(&self, at: *mut u8, size: Bytes) -> Result<()>;
        unsafe fn unstage(&self, at: *mut u8, size: Bytes) -> Result<()>;
    }

    fn usage(&self) -> Result<Usage> {
        self.ask("usage")?.usage()
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        self.ask("create")?.create(size)
    }

    unsafe fn destroy(&self, chunk: Handle, size: Bytes) -> Result<()> {
        unsafe { self.ask("destroy")?.destroy(chunk, size) }
    }

    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()> {
        unsafe { self.ask("map")?.map(at, chunk, size) }
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        unsafe { self.ask("open")?.open(at, size) }
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        let real = self.ask("unmap")?;
        self.faults.pass(Moment::Unmapping(at, size));
        unsafe { real.unmap(at, size) }
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        let real = self.ask("stream")?.stream()?;
        Ok(Box::new(RefusingStream { real, faults: Arc::clone(&self.faults) }))
    }

    fn synchronize(&self) -> Result<()> {
        self.ask("synchronize")?.synchronize()
    }
}

fn pages(count: usize) -> Bytes {
    Bytes((count * PAGE_BYTES) as u64)
}

/// A stream that has done each copy and each digest before it returns, so that something can be done
/// right afterwards.
struct RefusingStream {
    real: Box<dyn BackendStream>,
    faults: Arc<Faults>,
}

impl RefusingStream {
    fn real(&self) -> &dyn BackendStream {
        &*self.real
    }

    // Changes a byte once what was given is done, as long as there is something to be spoilt.
    fn spoil(&self, left: &AtomicU64, byte: usize) -> Result<()> {
        if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            self.real.synchronize()?;
            // SAFETY: inside what was just written, which no one else uses until the call returns.
            unsafe { *std::ptr::with_exposed_provenance_mut::<u8>(byte) ^= 1 };
        }
        Ok(())
    }

    fn done(&self, moment: Moment<'_>) -> Result<()> {
        self.real.synchronize()?;
        self.faults.pass(moment);
        Ok(())
    }
}

// SAFETY: as of `Refusing`. No wait is refused: a stream that will not say whether it is done keeps its
// memory from everybody, and then a test could not ask for everything back.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
unsafe impl BackendStream for RefusingStream {
    passed_on! {
        fn id(&self) -> u64;
        fn mark(&self) -> Result<RawMark>;
        fn synchronize(&self) -> Result<()>;
        fn is_done(&self) -> Result<bool>;
    }

    passed_on! {
        unsafe fn fill(&self, at: Address, byte: u8, size: Bytes) -> Result<()>;
        unsafe fn wait(&self, mark: RawMark) -> Result<()>;
        unsafe fn forget(&self, mark: RawMark) -> Result<()>;
        unsafe fn destroy(&self) -> Result<()>;
    }

    unsafe fn copy_out(&self, from: Address, to: *mut u8, size: Bytes) -> Result<()> {
        self.faults.strike("copy")?;
        unsafe { self.real.copy_out(from, to, size) }?;
        self.done(Moment::CopiedOut(from, size))
    }

    unsafe fn copy_in(&self, from: *const u8, to: Address, size: Bytes) -> Result<()> {
        self.faults.strike("copy")?;
        unsafe { self.real.copy_in(from, to, size) }?;
        self.done(Moment::CopiedIn(to, size))
    }

    unsafe fn copy_in_by_kernel(&self, from: *const u8, to: Address, size: Bytes) -> Result<()> {
        self.faults.strike("copy")?;
        unsafe { self.real.copy_in_by_kernel(from, to, size) }?;
        self.done(Moment::CopiedIn(to, size))
    }

    unsafe fn copy_within(&self, from: Address, to: Address, size: Bytes) -> Result<()> {
        self.faults.strike("copy")?;
        unsafe { self.real.copy_within(from, to, size) }?;
        self.done(Moment::CopiedWithin(from, size))
    }

    unsafe fn digest(
        &self,
        pages: *const Address,
        out: *mut Digest,
        count: usize,
        keys: &Keys,
    ) -> Result<()> {
        self.faults.strike("digest")?;
        unsafe { self.real.digest(pages, out, count, keys) }?;
        // The list is staging memory, which stays as it is until the digests were waited for.
        self.done(Moment::Digested(unsafe { std::slice::from_raw_parts(pages, count) }))
    }

    unsafe fn look(&self, pages: *const Address, out: *mut u32, count: usize) -> Result<()> {
        self.faults.strike("digest")?;
        unsafe { self.real.look(pages, out, count) }
    }

    unsafe fn pack(&self, from: Address, to: Address, bases: &[u8]) -> Result<()> {
        self.faults.strike("copy")?;
        unsafe { self.real.pack(from, to, bases) }?;
        self.spoil(&self.faults.spoilt, to.0 as usize + PACKED_BYTES / 2)?;
        self.done(Moment::CopiedOut(from, pages(bases.len())))
    }

    unsafe fn unpack(&self, from: Address, to: Address, count: usize) -> Result<()> {
        self.faults.strike("copy")?;
        unsafe { self.real.unpack(from, to, count) }?;
        self.spoil(&self.faults.unpacked_wrongly, to.0 as usize + PAGE_BYTES / 2)?;
        self.done(Moment::CopiedIn(to, pages(count)))
    }
}
