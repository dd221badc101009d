//! The verdict: one word, decided by the device's own numbers.

use lowtide_types::{RungName, RungOutcome, RungReceipt, Verdict};

/// What a verdict is decided by.
pub(crate) struct Evidence<'a> {
    pub(crate) reached: Reached,
    /// The memory that was freed; `None` where the device could not be asked.
    pub(crate) freed: Option<i64>,
    /// Differences up to this size mean nothing.
    pub(crate) noise: i64,
    /// Whether a reference holds memory that should be gone.
    pub(crate) is_held: bool,
    /// Whether a reference holds any memory.
    pub(crate) is_in_use: bool,
    /// Whether the caller stopped the release before its end.
    pub(crate) is_stopped: bool,
    pub(crate) rungs: &'a [RungReceipt],
}

/// Whether there is a target, and whether it is met.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    NoTarget,
    Met,
    Missed,
    /// The number or the floor that decides is unknown.
    Unknown,
}

pub(crate) fn judge(evidence: &Evidence<'_>) -> Verdict {
    let Some(freed) = evidence.freed else { return Verdict::Unverified };
    let has_freed = freed > evidence.noise;
    match evidence.reached {
        Reached::Unknown => return Verdict::Unverified,
        Reached::Met => return Verdict::Released,
        _ if evidence.is_stopped && !has_freed => return Verdict::Busy,
        _ if evidence.is_held => return Verdict::Pinned,
        Reached::NoTarget if has_freed => return Verdict::Released,
        _ if evidence.is_in_use => return Verdict::Pinned,
        Reached::Missed if has_freed => return Verdict::Partial,
        _ => {}
    }
    let mut climbed =
        evidence.rungs.iter().filter(|rung| !matches!(rung.outcome, RungOutcome::Skipped { .. }));
    // Quiesce frees nothing, so it proves nothing about the others.
    let did =
        |rung: &RungReceipt| rung.outcome == RungOutcome::Done && rung.rung != RungName::Quiesce;
    let any_failed = climbed.clone().any(|rung| rung.outcome != RungOutcome::Done);
    if any_failed && !climbed.any(did) { Verdict::Failed } else { Verdict::NoEffect }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn evidence(reached: Reached, freed: i64) -> Evidence<'static> {
        Evidence {
            reached,
            freed: Some(freed),
            noise: 4,
            is_held: false,
            is_in_use: false,
            is_stopped: false,
            rungs: &[],
        }
    }

    #[test]
    fn the_number_decides_and_noise_is_no_number() {
        let of = |reached, freed| judge(&evidence(reached, freed));
        assert_eq!(of(Reached::NoTarget, 5), Verdict::Released);
        assert_eq!(of(Reached::NoTarget, 4), Verdict::NoEffect);
        assert_eq!(of(Reached::Missed, 5), Verdict::Partial);
        assert_eq!(of(Reached::Met, 0), Verdict::Released);
        assert_eq!(of(Reached::Unknown, 5), Verdict::Unverified);
        let unread = Evidence { freed: None, ..evidence(Reached::Met, 0) };
        assert_eq!(judge(&unread), Verdict::Unverified);
    }

    #[test]
    fn a_release_that_was_stopped_is_partial_or_busy_and_never_in_vain() {
        let stopped = |reached, freed| Evidence { is_stopped: true, ..evidence(reached, freed) };
        assert_eq!(judge(&stopped(Reached::Missed, 5)), Verdict::Partial);
        assert_eq!(judge(&stopped(Reached::Missed, 0)), Verdict::Busy);
        assert_eq!(judge(&stopped(Reached::Met, 0)), Verdict::Released);
        let held = Evidence { is_in_use: true, ..stopped(Reached::Missed, 0) };
        assert_eq!(judge(&held), Verdict::Busy, "nothing was tried");
    }
}
