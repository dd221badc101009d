//! Saving pages: what changed since the last time goes to the host.
//!
//! First every page's digest is taken, on the device. A page whose digest is that of its backup is
//! saved already, and one that is all zeros needs no place. For the rest the host's room is checked,
//! and only then anything moves: copies into memory that is there begin at once, and threads prepare
//! the missing memory and give the copies into each slab as soon as it is ready.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{Bytes, Device, HostMemory, Reservation, Stream, host_room};

use crate::backup::{Backups, PAGE, Place, Saved, Slot};
use crate::policy::Policy;
use crate::{Error, Result};

/// One suffices for the link; with two it never waits for us.
const COPY_STREAMS: usize = 2;
const THREADS_MOST: usize = 16;

/// Pages of a room that are to be saved.
pub(crate) struct ToSave<'a> {
    pub(crate) room: usize,
    pub(crate) reservation: &'a Reservation,
    /// Runs of whole pages.
    pub(crate) pages: &'a [Range<u64>],
}

/// What was found out about the pages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) copied: Bytes,
    pub(crate) unchanged: Bytes,
    pub(crate) zero: Bytes,
}

/// Copies that the device has accepted. Dropping this before [`Saving::finish`] waits for them.
pub(crate) struct Saving<'a> {
    pub(crate) tally: Tally,
    streams: Vec<Stream>,
    changed: Vec<Changed<'a>>,
}

/// A page that is copied.
struct Changed<'a> {
    room: usize,
    reservation: &'a Reservation,
    offset: u64,
    digest: Digest,
    slot: Slot,
}

/// Neighbours on both sides, copied at once.
struct Copy<'a> {
    reservation: &'a Reservation,
    offset: u64,
    slot: Slot,
    size: Bytes,
}

impl<'a> Saving<'a> {
    /// Digests, decides, checks the room, and gives all copies to the device. On failure nothing
    /// has moved; backups that were to be overwritten are forgotten.
    pub(crate) fn begin(
        device: &Device,
        policy: &Policy,
        backups: &mut Backups,
        parts: &[ToSave<'a>],
    ) -> Result<Saving<'a>> {
        if parts.iter().all(|part| part.pages.is_empty()) {
            parts.iter().for_each(|part| backups.forget(part.room));
            return Ok(Saving {
                tally: Tally::default(),
                streams: Vec::new(),
                changed: Vec::new(),
            });
        }
        let streams: Vec<Stream> =
            (0..COPY_STREAMS).map(|_| device.stream()).collect::<Result<_, _>>()?;
        let digests = digests(&streams[0], parts)?;
        let (tally, changed) = sort_out(backups, parts, &digests);
        let mut saving = Saving { tally, streams, changed };
        if let Err(error) = saving.copy(device, policy, backups) {
            saving.forget(backups);
            return Err(error);
        }
        Ok(saving)
    }

    fn copy(&mut self, device: &Device, policy: &Policy, backups: &mut Backups) -> Result<()> {
        let homeless = self.changed.iter().filter(|page| page.slot == NOWHERE).count() as u64;
        let missing = Bytes(backups.missing(homeless) * PAGE);
        ask_for(policy, backups.held(), missing)?;
        let (slots, new) = backups.take(homeless);
        let mut slots = slots.into_iter();
        for page in self.changed.iter_mut().filter(|page| page.slot == NOWHERE) {
            page.slot = slots.next().expect("as many slots as pages");
        }
        let mut copies = copies(&self.changed);
        copies.sort_by_key(|copy| copy.slot);
        let (ready, waiting): (Vec<_>, Vec<_>) =
            copies.into_iter().partition(|copy| backups.memory(copy.slot.slab).is_some());
        for (index, copy) in ready.iter().enumerate() {
            let memory = backups.memory(copy.slot.slab).expect("a slab that is ready");
            copy.give(&self.streams[index % self.streams.len()], memory)?;
        }
        let prepared = prepare(device, &self.streams, &new, &waiting)?;
        for (slab, memory) in prepared {
            backups.prepared(slab, memory);
        }
        Ok(())
    }

    /// Waits for the copies; from then on the backups hold every page.
    pub(crate) fn finish(self, backups: &mut Backups) -> Result<()> {
        // A wait that was refused says nothing about the copies: they are asked about once more.
        let wait = |stream: &Stream| stream.synchronize().or_else(|_| stream.synchronize());
        if let Err(error) = self.streams.iter().try_for_each(wait) {
            self.forget(backups);
            return Err(error.into());
        }
        for page in self.changed {
            let saved = Saved { digest: page.digest, place: Place::Slot(page.slot) };
            backups.pages(page.room).insert(page.offset, saved);
        }
        Ok(())
    }

    /// Gives the places back. The copies are done first, or memory stays until they are.
    pub(crate) fn forget(self, backups: &mut Backups) {
        drop(self.streams);
        for page in self.changed.iter().filter(|page| page.slot != NOWHERE) {
            backups.give(Place::Slot(page.slot));
        }
        backups.shrink();
    }
}

/// A page that has no slot yet.
const NOWHERE: Slot = Slot { slab: u32::MAX, page: u32::MAX };

