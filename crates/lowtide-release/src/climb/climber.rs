//! The climber: climbs a ladder rung by rung, each on its own, with a reading after each, and writes
//! the receipt from those readings.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lowtide_types::{
    Claim, Reading, Receipt, RungName, RungOutcome, RungReceipt, Settling, Verdict,
};

use super::advice::advise;
use super::claims::{claim, hooks_not_run, tolerance};
use super::request::Request;
use super::verdict::{Evidence, Held, Reached, is_blurred, judge};
use crate::callbacks::{Climb, PartName, Ran};
use crate::failure::message;
use crate::readings::{Gauge, Inventory, read_settled};
use crate::rungs::{Climbed, Expectation, Placed, Rung};

/// One climb, and what it needs.
pub(crate) struct Climber<'a> {
    pub(crate) inventory: &'a Arc<Inventory>,
    pub(crate) request: &'a Request,
    pub(crate) climb: &'a Climb,
    pub(crate) replaced: &'a [Replaced],
}

/// A rung that takes the place of the one of the same name, in every ladder.
#[derive(Clone)]
pub(crate) struct Replaced {
    pub(crate) name: RungName,
    pub(crate) rung: Arc<dyn Rung>,
}

/// What has happened so far.
struct Progress {
    rungs: Vec<RungReceipt>,
    last: Reading,
    settling: Settling,
    /// The rung at which the caller stopped the release.
    stopped_at: Option<RungName>,
}

/// Creates the receipt of a release without rungs and holders.
pub(crate) fn receipt(
    inventory: &Inventory,
    request: &Request,
    verdict: Verdict,
    readings: (Reading, Reading),
) -> Receipt {
    let device = inventory.gauge().map(Gauge::id);
    let mut receipt = Receipt::new(&request.name, device, verdict, readings);
    receipt.target = request.to;
    receipt.ledger = inventory.ledger_as_counted();
    receipt
}

/// Creates the receipt of a rung that has done nothing yet.
pub(crate) fn untouched(rung: RungName, attempt: u32, before: Reading) -> RungReceipt {
    RungReceipt {
        rung,
        attempt,
        outcome: RungOutcome::Done,
        touched: Vec::new(),
        skipped: Vec::new(),
        expected_bytes: None,
        before,
        after: before,
        freed_bytes: before.freed_since(&before),
        settling: Settling::Steady,
        took_s: 0.0,
    }
}

impl Progress {
    /// Returns whether a rung was climbed. The collectors were asked before the first, and may have
    /// collected something then.
    fn has_climbed(&self) -> bool {
        self.rungs.iter().any(|rung| !matches!(rung.outcome, RungOutcome::Skipped { .. }))
    }
}

/// Returns whether a rung has found nothing to free. Of rungs that are not ours nothing is assumed.
fn is_idle(name: &RungName, outcome: &RungOutcome, climbed: &Climbed) -> bool {
    [RungName::Collect, RungName::Trim].contains(name)
        && *outcome == RungOutcome::Done
        && climbed.touched.is_empty()
}

