//! A device of real pages whose driver refuses a call now and then.
//!
//! It stands before a `host` device and passes everything on, so the kernel's number is behind it
//! untouched. Copies and digests are done at once, by whoever asks: a stream may be that fast, and
//! thousands of devices without threads are cheap. A test can also have something done right after a
//! digest or a copy, such as a stray write.
#![allow(unsafe_code, reason = "is a back end, whose contract is unsafe, over a safe device")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, ptr};

use lowtide_device::digest::{Digest, Keys, PAGE_BYTES};
use lowtide_device::{
    Address, Backend, BackendStream, Bytes, Chunk, Device, DeviceId, DeviceInfo, Error, Handle,
    RawMark, Reservation, Result, Usage,
};

use crate::Dice;

/// A call that can be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Create,
    Destroy,
    Map,
    Open,
    Unmap,
    Copy,
    Digest,
    Stream,
    Synchronize,
    Usage,
}

const CALLS: [Call; 10] = [
    Call::Create,
    Call::Destroy,
    Call::Map,
    Call::Open,
    Call::Unmap,
    Call::Copy,
    Call::Digest,
    Call::Stream,
    Call::Synchronize,
    Call::Usage,
];

/// The calls that a device of [`device_over`] refuses, and what happens between its calls.
#[derive(Default)]
pub struct Faults {
    armed: Mutex<Vec<Armed>>,
    struck: AtomicU64,
    meddler: Mutex<Option<Box<Meddler>>>,
}

/// A point of time in the work of a stream.
#[derive(Debug, Clone, Copy)]
pub enum Moment<'a> {
    /// The digests of these pages were computed.
    Digested(&'a [Address]),
    /// So many bytes from here on were copied to the host.
    CopiedOut(Address, Bytes),
    /// So many bytes from here on were copied to the device.
    CopiedIn(Address, Bytes),
}

impl Moment<'_> {
    /// Returns whether the work was on the byte at this address.
    pub fn is_of(&self, byte: Address) -> bool {
        let holds = |at: &Address, size: u64| (at.0..at.0 + size).contains(&byte.0);
        match self {
            Moment::Digested(pages) => pages.iter().any(|page| holds(page, PAGE_BYTES as u64)),
            Moment::CopiedOut(at, size) | Moment::CopiedIn(at, size) => holds(at, size.0),
        }
    }
}

type Meddler = dyn FnMut(Moment<'_>) + Send;

#[derive(Debug)]
struct Armed {
    call: Call,
    /// So many get through first.
    spared: u64,
    /// Then so many do not.
    times: u64,
}

impl Faults {
    /// Refuses one or two kinds of calls from now on, for a while or for good.
    pub fn arm(&self, dice: &mut Dice) {
        let mut armed = self.armed();
        for _ in 0..=dice.roll(2) {
            let times = dice.pick(&[1, 2, 3, u64::MAX]);
            armed.push(Armed { call: dice.pick(&CALLS), spared: dice.roll(6), times });
        }
    }

    /// Refuses nothing from now on.
    pub fn disarm(&self) {
        self.armed().clear();
    }

    /// Calls `meddler` after every digest and every copy from now on, before the stream goes on.
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

    fn armed(&self) -> MutexGuard<'_, Vec<Armed>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, call: Call) -> Result<()> {
        let mut armed = self.armed();
        let mut is_refused = false;
        for fault in armed.iter_mut().filter(|fault| fault.call == call && fault.times > 0) {
            if fault.spared > 0 {
                fault.spared -= 1;
            } else {
                fault.times -= 1;
                is_refused = true;
            }
        }
        if !is_refused {
            return Ok(());
        }
        self.struck.fetch_add(1, Relaxed);
        let (device, name) = (Some(DeviceId::Host), "CUDA_ERROR_UNKNOWN".to_owned());
        Err(Error::Driver { device, call: call.name(), code: 999, name })
    }
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Create => "create",
            Call::Destroy => "destroy",
            Call::Map => "map",
            Call::Open => "open",
            Call::Unmap => "unmap",
            Call::Copy => "copy",
            Call::Digest => "digest",
            Call::Stream => "stream",
            Call::Synchronize => "synchronize",
            Call::Usage => "usage",
        }
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
    Device::new(Refusing {
        real: real.clone(),
        faults: Arc::clone(faults),
        calls: AtomicU64::new(0),
        books: Mutex::default(),
    })
}

struct Refusing {
    real: Device,
    faults: Arc<Faults>,
    calls: AtomicU64,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// By address.
    reservations: BTreeMap<u64, Reservation>,
    /// Mapped nowhere, by handle.
    chunks: BTreeMap<u64, Chunk>,
    /// Handles of what is mapped, by address.
    mapped: BTreeMap<u64, u64>,
    last_handle: u64,
    /// By address. Of this type because that is aligned for a digest.
    staged: BTreeMap<usize, Vec<u128>>,
}

impl Books {
    fn at(&self, at: Address) -> (&Reservation, Bytes) {
        let (base, reservation) = self.reservations.range(..=at.0).next_back().expect("reserved");
        (reservation, Bytes(at.0 - base))
    }
}

impl Refusing {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, call: Call) -> Result<()> {
        self.calls.fetch_add(1, Relaxed);
        self.faults.strike(call)
    }
}

// SAFETY: addresses and chunks are those of the device behind it, which checks every call once more;
// staged memory is aligned for a `u128`, and stays where it is until it is given back.
unsafe impl Backend for Refusing {
    fn info(&self) -> &DeviceInfo {
        self.real.info()
    }

