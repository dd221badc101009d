//! The calls that wait, and their order.

use std::cmp::Reverse;
use std::time::Duration;

use lowtide_proto::share::{Need, Priority, Wait};

use super::family::{Families, Family, FamilyId};
use super::member::MemberId;
use super::turns::{Rule, class};

/// A call that waits, or that takes what it was granted.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) member: MemberId,
    pub(super) family: FamilyId,
    pub(super) need: Need,
    /// The moment at which it asked first.
    pub(super) since: Duration,
    /// Whether it holds a lease.
    pub(super) is_granted: bool,
    /// The moment from which it may be granted again, after a grant that failed.
    pub(super) retry_at: Duration,
    /// The moment since which it can never have its room, by the numbers.
    pub(super) hopeless_since: Option<Duration>,
    /// The moment since which there has been room for it.
    pub(super) room_since: Option<Duration>,
    /// The moment at which the work ended that gave way for it, and the time of the longest copy since.
    pub(super) moving_since: Option<(Duration, Duration)>,
    /// What its program was told last.
    pub(super) told: Option<Wait>,
}

impl Waiting {
    /// Makes the wait of a call that asks now.
    pub(super) fn new(now: Duration, member: MemberId, family: FamilyId, need: Need) -> Waiting {
        Waiting {
            member,
            family,
            need,
            since: now,
            is_granted: false,
            retry_at: now,
            hopeless_since: None,
            room_since: None,
            moving_since: None,
            told: None,
        }
    }

    /// Returns whether it is the wait of this process and number.
    pub(super) fn is_of(&self, member: MemberId, ticket: u64) -> bool {
        self.member == member && self.need.ticket == ticket
    }

    /// Returns the class that it has by now.
    pub(super) fn class(
        &self,
        now: Duration,
        families: &Families,
        without: Option<Rule>,
    ) -> Priority {
        let declared = families.get(&self.family).map_or(Priority::Batch, |it| it.join.priority);
        if without == Some(Rule::Aging) {
            declared
        } else {
            class(declared, now.saturating_sub(self.since))
        }
    }
}

/// Returns the calls that wait, in the order in which they are served: by class, then by their age.
///
/// A program that ends or captures a graph has the highest class of those that wait: nobody can take its memory
/// until it is done.
pub(super) fn order(
    waits: &[Waiting],
    now: Duration,
    families: &Families,
    without: Option<Rule>,
) -> Vec<(usize, Priority)> {
    let of = |wait: &Waiting| wait.class(now, families, without);
    let highest = waits.iter().map(of).max().unwrap_or_default();
    let is_urgent = |wait: &Waiting| families.get(&wait.family).is_some_and(Family::is_urgent);
    let class = |wait: &Waiting| if is_urgent(wait) { highest } else { of(wait) };
    let waiting = waits.iter().enumerate().filter(|(_, wait)| !wait.is_granted);
    let mut order: Vec<_> = waiting.map(|(index, wait)| (index, class(wait))).collect();
    order.sort_by_key(|(index, class)| {
        let wait = &waits[*index];
        (Reverse(*class), wait.since, wait.member, wait.need.ticket)
    });
    order
}
