//! Classes, residence, and the part of the time that goes into moving.

use std::time::Duration;

use lowtide_proto::share::Priority;

use super::amounts::Amounts;

/// The wait that raises a call by one class.
pub const AGING: Duration = Duration::from_secs(30);

/// The least residence of a busy program.
const RESIDENCE: Duration = Duration::from_secs(2);
/// The most time of others that a busy program that had less than they catches up before it gives way.
pub(super) const CATCHING_UP: Duration = Duration::from_secs(60);
/// The residence in switches: their part of the time is at most one in so many.
const SWITCHES: u32 = 10;

/// The time over which moving is counted.
const MINUTE: Duration = Duration::from_secs(60);
/// The part of it that may go into switches of busy programs.
const MOVING: Duration = Duration::from_secs(6);

/// A rule that tests take out of the policy, to see that they notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A program that waits may be put to sleep.
    WaitingIsOutside,
    /// A call is granted all that it needs.
    WholeNeeds,
    /// A busy program keeps its memory for a while.
    Residence,
    /// Waiting raises the class.
    Aging,
    /// The processes of one run take turns together.
    Families,
}

/// Returns the class of a call that has waited.
pub(super) fn class(declared: Priority, waited: Duration) -> Priority {
    let steps = waited.as_secs() / AGING.as_secs();
    let at = declared as u64 + steps;
    Priority::ALL.into_iter().find(|class| *class as u64 == at).unwrap_or(Priority::Interactive)
}

/// Returns the time for which a busy program keeps its memory, by the time that its last switch took.
pub(super) fn residence(switch: Duration) -> Duration {
    RESIDENCE.max(switch * SWITCHES)
}

/// The switches of busy programs that were made to give way for their own class or a lower one. Others are not
/// counted: idle programs lose no work, and for a higher class there is no residence that a count could prolong.
#[derive(Debug, Default)]
pub(super) struct Moves(Vec<Move>);

#[derive(Debug)]
struct Move {
    order: u64,
    at: Duration,
    took: Duration,
    on: Amounts,
}

impl Moves {
    /// Records a switch that begins, with the time that it will probably take.
    pub(super) fn begin(&mut self, order: u64, now: Duration, took: Duration, on: Amounts) {
        self.0.retain(|it| it.at + MINUTE > now);
        self.0.push(Move { order, at: now, took, on });
    }

    /// Records the time that a switch took; zero for one that failed.
    pub(super) fn end(&mut self, order: u64, took: Duration) {
        self.0.iter_mut().filter(|it| it.order == order).for_each(|it| it.took = took);
    }

    /// Returns the earliest moment at which another switch on these devices keeps moving within its part of the
    /// last minute. One that is longer than that may begin when the minute before it had none.
    pub(super) fn next(&self, now: Duration, switch: Duration, on: &Amounts) -> Duration {
        let mut last =
            self.0.iter().filter(|it| it.at + MINUTE > now && it.on.meets(on)).peekable();
        let mut moved: Duration = last.clone().map(|it| it.took).sum();
        let mut at = now;
        // In the order of time: each leaves the minute in turn.
        while moved > Duration::ZERO && moved + switch > MOVING {
            let Some(oldest) = last.next() else { break };
            (moved, at) = (moved.saturating_sub(oldest.took), oldest.at + MINUTE);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use lowtide_types::Bytes;

    use super::*;

    #[test]
    fn a_wait_raises_the_class_up_to_the_highest() {
        let after = |seconds| class(Priority::Batch, Duration::from_secs(seconds));
        assert_eq!(
            [after(0), after(29), after(30), after(60), after(600)],
            [
                Priority::Batch,
                Priority::Batch,
                Priority::Normal,
                Priority::Interactive,
                Priority::Interactive
            ]
        );
    }

    #[test]
    fn a_tenth_of_the_last_minute_is_for_moving() {
        let seconds = Duration::from_secs;
        let on = |uuid| Amounts::of([(uuid, Bytes::gib(1))]);
        let mut moves = Moves::default();
        assert_eq!(moves.next(seconds(5), seconds(20), &on("a")), seconds(5), "the first one");
        moves.begin(1, seconds(10), seconds(3), on("a"));
        moves.begin(2, seconds(20), seconds(3), on("a"));
        assert_eq!(moves.next(seconds(30), seconds(3), &on("a")), seconds(70));
        assert_eq!(moves.next(seconds(30), seconds(4), &on("a")), seconds(80), "none is left");
        assert_eq!(moves.next(seconds(30), seconds(4), &on("b")), seconds(30), "elsewhere");
        moves.end(1, seconds(1));
        assert_eq!(moves.next(seconds(30), seconds(2), &on("a")), seconds(30));
    }
}