    fn usage(&self) -> Result<Usage> {
        self.ask(Call::Usage)?;
        self.real.usage()
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn reserve(&self, size: Bytes) -> Result<Address> {
        let reservation = self.real.reserve(size)?;
        let at = reservation.address();
        self.books().reservations.insert(at.0, reservation);
        Ok(at)
    }

    unsafe fn release(&self, at: Address, _size: Bytes) -> Result<()> {
        self.books().reservations.remove(&at.0);
        Ok(())
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        self.ask(Call::Create)?;
        let chunk = self.real.create(size)?;
        let mut books = self.books();
        books.last_handle += 1;
        let handle = books.last_handle;
        books.chunks.insert(handle, chunk);
        Ok(Handle(handle))
    }

    unsafe fn destroy(&self, chunk: Handle, _size: Bytes) -> Result<()> {
        self.ask(Call::Destroy)?;
        self.books().chunks.remove(&chunk.0);
        Ok(())
    }

    unsafe fn map(&self, at: Address, chunk: Handle, _size: Bytes) -> Result<()> {
        self.ask(Call::Map)?;
        let mut books = self.books();
        let taken = books.chunks.remove(&chunk.0).expect("a chunk that is mapped nowhere");
        let (reservation, offset) = books.at(at);
        reservation.map(offset, taken).expect("what is behind it does not refuse");
        books.mapped.insert(at.0, chunk.0);
        Ok(())
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        self.ask(Call::Open)?;
        let books = self.books();
        let (reservation, offset) = books.at(at);
        reservation.open(offset, size)
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        self.ask(Call::Unmap)?;
        let mut books = self.books();
        let (reservation, offset) = books.at(at);
        let base = reservation.address();
        let taken = reservation.unmap(offset, size)?;
        for (offset, chunk) in taken {
            let handle = books.mapped.remove(&base.plus(offset).0).expect("mapped here");
            books.chunks.insert(handle, chunk);
        }
        Ok(())
    }

    // Copies between two places of this machine need no introduction.
    unsafe fn register(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Ok(())
    }

    unsafe fn unregister(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Ok(())
    }

    fn stage(&self, size: Bytes) -> Result<*mut u8> {
        let mut staged = vec![0u128; size.as_usize().div_ceil(size_of::<u128>())];
        let at = staged.as_mut_ptr().cast::<u8>();
        self.books().staged.insert(at.expose_provenance(), staged);
        Ok(at)
    }

    unsafe fn unstage(&self, at: *mut u8, _size: Bytes) -> Result<()> {
        self.books().staged.remove(&at.addr());
        Ok(())
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        static STREAMS: AtomicU64 = AtomicU64::new(1);
        self.ask(Call::Stream)?;
        let (id, faults) = (STREAMS.fetch_add(1, Relaxed), Arc::clone(&self.faults));
        Ok(Box::new(AtOnce { id, faults }))
    }

    fn synchronize(&self) -> Result<()> {
        self.ask(Call::Synchronize)
    }
}

/// A stream that has done everything before it returns.
struct AtOnce {
    id: u64,
    faults: Arc<Faults>,
}

// SAFETY: all work is done in the call that gives it.
unsafe impl BackendStream for AtOnce {
    fn id(&self) -> u64 {
        self.id
    }

    unsafe fn copy_out(&self, from: Address, to: *mut u8, size: Bytes) -> Result<()> {
        self.faults.strike(Call::Copy)?;
        // SAFETY: both ranges are valid, by the contract of `BackendStream`, and never overlap.
        unsafe { ptr::copy_nonoverlapping(pointer(from), to, size.as_usize()) };
        self.faults.pass(Moment::CopiedOut(from, size));
        Ok(())
    }

    unsafe fn copy_in(&self, from: *const u8, to: Address, size: Bytes) -> Result<()> {
        self.faults.strike(Call::Copy)?;
        // SAFETY: as in `copy_out`.
        unsafe { ptr::copy_nonoverlapping(from, pointer(to), size.as_usize()) };
        self.faults.pass(Moment::CopiedIn(to, size));
        Ok(())
    }

    unsafe fn fill(&self, at: Address, byte: u8, size: Bytes) -> Result<()> {
        // SAFETY: the range is valid, by the contract of `BackendStream`.
        unsafe { ptr::write_bytes(pointer(at), byte, size.as_usize()) };
        Ok(())
    }

    unsafe fn digest(
        &self,
        pages: *const Address,
        out: *mut Digest,
        count: usize,
        keys: &Keys,
    ) -> Result<()> {
        self.faults.strike(Call::Digest)?;
        // SAFETY: `pages` has `count` entries, staged before this call.
        let pages = unsafe { std::slice::from_raw_parts(pages, count) };
        // SAFETY: `out` has room for `count` digests, and nobody reads them before this returns.
        let out = unsafe { std::slice::from_raw_parts_mut(out, count) };
        for (page, digest) in pages.iter().zip(out) {
            // SAFETY: the address of a page that is mapped and open.
            let bytes = unsafe { std::slice::from_raw_parts(pointer(*page), PAGE_BYTES) };
            *digest = keys.digest(bytes);
        }
        self.faults.pass(Moment::Digested(pages));
        Ok(())
    }

    fn mark(&self) -> Result<RawMark> {
        Ok(RawMark(0))
    }

    // Never refused: a stream that will not say whether it is done keeps its memory from everybody,
    // and then a world could not be asked for everything back.
    unsafe fn wait(&self, _mark: RawMark) -> Result<()> {
        Ok(())
    }

    unsafe fn forget(&self, _mark: RawMark) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn is_done(&self) -> Result<bool> {
        Ok(true)
    }

    unsafe fn destroy(&self) -> Result<()> {
        Ok(())
    }
}

fn pointer(at: Address) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(at.0).expect("an address of this process"))
}
