//! A turn: the time in which some tags fall asleep or wake.
//!
//! While it lives, its tags are turning: nobody allocates in them, nobody moves their chunks, and
//! what is freed only rests. So the driver's part is done without the lock. Where the turn ends
//! without having said otherwise, its tags are as they were.

use std::ops::Range;

use lowtide_device::{Bytes, Chunk, Reservation};

use crate::backup::Backups;
use crate::books::{Books, rooms_of};
use crate::carry::Carriers;
use crate::tags::{Phase, Scope, SleepPolicy, Tag};
use crate::{Pool, Result};

pub(crate) struct Turn<'a> {
    pool: &'a Pool,
    pub(crate) tags: Vec<Turning>,
    pub(crate) backups: Backups,
    pub(crate) carriers: Option<Carriers>,
}

/// A tag in its turn.
pub(crate) struct Turning {
    pub(crate) tag: Tag,
    pub(crate) policy: SleepPolicy,
    /// What it will be when the turn ends.
    pub(crate) becomes: Phase,
}

impl Turning {
    pub(crate) fn rooms(&self) -> std::ops::Range<usize> {
        rooms_of(self.tag)
    }
}

/// Does what the device may refuse, and once more if it does: one refusal says little, and a turn
/// that is undone costs more than a second try.
pub(crate) fn twice<T, E>(mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    work().or_else(|_| work())
}

/// Takes one chunk from its place.
pub(crate) fn unmap(
    reservation: &Reservation,
    range: &Range<u64>,
) -> lowtide_device::Result<Chunk> {
    let (at, size) = (Bytes(range.start), Bytes(range.end - range.start));
    let taken = twice(|| reservation.unmap(at, size))?;
    Ok(taken.into_iter().next().expect("one chunk is mapped there").1)
}

impl Pool {
    /// Begins a turn for the tags of a scope that are in this phase; `None` where there are none.
    /// Waits for a turn that is under way, and for plans at the driver.
    pub(crate) fn begin_turn(&self, scope: Scope<'_>, from: Phase) -> Result<Option<Turn<'_>>> {
        let mut books = self.books();
        while books.turning {
            books = self.wait(books);
        }
        let tags = books.tags.of(scope)?.into_iter().filter_map(|tag| {
            let known = &books.tags[tag];
            let turns = known.phase == from && known.policy != SleepPolicy::Keep;
            turns.then_some(Turning { tag, policy: known.policy, becomes: from })
        });
        let tags: Vec<Turning> = tags.collect();
        if tags.is_empty() {
            return Ok(None);
        }
        books.turning = true;
        for turning in &tags {
            books.tags[turning.tag].phase = Phase::Turning;
        }
        books.count_asleep();
        while tags.iter().any(|turning| books.tags[turning.tag].jobs > 0) {
            books = self.wait(books);
        }
        for room in tags.iter().flat_map(Turning::rooms) {
            books.clear(room, from == Phase::Asleep);
        }
        let (backups, carriers) = (std::mem::take(&mut books.backups), books.carriers.take());
        Ok(Some(Turn { pool: self, tags, backups, carriers }))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut books = self.pool.books();
        for turning in &self.tags {
            books.tags[turning.tag].phase = turning.becomes;
        }
        // Of all tags: others' backups may have made room.
        for (number, known) in books.tags.known.iter_mut().enumerate() {
            let rooms = rooms_of(Tag::of_number(number));
            known.backup = rooms.map(|room| self.backups.used_by(room)).sum();
        }
        books.backups = std::mem::take(&mut self.backups);
        books.carriers = self.carriers.take();
        books.turning = false;
        books.count_asleep();
        books.count_physical();
        books.count_backups();
        drop(books);
        self.pool.notify();
    }
}

impl Books {
    fn count_asleep(&mut self) {
        let asleep = self.tags.known.iter().filter(|known| known.phase == Phase::Asleep);
        self.counts.asleep = asleep.map(|known| known.live).sum();
    }

    fn count_backups(&mut self) {
        self.counts.backup = self.tags.known.iter().map(|known| known.backup).sum::<Bytes>();
        self.counts.host = self.backups.held();
    }
}
