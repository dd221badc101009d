//! Counters and histograms of what a process did, as fixed numbers that its file holds and that add up.
//!
//! The layout only grows at its end: a file of an older version is one whose last numbers are zero.

use std::time::Duration;

use crate::{Bytes, Receipt, RungName, RungOutcome, Verdict, words};

words! {
    /// Something that takes time and whose durations are counted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Act {
        /// A release, by its receipt.
        Release = "release",
        /// A sleep: the rung `sleep` of a receipt, climbed to its end.
        Sleep = "sleep",
        /// A wake that brought memory back.
        Wake = "wake",
        /// A process taken off its devices: the driver's steps.
        Suspend = "suspend",
        /// A process brought back to them.
        Resume = "resume",
        /// Room made for another program, in the middle of work or not.
        GiveWay = "give_way",
        /// A call that waited for room which other programs had.
        Wait = "wait",
    }
}

words! {
    /// Bytes that are summed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Moved {
        /// Freed by releases, as the device's numbers confirm.
        Freed = "freed",
        /// Brought back by wakes.
        Woken = "woken",
    }
}

impl Act {
    /// All of them, in the order of the file.
    pub const ALL: [Act; 7] =
        [Act::Release, Act::Sleep, Act::Wake, Act::Suspend, Act::Resume, Act::GiveWay, Act::Wait];
}

impl Moved {
    /// All of them, in the order of the file.
    pub const ALL: [Moved; 2] = [Moved::Freed, Moved::Woken];
}

/// The upper bounds of a histogram's buckets, in seconds. One more bucket has what took longer.
pub const BOUNDS_S: [f64; 10] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// The first number: `lowtide` and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"lowtide1");
const VERDICTS: usize = 1;
const MOVED: usize = VERDICTS + Verdict::ALL.len();
const ACTS: usize = MOVED + Moved::ALL.len();
/// The buckets, and the sum in nanoseconds.
const PER_ACT: usize = BOUNDS_S.len() + 2;
const SLOTS: usize = ACTS + PER_ACT * Act::ALL.len();

/// Counters and histograms of a process, or of several.
///
/// ```
/// use lowtide_types::{Act, Tally};
///
/// let mut tally = Tally::default();
/// tally.took(Act::Wake, 0.25);
/// let wakes = tally.times(Act::Wake);
/// assert_eq!((wakes.count(), wakes.sum_ns), (1, 250_000_000));
/// assert_eq!(Tally::from_bytes(&tally.to_bytes()), Some(tally));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    slots: [u64; SLOTS],
}

/// The durations of one act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times<'a> {
    /// How many took at most each of [`BOUNDS_S`] and longer than the one before; the last, how many took longer.
    pub buckets: &'a [u64],
    /// The sum, in nanoseconds.
    pub sum_ns: u64,
}

impl Times<'_> {
    /// Returns how many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl Default for Tally {
    fn default() -> Tally {
        let mut slots = [0; SLOTS];
        slots[0] = MAGIC;
        Tally { slots }
    }
}

impl Tally {
    /// The bytes that a tally takes in a file.
    pub const SIZE: usize = SLOTS * size_of::<u64>();

    /// Counts a release: its verdict, its time, what it freed and the sleeps in it.
    pub fn receipt(&mut self, receipt: &Receipt) {
        self.slots[VERDICTS + receipt.verdict as usize] += 1;
        self.took(Act::Release, receipt.took_s);
        let freed = receipt.freed_bytes.and_then(|freed| u64::try_from(freed).ok());
        self.moved(Moved::Freed, Bytes(freed.unwrap_or(0)));
        for rung in &receipt.rungs {
            if rung.rung == RungName::Sleep && rung.outcome == RungOutcome::Done {
                self.took(Act::Sleep, rung.took_s);
            }
        }
    }

    /// Counts an act that took so many seconds.
    pub fn took(&mut self, act: Act, took_s: f64) {
        let of_act = &mut self.slots[start_of(act)..][..PER_ACT];
        of_act[BOUNDS_S.iter().take_while(|bound| took_s > **bound).count()] += 1;
        // Less than zero is zero, as for a clock that was set back.
        let took = Duration::try_from_secs_f64(took_s).unwrap_or_default();
        let sum = &mut of_act[PER_ACT - 1];
        *sum = sum.wrapping_add(took.as_nanos() as u64);
    }