impl Climber<'_> {
    /// Climbs, and says what that did.
    pub(crate) fn run(&self) -> Receipt {
        let Climber { inventory, request, .. } = self;
        let (last, settling) = self.read();
        let before = request.done.as_ref().map_or(last, |done| done.before);
        let claim = claim(request, inventory, &before);
        let rungs = request.done.iter().cloned().collect();
        let mut progress = Progress { rungs, last, settling, stopped_at: None };
        self.climb_ladder(&mut progress);
        self.conclude(before, claim, progress)
    }

    /// Climbs nothing, for this reason, and says how things are by a reading.
    pub(crate) fn rest(&self, why: &str, last: Reading) -> Receipt {
        let Climber { inventory, request, .. } = self;
        let claim = claim(request, inventory, &last);
        let skipped = |placed: &Placed| {
            let outcome = RungOutcome::Skipped { why: why.to_owned() };
            RungReceipt { outcome, ..untouched(placed.rung.name(), 1, last) }
        };
        let rungs = request.ladder.rungs().iter().map(skipped).collect();
        let progress = Progress { rungs, last, settling: Settling::Steady, stopped_at: None };
        self.conclude(last, claim, progress)
    }

    /// Writes the receipt.
    fn conclude(&self, before: Reading, claim: Claim, progress: Progress) -> Receipt {
        let Climber { inventory, request, .. } = self;
        let Progress { rungs, last, settling, stopped_at } = progress;

        let mut holders = inventory.owners().holders();
        // A release that drops owners was to free what an earlier one dropped and could not free, too: then the
        // rung finds nothing to drop, and is skipped. To any other release survivors are only named.
        let drops = rungs.iter().any(|rung| rung.rung == RungName::Drop);
        let survivors = request.survivors();
        let held = match (holders.is_empty(), survivors.is_empty()) {
            (_, false) if request.pins() => Held::Asked,
            (false, _) if drops => Held::Dropped,
            (true, true) => Held::None,
            _ => Held::Other,
        };
        holders.extend(survivors);
        let tolerance = tolerance(request, inventory, &last);
        let is_blurred = is_blurred(&before, &last, tolerance);
        let verdict = judge(&Evidence {
            claim,
            reached: request.to.map(|_| match self.is_met(&last) {
                Some(true) => Reached::Met,
                Some(false) => Reached::Missed,
                None => Reached::Unknown,
            }),
            freed: last.freed_since(&before),
            tolerance,
            held,
            is_blurred,
            is_stopped: stopped_at.is_some(),
            rungs: &rungs,
        });
        let mut receipt = receipt(inventory, request, verdict, (before, last));
        receipt.claim = Some(claim);
        receipt.not_run = hooks_not_run(request, inventory);
        (receipt.rungs, receipt.holders) = (rungs, holders);
        if let Some(rung) = &stopped_at {
            receipt.advice.push(format!("it was stopped at {rung}: work arrived"));
        }
        receipt.stopped_at = stopped_at;
        if verdict == Verdict::Unverified && is_blurred {
            receipt.advice.push(
                "this process's own number is not reported here, and others moved the device's: \
                 nothing is proved"
                    .to_owned(),
            );
        }
        if settling == Settling::Falling {
            receipt.advice.push("the number was still falling: ask again in a moment".to_owned());
        }
        receipt.advice.extend(advise(&receipt));
        receipt
    }

    fn climb_ladder(&self, progress: &mut Progress) {
        let Climber { request, climb, .. } = self;
        let was_away = self.is_away();
        for attempt in 1..=request.ladder.most_attempts() {
            let mut since = progress.last;
            for placed in request.ladder.rungs() {
                if !request.every_rung && self.is_met(&progress.last) == Some(true) {
                    return;
                }
                if climb.is_stopped() {
                    progress.stopped_at = Some(placed.rung.name());
                    return;
                }
                if climb.clock().is_interrupted() {
                    return;
                }
                // Also of a rung in its place.
                let takes = !placed.rung.lets_work_go_on();
                let placed = self.replacement(placed);
                let (rung, stopped) = self.climb_rung(&placed, takes, attempt, progress);
                // It climbs the rungs below it once more. If that frees nothing, neither would another attempt,
                // which in a large heap takes seconds.
                if rung.rung == RungName::Fallback && rung.outcome == RungOutcome::Done {
                    since = progress.last;
                }
                progress.last = rung.after;
                if stopped && climb.is_stopped() {
                    progress.stopped_at = Some(rung.rung.clone());
                }
                // A rung that was skipped has read nothing.
                if !matches!(rung.outcome, RungOutcome::Skipped { .. }) {
                    progress.settling = rung.settling;
                }
                progress.rungs.push(rung);
                // A further rung could bring a process back that has just left the device.
                if progress.stopped_at.is_some() || (!was_away && self.is_away()) {
                    return;
                }
            }
            let freed = progress.last.freed_since(&since);
            if request.to.is_none()
                || self.is_met(&progress.last) == Some(true)
                || freed.is_none_or(|freed| freed <= self.noise())
            {
                return;
            }
        }
    }

    /// Climbs one rung. Returns its receipt, and whether it ended early because it was told to stop.
    fn climb_rung(
        &self,
        placed: &Placed,
        takes: bool,
        attempt: u32,
        progress: &Progress,
    ) -> (RungReceipt, bool) {
        let (rung, before) = (&placed.rung, progress.last);
        let receipt = untouched(rung.name(), attempt, before);
        let expected_bytes = match catch_unwind(AssertUnwindSafe(|| rung.expect(self.inventory))) {
            Ok(Expectation::Bytes(bytes)) => bytes,
            Ok(Expectation::Skip(why)) => {
                return (RungReceipt { outcome: RungOutcome::Skipped { why }, ..receipt }, false);
            }
            Err(panic) => {
                let outcome = RungOutcome::Panicked { message: message(&*panic) };
                return (RungReceipt { outcome, ..receipt }, false);
            }
        };
        let clock = self.climb.clock();
        let began = clock.now();
        let (outcome, climbed) = self.work(placed, takes);
        let took_s = clock.since(began).as_secs_f64();
        let is_idle = is_idle(&rung.name(), &outcome, &climbed) && progress.has_climbed();
        let (after, settling) = self.read_after(&before, is_idle);
        let receipt = RungReceipt {
            outcome,
            touched: climbed.touched,
            skipped: climbed.skipped,
            expected_bytes,
            after,
            freed_bytes: after.freed_since(&before),
            settling,
            took_s,
            ..receipt
        };
        (receipt, climbed.stopped)
    }

    /// Runs a rung within its limit. Its failures are in the outcome.
    /// While a rung that `takes` memory runs, work must not.
    fn work(&self, placed: &Placed, takes: bool) -> (RungOutcome, Climbed) {
        let (rung, inventory) = (Arc::clone(&placed.rung), Arc::clone(self.inventory));
        let name = PartName::Rung(rung.name());
        let climb = move |climb: &Climb| rung.climb(&inventory, climb);
        let ran = self.climb.run_within(name, placed.limit, takes, climb);
        let limit_ms = placed.limit.as_millis() as u64;
        match (ran.why_not(placed.limit), ran) {
            (_, Ran::CutOff(climbed)) => {
                (RungOutcome::CutOff { limit_ms }, climbed.unwrap_or_default())
            }
            (_, Ran::LeftBehind) => (RungOutcome::CutOff { limit_ms }, Climbed::default()),
            (_, Ran::Ended(Err(panic))) => {
                (RungOutcome::Panicked { message: message(&*panic) }, Climbed::default())
            }
            (_, Ran::Ended(Ok(Err(failure)))) => {
                (RungOutcome::Failed { why: failure.to_string() }, Climbed::default())
            }
            (_, Ran::Ended(Ok(Ok(climbed)))) if climbed.failures.is_empty() => {
                (RungOutcome::Done, climbed)
            }
            (_, Ran::Ended(Ok(Ok(climbed)))) => {
                (RungOutcome::Failed { why: climbed.failures.join("; ") }, climbed)
            }
            (why, Ran::StillRuns(_) | Ran::NoThread) => {
                (RungOutcome::Failed { why: why.unwrap_or_default() }, Climbed::default())
            }
        }
    }

    /// Returns the rung itself, or the one that takes its place.
    fn replacement(&self, placed: &Placed) -> Placed {
        let name = placed.rung.name();
        let other = self.replaced.iter().find(|replaced| replaced.name == name);
        other.map_or_else(
            || placed.clone(),
            |Replaced { rung, .. }| Placed { rung: Arc::clone(rung), ..*placed },
        )
    }

    fn is_met(&self, reading: &Reading) -> Option<bool> {
        self.request.to.and_then(|to| to.is_met(reading, self.inventory.floor()))
    }

    fn is_away(&self) -> bool {
        self.inventory.gauge().is_some_and(Gauge::is_away)
    }

    fn read(&self) -> (Reading, Settling) {
        let read = || self.inventory.read_device();
        let (device, settling) = read_settled(self.climb.clock(), self.inventory.noise(), read);
        (self.inventory.with_counts(device), settling)
    }

    /// Reads behind a rung. One that was idle has changed no counts, unless others did.
    fn read_after(&self, before: &Reading, is_idle: bool) -> (Reading, Settling) {
        if !is_idle {
            self.inventory.recount();
        }
        let (after, settling) = self.read();
        if !is_idle || after.is_like(before, self.inventory.noise()) {
            return (after, settling);
        }
        self.inventory.recount();
        (self.inventory.with_counts(after), settling)
    }

    fn noise(&self) -> i64 {
        self.inventory.noise().0.cast_signed()
    }
}
