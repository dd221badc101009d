//! Who gives way so that one call has its room.

use std::cmp::Reverse;
use std::time::Duration;

use lowtide_proto::share::{Priority, Way};

use super::amounts::Amounts;
use super::family::{Family, FamilyId};

/// A program that can be made to give way.
pub(super) struct Candidate<'a> {
    pub(super) id: FamilyId,
    pub(super) family: &'a Family,
    /// The time for which it has been idle or has waited itself; `None` for a busy one.
    pub(super) idle: Option<Duration>,
    /// The moment from which a busy one can be told to sleep.
    pub(super) from: Duration,
}

/// A program of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Giver {
    pub(super) id: FamilyId,
    pub(super) way: Way,
    /// The moment from which it can be told to.
    pub(super) from: Duration,
    /// Whether it is busy, and what it does will wait.
    pub(super) is_busy: bool,
    pub(super) gain: Amounts,
}

/// Returns the programs that give way for what is missing, or `None` if all of them together have too little.
///
/// They are taken in the order in which it costs least, and then those that are not needed any more are left out:
/// one program that frees enough spares three small ones before it.
pub(super) fn plan(missing: &Amounts, now: Duration, all: &[Candidate]) -> Option<Vec<Giver>> {
    let missing = missing.positive();
    let mut givers: Vec<Giver> = Vec::new();
    for (one, way) in steps(&missing, now, all) {
        if covers(&givers, &missing) {
            break;
        }
        let gain = one.family.gain(way);
        if !gain.meets(&missing) {
            continue;
        }
        let is_busy = one.idle.is_none();
        let from = if is_busy { one.from } else { now };
        let giver = Giver { id: one.id, way, from, is_busy, gain };
        givers.retain(|it| it.id != one.id);
        givers.push(giver);
    }
    if !covers(&givers, &missing) {
        return None;
    }
    for at in (0..givers.len()).rev() {
        let spared = givers.remove(at);
        if !covers(&givers, &missing) {
            givers.insert(at, spared);
        }
    }
    Some(givers)
}

fn covers(givers: &[Giver], missing: &Amounts) -> bool {
    Amounts::sum(givers.iter().map(|giver| giver.gain.clone())).covers(missing)
}

/// Returns what each candidate can do, in the order of its price.
fn steps<'a>(
    missing: &Amounts,
    now: Duration,
    all: &'a [Candidate<'a>],
) -> Vec<(&'a Candidate<'a>, Way)> {
    let mut idle: Vec<&Candidate> = all.iter().filter(|one| one.idle.is_some()).collect();
    idle.sort_by_key(|one| by_idle_time(one));
    let mut busy: Vec<&Candidate> = all.iter().filter(|one| one.idle.is_none()).collect();
    busy.sort_by_key(|one| by_residence(one, now));

    let mut steps = Vec::new();
    let mut add = |ones: &[&'a Candidate<'a>], way| {
        steps.extend(ones.iter().map(|one| (*one, way)));
    };
    add(&idle, Way::Sleep);
    let without_work = Amounts::sum(idle.iter().map(|one| one.family.gain(Way::Suspend)));
    // Contexts take a second or more to leave. That is better than to hold up work, where it is enough.
    if without_work.covers(missing) {
        add(&idle, Way::Suspend);
    }
    add(&busy, Way::Sleep);
    add(&idle, Way::Suspend);
    add(&busy, Way::Suspend);
    steps
}

/// Sorts the longest idle first, and of those that were idle for about as long the cheapest to bring back.
fn by_idle_time(one: &Candidate) -> (Reverse<u32>, i64, FamilyId) {
    let idle_ms = one.idle.unwrap_or_default().as_millis() as u64;
    let doublings = u64::BITS - idle_ms.leading_zeros();
    (Reverse(doublings), one.family.gain(Way::Sleep).total(), one.id)
}

/// Sorts those first that can be told now, and of them the lowest class and the longest residence.
fn by_residence(one: &Candidate, now: Duration) -> (Duration, Priority, Duration, FamilyId) {
    (one.from.max(now), one.family.join.priority, one.family.since, one.id)
}