fn digests(stream: &Stream, parts: &[ToSave<'_>]) -> Result<Vec<Vec<Digest>>> {
    let keys = Keys::of_this_process();
    let ask = |part: &ToSave<'_>| stream.digest_ranges(part.reservation, part.pages, keys);
    let pending: Vec<_> = parts.iter().map(ask).collect::<Result<_, _>>()?;
    Ok(pending.into_iter().map(|pending| pending.wait()).collect::<Result<_, _>>()?)
}

// What is saved already stays; what is dead is forgotten; what changed keeps its place.
fn sort_out<'a>(
    backups: &mut Backups,
    parts: &[ToSave<'a>],
    digests: &[Vec<Digest>],
) -> (Tally, Vec<Changed<'a>>) {
    let zero = zero_digest();
    let (mut tally, mut changed) = (Tally::default(), Vec::new());
    for (part, digests) in parts.iter().zip(digests) {
        let offsets = part.pages.iter().flat_map(|run| run.clone().step_by(PAGE as usize));
        let mut before = std::mem::take(backups.pages(part.room));
        let mut after = crate::backup::Pages::new();
        for (offset, digest) in offsets.zip(digests.iter().copied()) {
            match before.remove(&offset) {
                Some(saved) if saved.digest == digest => {
                    tally.unchanged += Bytes(PAGE);
                    after.insert(offset, saved);
                }
                saved if digest == zero => {
                    tally.zero += Bytes(PAGE);
                    saved.into_iter().for_each(|saved| backups.give(saved.place));
                    after.insert(offset, Saved { digest, place: Place::Zero });
                }
                saved => {
                    let slot = match saved.map(|saved| saved.place) {
                        Some(Place::Slot(slot)) => slot,
                        _ => NOWHERE,
                    };
                    tally.copied += Bytes(PAGE);
                    let ToSave { room, reservation, .. } = *part;
                    changed.push(Changed { room, reservation, offset, digest, slot });
                }
            }
        }
        before.into_values().for_each(|dead| backups.give(dead.place));
        *backups.pages(part.room) = after;
    }
    (tally, changed)
}

/// The digest of a page of zeros.
fn zero_digest() -> Digest {
    static ZERO: std::sync::LazyLock<Digest> =
        std::sync::LazyLock::new(|| Keys::of_this_process().digest(&vec![0; PAGE as usize]));
    *ZERO
}

fn ask_for(policy: &Policy, held: Bytes, missing: Bytes) -> Result<()> {
    if let Some(most) = policy.backup_most
        && held + missing > most
    {
        return Err(Error::BackupLimit { needed: held + missing, most });
    }
    if missing > Bytes::ZERO {
        host_room::ask_for(missing)?;
    }
    Ok(())
}

fn copies<'a>(changed: &[Changed<'a>]) -> Vec<Copy<'a>> {
    let mut copies: Vec<Copy<'a>> = Vec::new();
    for page in changed {
        if let Some(last) = copies.last_mut()
            && std::ptr::eq(last.reservation, page.reservation)
            && last.offset + last.size.0 == page.offset
            && last.slot.slab == page.slot.slab
            && last.slot.offset() + last.size == page.slot.offset()
        {
            last.size += Bytes(PAGE);
            continue;
        }
        let Changed { reservation, offset, slot, .. } = *page;
        copies.push(Copy { reservation, offset, slot, size: Bytes(PAGE) });
    }
    copies
}

impl Copy<'_> {
    fn give(&self, stream: &Stream, to: &Arc<HostMemory>) -> lowtide_device::Result<()> {
        let from = (self.reservation, Bytes(self.offset));
        stream.copy_out(from, (to, self.slot.offset()), self.size)
    }
}

// Each thread takes a slab, makes it ready and gives the copies into it, until none is left.
fn prepare(
    device: &Device,
    streams: &[Stream],
    new: &[(u32, Bytes)],
    copies: &[Copy<'_>],
) -> Result<Vec<(u32, Arc<HostMemory>)>> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let ready = Mutex::new(Vec::new());
    let one = |index: usize| -> lowtide_device::Result<()> {
        let (slab, size) = new[index];
        let memory = device.host_memory_here(size)?;
        let first = copies.partition_point(|copy| copy.slot.slab < slab);
        let own = copies[first..].iter().take_while(|copy| copy.slot.slab == slab);
        for copy in own {
            copy.give(&streams[index % streams.len()], &memory)?;
        }
        ready.lock().unwrap_or_else(PoisonError::into_inner).push((slab, memory));
        Ok(())
    };
    let work = || -> lowtide_device::Result<()> {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= new.len() || stop.load(Relaxed) {
                return Ok(());
            }
            one(index).inspect_err(|_| stop.store(true, Relaxed))?;
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MOST);
    thread::scope(|scope| {
        // Where a thread cannot be had, the others do its share.
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let workers: Vec<_> = (1..threads.min(new.len())).filter_map(start).collect();
        let own = work();
        workers.into_iter().fold(own, |outcome, worker| {
            outcome.and(worker.join().expect("preparing memory does not panic"))
        })
    })?;
    Ok(ready.into_inner().unwrap_or_else(PoisonError::into_inner))
}
