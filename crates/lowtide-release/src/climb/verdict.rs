//! The verdict: one word, decided by the claim of a release and the device's own numbers.
//!
//! `released` means that the claim holds: the device's number fell by it, and nothing of it is alive.
//! Everything else is a weaker word.

use lowtide_types::{Claim, ClaimBasis, Reading, RungName, RungOutcome, RungReceipt, Verdict};

/// What a verdict is decided by.
pub(crate) struct Evidence<'a> {
    pub(crate) claim: Claim,
    /// Whether the target is met; `None` without a target.
    pub(crate) reached: Option<Reached>,
    /// The memory that was freed; `None` where the device could not be asked.
    pub(crate) freed: Option<i64>,
    /// A claim that is missed by no more than this is met: the device's number cannot show less.
    pub(crate) tolerance: i64,
    pub(crate) held: Held,
    /// Whether only the whole device's number exists, and others moved it.
    pub(crate) is_blurred: bool,
    /// Whether the caller stopped the release before its end.
    pub(crate) is_stopped: bool,
    pub(crate) rungs: &'a [RungReceipt],
}

/// The memory that references hold afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    None,
    /// Memory that this release did not drop.
    Other,
    /// Memory of owners that this release or an earlier one dropped. A target can be met all the same: what
    /// is held may sleep.
    Dropped,
    /// Memory of the objects that the caller asked to free.
    Asked,
}

/// Whether a target is met.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    Met,
    Missed,
    /// The number or the floor that decides is unknown.
    Unknown,
}

pub(crate) fn judge(evidence: &Evidence<'_>) -> Verdict {
    let Some(freed) = evidence.freed else { return Verdict::Unverified };
    let has_freed = freed > evidence.tolerance;
    let is_met = match evidence.reached {
        Some(Reached::Unknown) => return Verdict::Unverified,
        Some(reached) => reached == Reached::Met,
        None => freed >= evidence.claim.bytes.0.cast_signed() - evidence.tolerance,
    };
    if is_met { judge_met(evidence, has_freed) } else { judge_missed(evidence, has_freed) }
}

fn judge_met(evidence: &Evidence<'_>, has_freed: bool) -> Verdict {
    match evidence.claim.basis {
        _ if evidence.held == Held::Asked => Verdict::Pinned,
        // A target is a number of the device, whoever moved it and whoever holds what sleeps.
        ClaimBasis::Target => Verdict::Released,
        _ if evidence.held == Held::Dropped => Verdict::Pinned,
        _ if evidence.is_blurred => Verdict::Unverified,
        ClaimBasis::Level => Verdict::Released,
        _ if has_freed => Verdict::Released,
        // The claim is less than the number can show.
        _ if evidence.claim.bytes.0 > 0 => Verdict::Unverified,
        // Nobody had anything, so nothing was proved.
        ClaimBasis::Owned => in_vain(evidence.rungs),
        _ => Verdict::Released,
    }
}

fn judge_missed(evidence: &Evidence<'_>, has_freed: bool) -> Verdict {
    match has_freed {
        false if evidence.is_stopped => Verdict::Busy,
        _ if matches!(evidence.held, Held::Dropped | Held::Asked) => Verdict::Pinned,
        _ if evidence.is_blurred => Verdict::Unverified,
        true => Verdict::Partial,
        false if evidence.held == Held::Other => Verdict::Pinned,
        false => in_vain(evidence.rungs),
    }
}

/// Whether only the whole device's number exists, and others moved it: it changed by something else
/// than the allocators gave back.
pub(crate) fn is_blurred(before: &Reading, after: &Reading, tolerance: i64) -> bool {
    let (None, None) = (before.own, after.own) else {
        return before.own.is_none() != after.own.is_none();
    };
    // Without allocators there is nothing to compare with.
    if before.reserved.0 == 0 && after.reserved.0 == 0 {
        return false;
    }
    let given_back = before.reserved.0.cast_signed() - after.reserved.0.cast_signed();
    after.freed_since(before).is_some_and(|freed| (freed - given_back).abs() > tolerance)
}

/// Nothing was freed: `failed` if every rung that applied failed.
fn in_vain(rungs: &[RungReceipt]) -> Verdict {
    let mut climbed =
        rungs.iter().filter(|rung| !matches!(rung.outcome, RungOutcome::Skipped { .. }));
    // Quiesce frees nothing, so it proves nothing about the others.
    let did =
        |rung: &RungReceipt| rung.outcome == RungOutcome::Done && rung.rung != RungName::Quiesce;
    let any_failed = climbed.clone().any(|rung| rung.outcome != RungOutcome::Done);
    if any_failed && !climbed.any(did) { Verdict::Failed } else { Verdict::NoEffect }
}

#[cfg(test)]
mod tests {
    use lowtide_types::Bytes;

    use super::*;

