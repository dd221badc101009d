//! A stream of a `host` device: a thread that does its work in order, later.
#![allow(unsafe_code, reason = "reads and writes memory that the caller keeps alive")]

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};

use super::page_locks::{PageLocks, by_page};
use crate::backend::{BackendStream, RawMark};
use crate::page::digest::{Digest, Keys, PAGE_BYTES};
use crate::page::packing::{self, PACKED_BYTES};
use crate::sync::{lock, wait};
use crate::{Address, Bytes, Error, Result};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(super) struct HostStream {
    id: u64,
    queue: Mutex<Queue>,
    progress: Arc<Progress>,
    /// Counts the calls of the whole device.
    calls: Arc<AtomicU64>,
}

struct Queue {
    sender: Option<Sender<Work>>,
    worker: Option<JoinHandle<()>>,
}

/// The number of work items that a stream was given, and the number done. Lives until all are done.
#[derive(Default)]
pub(super) struct Progress {
    counts: Mutex<Counts>,
    moved: Condvar,
}

#[derive(Default)]
struct Counts {
    given: u64,
    done: u64,
}

enum Work {
    Copy { from: *const u8, to: *mut u8, size: usize },
    Fill { at: *mut u8, byte: u8, size: usize },
    Digest { pages: *const Address, out: *mut Digest, count: usize, keys: Box<Keys> },
    Look { pages: *const Address, out: *mut u32, count: usize },
    Pack { from: *const u8, to: *mut u8, base: u8 },
    Unpack { from: *const u8, to: *mut u8 },
}

// SAFETY: the pointers are valid until the work is done, whichever thread does it; that is the
// contract of `BackendStream`.
unsafe impl Send for Work {}

impl HostStream {
    pub(super) fn new(calls: &Arc<AtomicU64>, page_locks: &Arc<PageLocks>) -> Result<HostStream> {
        let (sender, receiver) = mpsc::channel::<Work>();
        let progress = Arc::new(Progress::default());
        let (seen, page_locks) = (Arc::clone(&progress), Arc::clone(page_locks));
        let worker = thread::Builder::new()
            .name("lowtide-stream".to_owned())
            .spawn(move || {
                for work in receiver {
                    work.run(&page_locks);
                    seen.counts().done += 1;
                    seen.moved.notify_all();
                }
            })
            .map_err(|source| Error::Os { operation: "starting a stream's thread", source })?;
        let queue = Mutex::new(Queue { sender: Some(sender), worker: Some(worker) });
        let id = NEXT_ID.fetch_add(1, Relaxed);
        Ok(HostStream { id, queue, progress, calls: Arc::clone(calls) })
    }