    /// Counts bytes.
    pub fn moved(&mut self, what: Moved, bytes: Bytes) {
        let slot = &mut self.slots[MOVED + what as usize];
        *slot = slot.wrapping_add(bytes.0);
    }

    /// Returns how many releases had this verdict.
    pub fn releases(&self, verdict: Verdict) -> u64 {
        self.slots[VERDICTS + verdict as usize]
    }

    /// Returns the sum of such bytes.
    pub fn bytes(&self, what: Moved) -> Bytes {
        Bytes(self.slots[MOVED + what as usize])
    }

    /// Returns the durations of an act.
    pub fn times(&self, act: Act) -> Times<'_> {
        let of_act = &self.slots[start_of(act)..][..PER_ACT];
        Times { buckets: &of_act[..PER_ACT - 1], sum_ns: of_act[PER_ACT - 1] }
    }

    /// Adds what another process did.
    pub fn add(&mut self, other: &Tally) {
        for (own, other) in self.slots.iter_mut().zip(other.slots).skip(VERDICTS) {
            *own = own.wrapping_add(other);
        }
    }

    /// Returns the bytes of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.slots.iter().flat_map(|slot| slot.to_ne_bytes()).collect()
    }

    /// Reads the bytes of a file; what is missing at the end is zero, and no byte at all is an empty tally. `None` if
    /// the bytes are something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Tally> {
        let mut tally = Tally::default();
        for (slot, bytes) in tally.slots.iter_mut().zip(bytes.as_chunks().0) {
            *slot = u64::from_ne_bytes(*bytes);
        }
        (tally.slots[0] == MAGIC).then_some(tally)
    }
}

fn start_of(act: Act) -> usize {
    ACTS + PER_ACT * act as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reading;

    #[test]
    fn every_word_has_a_place_of_its_own() {
        for (place, act) in Act::ALL.into_iter().enumerate() {
            assert_eq!(act as usize, place);
        }
        for (place, verdict) in Verdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, place);
        }
        let mut tally = Tally::default();
        for act in Act::ALL {
            for (number, bound) in BOUNDS_S.iter().enumerate() {
                tally.took(act, *bound);
                assert_eq!(tally.times(act).buckets[number], 1, "{act}: {bound} is in its bucket");
            }
            tally.took(act, 301.0);
            assert_eq!(tally.times(act).buckets, [1; 11]);
        }
        for what in Moved::ALL {
            tally.moved(what, Bytes(7));
        }
        assert!(tally.slots[MOVED..].iter().all(|slot| *slot > 0), "{tally:?}");
        assert_eq!(&tally.slots[VERDICTS..MOVED], [0; Verdict::ALL.len()]);
    }

    #[test]
    fn tallies_add_up_and_survive_their_file() {
        let mut one = Tally::default();
        let nothing = (Reading::default(), Reading::default());
        let mut receipt = Receipt::new("x", None, Verdict::Pinned, nothing);
        receipt.freed_bytes = Some(-5);
        receipt.took_s = 2.5;
        one.receipt(&receipt);
        receipt.freed_bytes = Some(5);
        one.receipt(&receipt);
        let mut two = one.clone();
        two.add(&one);
        assert_eq!((two.releases(Verdict::Pinned), two.bytes(Moved::Freed)), (4, Bytes(10)));
        assert_eq!(two.times(Act::Release).sum_ns, 10_000_000_000);
        assert_eq!(two.times(Act::Sleep).count(), 0);
        assert_eq!(Tally::from_bytes(&two.to_bytes()), Some(two));
        assert_eq!(one.to_bytes().len(), Tally::SIZE);
        assert_eq!(Tally::from_bytes(&[]), Some(Tally::default()), "made and not written yet");
        assert_eq!(Tally::from_bytes(&[7; 64]), None);
    }
}
