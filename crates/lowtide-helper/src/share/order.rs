//! An order to give way, and how far the processes of a program have come with it.
//!
//! The processes of a family stop together before the memory of any of them moves: each ends its work and holds, and
//! goes on only once all hold. Where one cannot, the others go on with their work, and nothing has moved.

use std::collections::BTreeMap;
use std::time::Duration;

use lowtide_proto::share::ToAgent;

use super::amounts::Amounts;
use super::member::MemberId;

/// An order that a program carries out.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) given: Duration,
    /// The call that it makes room for.
    pub(super) call: (MemberId, u64),
    /// The time for which that call has waited while the program worked.
    pub(super) served: Duration,
    /// The memory that it frees.
    pub(super) gain: Amounts,
    /// What could be granted when the order was given, minus what was granted since. What is free beyond that may
    /// be memory of this order.
    pub(super) left: Amounts,
    pub(super) parts: BTreeMap<MemberId, Part>,
    /// Whether the processes that hold leave; `None` until that is known.
    pub(super) leaves: Option<bool>,
    /// The first reason for which one does not give way.
    pub(super) refused: Option<String>,
}

/// How far a process has come with an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Told,
    Held,
    /// With the memory that left, and the time that it took.
    Gave(Amounts, Duration),
    /// With the time for which it was held up.
    Refused(Duration),
}

/// What came of an order.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) freed: Amounts,
    pub(super) took: Duration,
    pub(super) tried: Duration,
}

impl Order {
    /// Takes note of how far a process has come.
    pub(super) fn note(&mut self, id: MemberId, part: Part) {
        self.parts.entry(id).and_modify(|before| *before = part);
    }

    /// Returns what to tell the processes that hold, if that is known by now.
    pub(super) fn next(&mut self) -> Vec<(MemberId, ToAgent)> {
        if self.leaves.is_none() {
            let all_hold = self.parts.values().all(|part| *part == Part::Held);
            self.leaves =
                if self.refused.is_some() { Some(false) } else { all_hold.then_some(true) };
        }
        let Some(leaves) = self.leaves else { return Vec::new() };
        let order = self.number;
        let holding = self.parts.iter_mut().filter(|(_, part)| **part == Part::Held);
        let tell = |(id, part): (&MemberId, &mut Part)| {
            *part = Part::Told;
            (*id, if leaves { ToAgent::Leave { order } } else { ToAgent::Stay { order } })
        };
        holding.map(tell).collect()
    }

    /// Returns the processes whose memory has left by it.
    pub(super) fn left_by(&self) -> Vec<MemberId> {
        let left = |part: &Part| matches!(part, Part::Gave(freed, _) if freed.total() > 0);
        self.parts.iter().filter(|(_, part)| left(part)).map(|(id, _)| *id).collect()
    }

    /// Returns what came of it; `None` while a process is at it.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        let mut all = Outcome::default();
        for part in self.parts.values() {
            match part {
                Part::Told | Part::Held => return None,
                Part::Gave(freed, took) => {
                    all.freed.add(freed);
                    all.took = all.took.max(*took);
                }
                Part::Refused(tried) => all.tried = all.tried.max(*tried),
            }
        }
        Some(all)
    }
}
