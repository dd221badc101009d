//! The pages that a step reads ahead of time, and how memory is taken from under it.

use std::ops::Range;

use crate::lock::sync::{Condvar, Mutex, lock, wait};
use crate::state::arenas::ArenaId;

/// The pages that a step reads. A thread that unmaps such
/// a page waits: no page goes while a copy reads it, and no page is kept for longer than one read.
#[derive(Default)]
pub(crate) struct PageReader {
    /// The read that is under way, from the first page to the last.
    read: Mutex<Option<(ArenaId, Range<u64>)>>,
    ended: Condvar,
}

/// The most reads of one page by one step: a look, and a copy into the ring. A step looks at no page that was
/// free when it entered the arena.
pub(crate) const READS_MOST: u32 = 2;

impl PageReader {
    /// Begins to read pages of an arena. The read ends when the result is dropped; the work must have been waited
    /// for by then.
    pub(super) fn begin(&self, arena_id: ArenaId, pages: Range<u64>) -> PageRead<'_> {
        *lock(&self.read) = Some((arena_id, pages));
        PageRead(self)
    }

    /// Waits for the end of a read of this range, if one is under way.
    pub(crate) fn wait(&self, arena_id: ArenaId, range: &Range<u64>) {
        let reads = |read: &Option<(ArenaId, Range<u64>)>| {
            read.as_ref().is_some_and(|(other, pages)| {
                *other == arena_id && pages.start < range.end && range.start < pages.end
            })
        };
        let mut read = lock(&self.read);
        while reads(&read) {
            read = wait(&self.ended, read);
        }
    }
}

/// A read that is under way.
pub(super) struct PageRead<'a>(&'a PageReader);

impl Drop for PageRead<'_> {
    fn drop(&mut self) {
        *lock(&self.0.read) = None;
        self.0.ended.notify_all();
    }
}