    fn evidence(basis: ClaimBasis, claimed: u64, freed: i64) -> Evidence<'static> {
        Evidence {
            claim: Claim::new(basis, Bytes(claimed)),
            reached: None,
            freed: Some(freed),
            tolerance: 4,
            held: Held::None,
            is_blurred: false,
            is_stopped: false,
            rungs: &[],
        }
    }

    fn target(reached: Reached, freed: i64) -> Evidence<'static> {
        Evidence { reached: Some(reached), ..evidence(ClaimBasis::Target, 100, freed) }
    }

    #[test]
    fn released_means_that_the_number_fell_by_the_claim_less_noise() {
        let of = |claimed, freed| judge(&evidence(ClaimBasis::Owned, claimed, freed));
        assert_eq!(of(80, 80), Verdict::Released);
        assert_eq!(of(80, 76), Verdict::Released, "noise is no number");
        assert_eq!(of(80, 75), Verdict::Partial);
        assert_eq!(of(80, 32), Verdict::Partial, "48 of 80 are left");
        assert_eq!(of(80, 4), Verdict::NoEffect);
        assert_eq!(of(4, 4), Verdict::Unverified, "the number cannot show so little");
        assert_eq!(of(6, 3), Verdict::Unverified);
        assert_eq!(of(6, 6), Verdict::Released);
        assert_eq!(of(80, -50), Verdict::NoEffect);
        let unread = Evidence { freed: None, ..evidence(ClaimBasis::Owned, 0, 0) };
        assert_eq!(judge(&unread), Verdict::Unverified);
    }

    #[test]
    fn nothing_to_do_is_a_success_for_a_cache_and_no_proof_for_an_owner() {
        for basis in [ClaimBasis::Cached, ClaimBasis::Level] {
            assert_eq!(judge(&evidence(basis, 0, 0)), Verdict::Released);
        }
        assert_eq!(judge(&evidence(ClaimBasis::Owned, 0, 0)), Verdict::NoEffect);
        assert_eq!(judge(&evidence(ClaimBasis::Owned, 0, 9)), Verdict::Released);
    }

    #[test]
    fn what_is_alive_is_pinned_even_if_the_number_fell() {
        for held in [Held::Dropped, Held::Asked] {
            let held = |freed| Evidence { held, ..evidence(ClaimBasis::Owned, 80, freed) };
            assert_eq!(judge(&held(80)), Verdict::Pinned);
            assert_eq!(judge(&held(10)), Verdict::Pinned);
        }
        let met = Evidence { held: Held::Asked, ..target(Reached::Met, 0) };
        assert_eq!(judge(&met), Verdict::Pinned, "a target that was met already proves nothing");
        let used = Evidence { held: Held::Other, ..evidence(ClaimBasis::Level, 80, 0) };
        assert_eq!(judge(&used), Verdict::Pinned);
    }

    #[test]
    fn a_target_decides_by_itself() {
        assert_eq!(judge(&target(Reached::Met, 0)), Verdict::Released);
        assert_eq!(judge(&target(Reached::Missed, 5)), Verdict::Partial);
        assert_eq!(judge(&target(Reached::Missed, 0)), Verdict::NoEffect);
        assert_eq!(judge(&target(Reached::Unknown, 500)), Verdict::Unverified);
        let dropped = |reached, freed| Evidence { held: Held::Dropped, ..target(reached, freed) };
        assert_eq!(judge(&dropped(Reached::Met, 100)), Verdict::Released, "what is held sleeps");
        assert_eq!(judge(&dropped(Reached::Missed, 5)), Verdict::Pinned);
    }

    #[test]
    fn a_number_that_others_moved_proves_nothing() {
        let reading = |driver, reserved| Reading {
            driver: Some(Bytes(driver)),
            reserved: Bytes(reserved),
            ..Reading::default()
        };
        assert!(!is_blurred(&reading(900, 80), &reading(820, 0), 4), "they agree");
        assert!(is_blurred(&reading(900, 80), &reading(500, 0), 4), "a neighbour left");
        assert!(is_blurred(&reading(900, 80), &reading(900, 0), 4), "a neighbour came");
        assert!(!is_blurred(&reading(900, 0), &reading(500, 0), 4), "nothing to compare with");
        let told = |driver| Reading { own: Some(Bytes(driver)), ..reading(900, 0) };
        assert!(!is_blurred(&told(80), &told(0), 4), "this process's number is known");
        assert!(is_blurred(&told(80), &reading(820, 0), 4), "and it was not afterwards");
        let blurred =
            |freed| Evidence { is_blurred: true, ..evidence(ClaimBasis::Owned, 80, freed) };
        assert_eq!(judge(&blurred(80)), Verdict::Unverified);
        assert_eq!(judge(&blurred(0)), Verdict::Unverified);
    }

    #[test]
    fn a_release_that_was_stopped_is_partial_or_busy_and_never_in_vain() {
        let stopped = |reached, freed| Evidence { is_stopped: true, ..target(reached, freed) };
        assert_eq!(judge(&stopped(Reached::Missed, 5)), Verdict::Partial);
        assert_eq!(judge(&stopped(Reached::Missed, 0)), Verdict::Busy);
        assert_eq!(judge(&stopped(Reached::Met, 0)), Verdict::Released);
        let held = Evidence { held: Held::Other, ..stopped(Reached::Missed, 0) };
        assert_eq!(judge(&held), Verdict::Busy, "nothing was tried");
    }
}