    pub(super) fn progress(&self) -> Weak<Progress> {
        Arc::downgrade(&self.progress)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn count(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    fn give(&self, work: Work) {
        self.count();
        let queue = self.queue();
        let sender = queue.sender.as_ref().expect("nothing is given to a stream that has ended");
        // Counted first, so that never more is done than was given.
        self.progress.counts().given += 1;
        sender.send(work).expect("the worker lives as long as the sender");
    }
}

impl Progress {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    fn wait(&self, until: u64) {
        let mut counts = self.counts();
        while counts.done < until {
            counts = wait(&self.moved, counts);
        }
    }

    /// Waits for everything given so far.
    pub(super) fn settle(&self) {
        let given = self.counts().given;
        self.wait(given);
    }
}

// SAFETY: one thread does the work in order, and counts it only when it is done.
unsafe impl BackendStream for HostStream {
    fn id(&self) -> u64 {
        self.id
    }

    unsafe fn copy_out(&self, from: Address, to: *mut u8, size: Bytes) -> Result<()> {
        self.give(Work::Copy { from: pointer(from), to, size: size.as_usize() });
        Ok(())
    }

    unsafe fn copy_in(&self, from: *const u8, to: Address, size: Bytes) -> Result<()> {
        self.give(Work::Copy { from, to: pointer(to), size: size.as_usize() });
        Ok(())
    }

    unsafe fn copy_in_by_kernel(&self, from: *const u8, to: Address, size: Bytes) -> Result<()> {
        // SAFETY: by the caller. There is no engine here that another thread could be faster than.
        unsafe { self.copy_in(from, to, size) }
    }

    unsafe fn copy_within(&self, from: Address, to: Address, size: Bytes) -> Result<()> {
        self.give(Work::Copy { from: pointer(from), to: pointer(to), size: size.as_usize() });
        Ok(())
    }

    unsafe fn fill(&self, at: Address, byte: u8, size: Bytes) -> Result<()> {
        self.give(Work::Fill { at: pointer(at), byte, size: size.as_usize() });
        Ok(())
    }

    unsafe fn digest(
        &self,
        pages: *const Address,
        out: *mut Digest,
        count: usize,
        keys: &Keys,
    ) -> Result<()> {
        self.give(Work::Digest { pages, out, count, keys: Box::new(*keys) });
        Ok(())
    }

    unsafe fn look(&self, pages: *const Address, out: *mut u32, count: usize) -> Result<()> {
        self.give(Work::Look { pages, out, count });
        Ok(())
    }

    unsafe fn pack(&self, from: Address, to: Address, bases: &[u8]) -> Result<()> {
        for (page, base) in bases.iter().enumerate() {
            let (from, to) = (page_at(from, page), packed_at(to, page));
            self.give(Work::Pack { from, to, base: *base });
        }
        Ok(())
    }

    unsafe fn unpack(&self, from: Address, to: Address, count: usize) -> Result<()> {
        for page in 0..count {
            self.give(Work::Unpack { from: packed_at(from, page), to: page_at(to, page) });
        }
        Ok(())
    }

    fn mark(&self) -> Result<RawMark> {
        self.count();
        Ok(RawMark(self.progress.counts().given))
    }

    unsafe fn wait(&self, mark: RawMark) -> Result<()> {
        self.count();
        self.progress.wait(mark.0);
        Ok(())
    }

    unsafe fn forget(&self, _mark: RawMark) -> Result<()> {
        self.count();
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        self.count();
        self.progress.settle();
        Ok(())
    }

    fn is_done(&self) -> Result<bool> {
        self.count();
        let counts = self.progress.counts();
        Ok(counts.done == counts.given)
    }

    unsafe fn destroy(&self) -> Result<()> {
        self.count();
        let mut queue = self.queue();
        drop(queue.sender.take());
        if let Some(worker) = queue.worker.take() {
            worker.join().expect("the worker only moves bytes");
        }
        Ok(())
    }
}

impl Work {
    /// Does the work, page by page, with each page locked: another stream may use it, too.
    fn run(self, locks: &PageLocks) {
        match self {
            Work::Copy { from, to, size } => {
                for (offset, size) in by_page(to.addr() as u64, size) {
                    // SAFETY: inside the range that is read.
                    let from = unsafe { from.add(offset) };
                    // SAFETY: inside the range that is written.
                    let to = unsafe { to.add(offset) };
                    let _locked = locks.lock(&range(from, size), &range(to, size));
                    // SAFETY: both ranges are valid until this is done (contract of `BackendStream`);
                    // they never overlap; no other stream uses them now.
                    unsafe { ptr::copy_nonoverlapping(from, to, size) };
                }
            }
            Work::Fill { at, byte, size } => {
                for (offset, size) in by_page(at.addr() as u64, size) {
                    // SAFETY: inside the range that is filled.
                    let at = unsafe { at.add(offset) };
                    let _locked = locks.lock(&(0..0), &range(at, size));
                    // SAFETY: the range is valid until this is done; no other stream uses it now.
                    unsafe { ptr::write_bytes(at, byte, size) };
                }
            }
            Work::Digest { pages, out, count, keys } => {
                each_page(locks, (pages, count), out, |page| keys.digest(page));
            }
            Work::Look { pages, out, count } => {
                each_page(locks, (pages, count), out, |page| packing::look(page).to_word());
            }
            Work::Pack { from, to, base } => {
                let _locked = locks.lock(&range(from, PAGE_BYTES), &range(to, PACKED_BYTES));
                // SAFETY: a mapped, open page, valid until this is done, which no stream writes now.
                let page = unsafe { std::slice::from_raw_parts(from, PAGE_BYTES) };
                // SAFETY: a packed page in host memory, which nobody else uses now.
                let packed = unsafe { std::slice::from_raw_parts_mut(to, PACKED_BYTES) };
                packing::pack(page, base, packed);
            }
            Work::Unpack { from, to } => {
                let _locked = locks.lock(&range(from, PACKED_BYTES), &range(to, PAGE_BYTES));
                // SAFETY: as for `Pack`, the other way round.
                let packed = unsafe { std::slice::from_raw_parts(from, PACKED_BYTES) };
                // SAFETY: as for `Pack`, the other way round.
                let page = unsafe { std::slice::from_raw_parts_mut(to, PAGE_BYTES) };
                packing::unpack(packed, page);
            }
        }
    }
}

// Writes one result for each page of a list in staging memory to another list there.
fn each_page<T>(
    locks: &PageLocks,
    (pages, count): (*const Address, usize),
    out: *mut T,
    compute: impl Fn(&[u8]) -> T,
) {
    for index in 0..count {
        // SAFETY: `pages` has `count` entries.
        let entry = unsafe { pages.add(index) };
        // SAFETY: staged before this work was given, and not written since.
        let at = pointer(unsafe { entry.read() }).cast_const();
        let locked = locks.lock(&range(at, PAGE_BYTES), &(0..0));
        // SAFETY: each entry is the address of a mapped, open page, which no stream writes now.
        let result = compute(unsafe { std::slice::from_raw_parts(at, PAGE_BYTES) });
        drop(locked);
        // SAFETY: `out` has room for `count` results.
        let slot = unsafe { out.add(index) };
        // SAFETY: inside the staging, aligned; the reader waits for this to be done.
        unsafe { slot.write(result) };
    }
}

fn range(at: *const u8, size: usize) -> Range<u64> {
    let start = at.addr() as u64;
    start..start + size as u64
}

fn page_at(first: Address, page: usize) -> *mut u8 {
    pointer(Address(first.0 + (page * PAGE_BYTES) as u64))
}

fn packed_at(first: Address, page: usize) -> *mut u8 {
    pointer(Address(first.0 + (page * PACKED_BYTES) as u64))
}

fn pointer(at: Address) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(at.0).expect("an address of this process"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, HostOptions};

    // Each page is one stream's, whole; a digest sees no page in between.
    #[test]
    fn two_streams_on_one_range_take_turns_page_by_page() {
        let budget = Some(Bytes::mib(4));
        let device = Device::host(HostOptions { budget, small_pages: true }).unwrap();
        let (reservation, size) = (device.reserve(Bytes::mib(2)).unwrap(), Bytes::mib(2));
        reservation.map(Bytes::ZERO, device.create(size).unwrap()).unwrap();
        reservation.open(Bytes::ZERO, size).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let looks = device.stream().unwrap();
        let keys = Keys::from_seed(7);
        let expected = [1, 2].map(|byte| keys.digest(&vec![byte; PAGE_BYTES]));
        streams[0].fill((&reservation, Bytes::ZERO), 1, size).unwrap();
        streams[0].synchronize().unwrap();
        for _ in 0..50 {
            streams[0].fill((&reservation, Bytes::ZERO), 1, size).unwrap();
            streams[1].fill((&reservation, Bytes::ZERO), 2, size).unwrap();
            let found = looks.digest((&reservation, Bytes::ZERO), size, &keys).unwrap();
            assert!(expected.contains(&found.wait().unwrap()[0]), "a page between two fills");
        }
    }
}
