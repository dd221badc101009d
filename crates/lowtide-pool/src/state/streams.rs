//! The streams that blocks were freed on, by small numbers that arenas can keep lists for.
//!
//! A stream is known while something freed on it may still be in use; once it has passed all of
//! that, its number goes to the next new one. So a program may make streams for ever.

use std::collections::HashMap;

use crate::pool::fence::StreamId;
use crate::state::blocks::SETTLED;

#[derive(Default)]
pub(crate) struct Streams {
    numbers: HashMap<StreamId, u32>,
    /// The streams by number, from one: zero is [`SETTLED`].
    known: Vec<StreamEntry>,
    spare: Vec<u32>,
    /// The last one asked for: programs mostly stay on one.
    last: Option<(StreamId, u32)>,
    /// More than this are many.
    crowd: usize,
}

/// The number of streams from which on the fence is asked.
const CROWD_LEAST: usize = 64;

struct StreamEntry {
    id: Option<StreamId>,
    /// The number of frees under this number. Goes on when the number changes hands, so
    /// that what was freed earlier always has a lower one.
    frees: u64,
    /// The number of frees whose blocks nothing uses any more, as far as the fence was asked.
    passed: u64,
}

/// A stream as it was at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) number: u32,
    pub(crate) id: StreamId,
    pub(crate) frees: u64,
}

impl Streams {
    /// Returns the number of a stream, given to it if it has none.
    pub(crate) fn number_of(&mut self, id: StreamId) -> u32 {
        if let Some((last, number)) = self.last
            && last == id
        {
            return number;
        }
        let number = match self.numbers.get(&id) {
            Some(number) => *number,
            None => self.admit(id),
        };
        self.last = Some((id, number));
        number
    }

    fn admit(&mut self, id: StreamId) -> u32 {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.known.push(StreamEntry { id: None, frees: 0, passed: 0 });
            self.known.len() as u32
        });
        self.known[number as usize - 1].id = Some(id);
        self.numbers.insert(id, number);
        number
    }

    /// Counts a free and says whose it is.
    pub(crate) fn count_free(&mut self, id: StreamId) -> u32 {
        let number = self.number_of(id);
        self.known[number as usize - 1].frees += 1;
        number
    }

    /// Returns the number of frees under a number.
    pub(crate) fn frees(&self, number: u32) -> u64 {
        if number == SETTLED { 0 } else { self.known[number as usize - 1].frees }
    }

    /// Records that a stream has passed what it was seen with, and keeps its number.
    pub(crate) fn has_passed(&mut self, seen: &Seen) {
        if self.is_known(seen) {
            self.known[seen.number as usize - 1].passed = seen.frees;
        }
    }

    /// Returns whether a stream still has the number that it was seen with.
    pub(crate) fn is_known(&self, seen: &Seen) -> bool {
        self.known[seen.number as usize - 1].id == Some(seen.id)
    }

    /// Returns the number of the frees under a number that were passed. Settled blocks were not freed
    /// under any number.
    pub(crate) fn passed(&self, number: u32) -> u64 {
        if number == SETTLED { 0 } else { self.known[number as usize - 1].passed }
    }

    /// Returns whether there are so many that it is time to ask the fence. True again only when there
    /// are twice as many.
    pub(crate) fn is_crowded(&mut self) -> bool {
        let crowded = self.numbers.len() > self.crowd.max(CROWD_LEAST);
        if crowded {
            self.crowd = self.numbers.len() * 2;
        }
        crowded
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        let numbered = self.known.iter().zip(1..);
        numbered
            .filter_map(|(known, number)| Some(Seen { number, id: known.id?, frees: known.frees }))
            .collect()
    }

    /// Records that a stream has passed what it was seen with: if nothing came after, its number is free.
    pub(crate) fn forget(&mut self, seen: &Seen) {
        let known = &mut self.known[seen.number as usize - 1];
        if known.id == Some(seen.id) && known.frees == seen.frees {
            known.id = None;
            self.numbers.remove(&seen.id);
            self.spare.push(seen.number);
            self.last = None;
            self.crowd = self.numbers.len() * 2;
        }
    }

    #[cfg(test)]
    fn numbers(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_once_its_stream_has_passed() {
        let mut streams = Streams::default();
        for id in 0..10_000 {
            streams.count_free(StreamId(id));
            let seen = streams.seen();
            assert_eq!(seen.len(), 1);
            streams.forget(&seen[0]);
        }
        assert_eq!(streams.numbers(), 1);
    }

    #[test]
    fn a_stream_with_later_frees_is_kept() {
        let mut streams = Streams::default();
        let number = streams.count_free(StreamId(7));
        let seen = streams.seen()[0];
        streams.count_free(StreamId(7));
        streams.forget(&seen);
        assert_eq!(streams.number_of(StreamId(7)), number);
        assert_eq!(streams.frees(number), 2);
    }
}
