//! Locks for pages that streams read and write.
//!
//! On a GPU two streams may use one range at the same time; what is there afterwards is undefined, and
//! nothing else happens. Here streams are threads, and two of them on one range would be a data race,
//! which safe code must not be able to cause. So a stream locks each page while it works on it.

use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::pages::PAGE;

/// Pages share locks by their number. More locks mean fewer streams that wait for each other in vain.
const LOCKS: usize = 256;

/// The locks of all pages of a device and of its host memory.
pub(super) struct PageLocks {
    locks: Box<[RwLock<()>]>,
}

/// Locks that are held, one or none for each page.
#[derive(Default)]
pub(super) struct LockedPages<'a> {
    read: Vec<RwLockReadGuard<'a, ()>>,
    written: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Default for PageLocks {
    fn default() -> PageLocks {
        PageLocks { locks: (0..LOCKS).map(|_| RwLock::default()).collect() }
    }
}

impl PageLocks {
    /// Locks the pages of a range that is read and of one that is written; either may be empty.
    pub(super) fn lock(&self, read: &Range<u64>, written: &Range<u64>) -> LockedPages<'_> {
        let wanted = numbers(written).map(|number| (number, true));
        let mut wanted: Vec<_> =
            wanted.chain(numbers(read).map(|number| (number, false))).collect();
        // In one order, so that two streams never wait for each other; a writer's entry comes first.
        wanted.sort_unstable_by_key(|(number, writes)| (*number, !writes));
        wanted.dedup_by_key(|(number, _)| *number);
        let mut locked = LockedPages::default();
        for (number, writes) in wanted {
            // The locks guard no data of ours, so a panic has left nothing half-done in them.
            let lock = &self.locks[number];
            if writes {
                locked.written.push(lock.write().unwrap_or_else(PoisonError::into_inner));
            } else {
                locked.read.push(lock.read().unwrap_or_else(PoisonError::into_inner));
            }
        }
        locked
    }
}

fn numbers(range: &Range<u64>) -> impl Iterator<Item = usize> {
    let pages = range.start / PAGE.0..range.end.div_ceil(PAGE.0);
    let pages = if range.is_empty() { 0..0 } else { pages };
    pages.map(|page| (page % LOCKS as u64) as usize)
}

/// Cuts work on `size` bytes into pieces that stay within one page of the range that begins at `at`.
/// Yields the offset and the size of each.
pub(super) fn by_page(at: u64, size: usize) -> impl Iterator<Item = (usize, usize)> {
    let (mut done, size) = (0, size as u64);
    std::iter::from_fn(move || {
        let left = PAGE.0 - (at + done) % PAGE.0;
        let piece = left.min(size - done);
        let offset = done;
        done += piece;
        (piece > 0).then_some((offset as usize, piece as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_and_stay_within_a_page() {
        for (at, size) in
            [(0, 0), (5, 1), (PAGE.0 - 1, 2), (7, 3 * PAGE.as_usize()), (PAGE.0, PAGE.as_usize())]
        {
            let mut next = 0;
            for (offset, piece) in by_page(at, size) {
                assert_eq!(offset, next);
                let (first, last) = (at + offset as u64, at + (offset + piece) as u64 - 1);
                assert_eq!(first / PAGE.0, last / PAGE.0, "{at} {size}");
                next += piece;
            }
            assert_eq!(next, size);
        }
    }

    #[test]
    fn a_page_that_is_read_and_written_is_locked_once() {
        let locks = PageLocks::default();
        let both = locks.lock(&(0..PAGE.0), &(0..PAGE.0));
        assert_eq!((both.read.len(), both.written.len()), (0, 1));
        drop(both);
        // More pages than locks are locked at once, too.
        let many = PAGE.0 * (LOCKS as u64 + 3);
        assert_eq!(locks.lock(&(0..many), &(0..0)).read.len(), LOCKS);
    }
}
