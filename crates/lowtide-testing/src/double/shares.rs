//! The exported memory of a machine: which processes hold it, and to which of them it counts.
//!
//! Memory counts once, to the process that exported it. If that process lets it go, or dies, it counts to
//! another process that holds it. Processes are numbers of slots, sets of them are bits. The machine's
//! lock is held for every call.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// As many as 128 GiB in pages of 2 MiB.
const MAX_SHARES: usize = 1 << 16;

/// A part of the machine's file. Only atomics, so that a shared reference to it is sound.
#[repr(C)]
pub(super) struct Shares {
    /// How many entries were ever used, and the number of entries made.
    used: AtomicU64,
    made: AtomicU64,
    entries: [Share; MAX_SHARES],
}

#[repr(C)]
struct Share {
    serial: AtomicU64,
    holders: AtomicU64,
    owner: AtomicU64,
    device: AtomicU64,
    bytes: AtomicU64,
}

/// The name of exported memory: its entry, and a number that no other has or had on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct ShareId {
    pub(super) entry: u64,
    pub(super) serial: u64,
}

/// Memory that counts to another process from now on, or to none.
pub(super) struct Moved {
    pub(super) from: usize,
    pub(super) to: Option<usize>,
    pub(super) device: usize,
    pub(super) bytes: u64,
}

impl Shares {
    /// Enters memory that counts to a process; `None` where no entry is left.
    pub(super) fn add(&self, owner: usize, device: usize, bytes: u64) -> Option<ShareId> {
        let made = self.made.fetch_add(1, SeqCst);
        // Behind the one made last, which is most probably free.
        let mut candidates = (0..MAX_SHARES).map(|step| (made as usize + step) % MAX_SHARES);
        let entry = candidates.find(|entry| self.entries[*entry].holders.load(SeqCst) == 0)?;
        self.used.fetch_max(entry as u64 + 1, SeqCst);
        let (share, serial) =
            (&self.entries[entry], (u64::from(std::process::id()) << 32) | (made + 1));
        share.serial.store(serial, SeqCst);
        share.owner.store(owner as u64, SeqCst);
        share.device.store(device as u64, SeqCst);
        share.bytes.store(bytes, SeqCst);
        share.holders.store(1 << owner, SeqCst);
        Some(ShareId { entry: entry as u64, serial })
    }

    fn get(&self, id: ShareId) -> Option<&Share> {
        let share = self.entries.get(usize::try_from(id.entry).ok()?)?;
        (share.serial.load(SeqCst) == id.serial).then_some(share)
    }

    /// Returns whether a process holds memory.
    pub(super) fn is_held_by(&self, id: ShareId, holder: usize) -> bool {
        self.get(id).is_some_and(|share| share.holders.load(SeqCst) >> holder & 1 == 1)
    }

    /// Enters another holder; false if no process holds the memory any more.
    pub(super) fn join(&self, id: ShareId, holder: usize) -> bool {
        let held = self.get(id).filter(|share| share.holders.load(SeqCst) != 0);
        held.is_some_and(|share| share.holders.fetch_or(1 << holder, SeqCst) != 0)
    }

    /// Takes processes off as holders. Returns whether none is left, and who counts from now on.
    pub(super) fn leave(&self, id: ShareId, gone: u64) -> (bool, Option<Moved>) {
        self.get(id).map_or((true, None), |share| share.leave(gone))
    }

    /// Takes dead processes off as holders of everything.
    pub(super) fn bury(&self, dead: u64) -> impl Iterator<Item = Moved> {
        let used = self.used.load(SeqCst) as usize;
        self.entries[..used].iter().filter_map(move |share| share.leave(dead).1)
    }
}

impl Share {
    fn leave(&self, gone: u64) -> (bool, Option<Moved>) {
        let held = self.holders.fetch_and(!gone, SeqCst);
        let (left, from) = (held & !gone, self.owner.load(SeqCst) as usize);
        if held & gone & 1 << from == 0 {
            return (left == 0, None);
        }
        let to = (left != 0).then(|| left.trailing_zeros() as usize);
        self.owner.store(to.unwrap_or_default() as u64, SeqCst);
        let (device, bytes) = (self.device.load(SeqCst) as usize, self.bytes.load(SeqCst));
        (left == 0, Some(Moved { from, to, device, bytes }))
    }
}
