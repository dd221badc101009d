//! What must hold after every release, whatever went wrong in it.

use lowtide_device::Bytes;
use lowtide_release::{
    ClaimBasis, Expectation, HookPoint, LedgerKind, Reading, Receipt, RungOutcome, RungReceipt,
    Settling, Target, Verdict,
};

use lowtide_device::digest::PAGE_BYTES;

use crate::gauge::SHARED_TOTAL;
use crate::journal::{Said, Visit};
use crate::plan::Plan;
use crate::world::{Asked, BUDGET, Facts, World};

/// A release, what was asked, and how everything was before and after it.
pub(crate) struct Case<'a> {
    pub(crate) world: &'a World,
    pub(crate) plan: &'a Plan,
    pub(crate) before: &'a Facts,
    pub(crate) after: &'a Facts,
    pub(crate) receipt: &'a Receipt,
    pub(crate) visits: &'a [Visit],
    /// Whether the device did not answer at some time.
    pub(crate) was_deaf: bool,
}

impl Case<'_> {
    pub(crate) fn check(&self) {
        let notes = self.world.props.journal.notes();
        assert_eq!(notes.wrong, [] as [&str; 0]);
        drop(notes);
        self.check_text();
        self.check_ledger();
        match self.receipt.verdict {
            Verdict::NoDevice | Verdict::Busy => self.check_that_nothing_happened(),
            _ => {
                let is_away = matches!(self.world.asked, Asked::Nobody);
                assert!(!is_away && !self.plan.is_kept_out, "it was climbed all the same");
                self.check_numbers();
                self.check_rungs();
                self.check_order();
                self.world.owners.check(&self.receipt.holders);
                self.check_claim();
                assert_eq!(self.receipt.verdict, self.expected_verdict());
            }
        }
        self.check_calls();
        self.world.blocks.check();
        let gate = (self.after.gate.open, self.after.gate.parked, self.after.gate.waiting);
        // It stays closed for a part that goes on, and the receipt says so.
        let keeps = self.receipt.advice.iter().any(|line| line.contains("the gate stays closed"));
        let goes_on = self.visits.iter().any(|visit| visit.goes_on);
        assert!(goes_on || !keeps, "nothing was left behind");
        assert_eq!(gate, (self.before.gate.open && !keeps, 0, 0), "the gate is as it was");
    }

    // The same for people, programs and logs.
    fn check_text(&self) {
        let Receipt { verdict, freed_bytes, rungs, .. } = self.receipt;
        let line = self.receipt.line();
        assert!(line.contains(&format!(": {verdict}, ")), "{line}");
        assert!(self.receipt.to_string().starts_with(&line));
        let json = serde_json::to_value(self.receipt).unwrap();
        assert_eq!(json["verdict"], verdict.to_string());
        assert_eq!(json["freed_bytes"], serde_json::json!(freed_bytes));
        assert_eq!(json["rungs"].as_array().map(Vec::len), Some(rungs.len()));
    }

    fn check_that_nothing_happened(&self) {
        let is_away = matches!(self.world.asked, Asked::Nobody);
        let expected = if is_away { Verdict::NoDevice } else { Verdict::Busy };
        assert_eq!(self.receipt.verdict, expected);
        assert!(is_away || self.plan.is_kept_out, "nobody was in the way");
        assert_eq!((self.visits.len(), self.receipt.rungs.len()), (0, 0));
        assert_eq!(self.receipt.before, self.receipt.after);
        assert_eq!(self.receipt.holders, []);
        assert_eq!(self.before.things, self.after.things);
        if is_away {
            assert_eq!((self.receipt.device, self.receipt.freed_bytes), (None, None));
            assert_eq!(self.receipt.ledger, None);
        } else {
            self.check_reading(&self.receipt.after, self.after.things.in_use, true);
        }
    }

    fn others(&self) -> u64 {
        if let Asked::Gauge(gauge) = &self.world.asked { gauge.temper.others } else { 0 }
    }

    fn is_restless(&self) -> bool {
        matches!(&self.world.asked, Asked::Gauge(gauge) if gauge.temper.restless)
    }

    fn decays(&self) -> bool {
        matches!(&self.world.asked, Asked::Gauge(gauge) if gauge.temper.decay.is_some())
    }

    // A number is the device's own, or not told; late, where it says so.
    fn check_reading(&self, reading: &Reading, truth: u64, is_settled: bool) {
        let (truth, others) = (Bytes(truth), Bytes(self.others()));
        let right =
            |told: Bytes, truth: Bytes| if is_settled { told == truth } else { told >= truth };
        let may_miss = self.was_deaf;
        match reading.own {
            Some(own) => assert!(right(own, truth), "{own:?} of {truth:?}"),
            None => assert!(may_miss, "it was told"),
        }
        match reading.driver {
            Some(_) if self.is_restless() => {}
            Some(driver) => assert!(right(driver, truth + others), "{driver:?} of {truth:?}"),
            None => assert!(may_miss, "it was told"),
        }
        if let (Some(driver), Some(free)) = (reading.driver, reading.free) {
            let is_shared = matches!(self.world.asked, Asked::Gauge(_));
            let total = if is_shared { SHARED_TOTAL } else { BUDGET };
            assert_eq!(driver + free, total);
        }
    }

    fn is_settled(&self, settling: Settling) -> bool {
        !self.decays() || settling == Settling::Steady
    }

    // The heart of it: what is said to be freed is what the kernel says, in all and by rung.
    fn check_numbers(&self) {
        let Receipt { before, after, freed_bytes, rungs, .. } = self.receipt;
        // Nobody has looked again since the last one that was climbed.
        let mut climbed = rungs.iter().zip(self.visits).filter(|(_, visit)| visit.is_climbed());
        let settling = climbed.next_back().map_or(Settling::Steady, |(rung, _)| rung.settling);
        let is_settled = self.is_settled(settling);
        self.check_reading(before, self.before.things.in_use, true);
        self.check_reading(after, self.after.things.in_use, is_settled);
        if let Some(freed) = freed_bytes.filter(|_| is_settled) {
            let truth =
                self.before.things.in_use.cast_signed() - self.after.things.in_use.cast_signed();
            assert_eq!(freed, truth, "freed is what the device says");
        }
        assert_eq!(*freed_bytes, difference(before, after));
        let mut last = before;
        for rung in rungs {
            assert_eq!(rung.before, *last, "{} begins where the last one ended", rung.rung);
            assert_eq!(rung.freed_bytes, difference(&rung.before, &rung.after));
            last = &rung.after;
        }
        assert_eq!(after, last, "nothing happens after the last rung");
        let is_falling = self.receipt.advice.iter().any(|line| line.contains("still falling"));
        let is_last = |rung: &&RungReceipt| !matches!(rung.outcome, RungOutcome::Skipped { .. });
        if let Some(rung) = rungs.iter().rfind(is_last) {
            assert_eq!(is_falling, rung.settling == Settling::Falling, "it is told");
        }
        let freed: Option<i64> = rungs.iter().map(|rung| rung.freed_bytes).sum();
        if let (Some(sum), Some(freed)) = (freed, freed_bytes) {
            assert_eq!(sum, *freed, "rungs add up to the whole");
        }
    }

    // Each rung is told as it was, its faults by name.
    fn check_rungs(&self) {
        assert_eq!(self.receipt.rungs.len(), self.visits.len());
        let none_goes_on = !self.visits.iter().any(|visit| visit.goes_on);
        for (at, (rung, visit)) in self.receipt.rungs.iter().zip(self.visits).enumerate() {
            assert_eq!(rung.rung.as_str(), visit.rung);
            let is_same = |earlier: &Visit| earlier.is_left && earlier.rung == visit.rung;
            if visit.is_climbed() && visit.climb.is_none() && self.visits[..at].iter().any(is_same)
            {
                let why = rung.outcome.to_string();
                assert!(why.contains("still running since"), "it was started again: {why}");
                continue;
            }
            let (outcome, expected_bytes) = self.expected_outcome(visit);
            assert_eq!(rung.outcome, outcome, "{} was {visit:?}", rung.rung);
            assert_eq!(rung.expected_bytes, expected_bytes);
            let Some(climb) = &visit.climb else {
                assert!(visit.is_left || rung.before == rung.after, "{} did nothing", rung.rung);
                assert_eq!(rung.touched, []);
                continue;
            };
            if let (RungOutcome::Done | RungOutcome::Failed { .. }, Said::Climbed { touched, .. }) =
                (&rung.outcome, &climb.said)
            {
                assert_eq!(rung.touched, *touched);
            }
            if let RungOutcome::Failed { why } = &rung.outcome {
                let mut unnamed = climb.struck.iter().filter(|who| !why.contains(*who));
                assert!(unnamed.next().is_none(), "{:?} in {why:?}", climb.struck);
            }
            assert!(climb.struck.is_empty() || rung.outcome != RungOutcome::Done);
            let closes = !self.plan.lets_work_go_on;
            assert!(visit.is_left || !closes || !climb.gate_was_open, "work could have passed");
            // What was left behind goes on in somebody else's time.
            if none_goes_on {
                self.check_reading(&rung.after, climb.after, self.is_settled(rung.settling));
                let truth = climb.before.cast_signed() - climb.after.cast_signed();
                if let Some(freed) = rung.freed_bytes.filter(|_| !self.decays()) {
                    assert_eq!(freed, truth, "{} is told by the device", rung.rung);
                }
            }
        }
    }

    fn expected_outcome(&self, visit: &Visit) -> (RungOutcome, Option<Bytes>) {
        let expected = match &visit.expected {
            Ok(Expectation::Bytes(bytes)) => *bytes,
            Ok(Expectation::Skip(why)) => return (RungOutcome::Skipped { why: why.clone() }, None),
            Err(message) => return (RungOutcome::Panicked { message: message.clone() }, None),
        };
        let at = self.plan.names.iter().position(|name| *name == visit.rung).unwrap();
        let limit = self.plan.limits[at];
        let cut_off = RungOutcome::CutOff { limit_ms: limit.as_millis() as u64 };
        let outcome = match &visit.climb {
            _ if visit.is_left => cut_off,
            None => unreachable!("{} applies and was not climbed", visit.rung),
            Some(climb) if climb.took > limit => cut_off,
            Some(climb) => match &climb.said {
                Said::Climbed { failures, .. } if failures.is_empty() => RungOutcome::Done,
                Said::Climbed { failures, .. } => RungOutcome::Failed { why: failures.join("; ") },
                Said::Failed(why) => RungOutcome::Failed { why: why.clone() },
                Said::Panicked(message) => RungOutcome::Panicked { message: message.clone() },
            },
        };
        (outcome, expected)
    }

    fn is_met(&self, reading: &Reading) -> Option<bool> {
        let in_use = reading.own.or(reading.driver);
        match self.plan.ask.to? {
            Target::Under(most) => Some(in_use? <= most),
            Target::Free(least) => Some(reading.free? >= least),
            Target::Floor => {
                let floor = self.world.floor?;
                let above = if floor == 0 { 0 } else { 8 << 20 };
                Some(in_use?.0 <= floor + above)
            }
        }
    }

    // All rungs, in order, attempt after attempt, until it is enough; and not one more.
    fn check_order(&self) {
        let Receipt { rungs, before, .. } = self.receipt;
        let mut rest = rungs.as_slice();
        let mut last = *before;
        for attempt in 1..=self.plan.attempts {
            let mut since = last;
            for name in &self.plan.names {
                let is_enough = self.is_met(&last) == Some(true) && !self.plan.ask.every_rung;
                let Some(rung) = rest.first().filter(|_| !is_enough) else {
                    assert!(is_enough, "{name} of attempt {attempt} was not climbed");
                    assert_eq!(rest.len(), 0, "rungs were climbed though it was enough");
                    return;
                };
                assert_eq!((rung.rung.as_str(), rung.attempt), (name.as_str(), attempt));
                // It has climbed the others once more.
                if name == "fallback" && rung.outcome == RungOutcome::Done {
                    since = last;
                }
                (last, rest) = (rung.after, &rest[1..]);
            }
            let came_back = difference(&since, &last).is_some_and(|freed| freed > 0);
            if self.plan.ask.to.is_none() || self.is_met(&last) == Some(true) || !came_back {
                break;
            }
        }
        assert_eq!(rest.len(), 0, "more was climbed than there was reason for");
    }

    // What was claimed is what the owners, the allocators or the target said before the release.
    fn check_claim(&self) {
        let Receipt { claim, before, .. } = self.receipt;
        let claim = claim.expect("a release that was climbed has claimed something");
        let drops = self.plan.names.iter().any(|name| name == "drop");
        match claim.basis {
            ClaimBasis::Target => assert!(self.plan.ask.to.is_some()),
            ClaimBasis::Owned => {
                assert!(drops && self.plan.ask.to.is_none());
                assert!(claim.bytes >= before.reserved, "every block may be an owner's");
            }
            ClaimBasis::Cached => {
                assert!(self.plan.ask.to.is_none());
                assert!(claim.bytes <= before.reserved, "{claim} of {}", before.reserved);
            }
            basis => unreachable!("nobody claimed {basis}"),
        }
    }

    fn expected_verdict(&self) -> Verdict {
        let Receipt { before, after, holders, rungs, claim, .. } = self.receipt;
        let (claim, has_target) = (claim.unwrap(), self.plan.ask.to.is_some());
        let Some(freed) = difference(before, after) else { return Verdict::Unverified };
        let unit = match &self.world.asked {
            Asked::Device => PAGE_BYTES.cast_signed() as i64,
            _ => 1,
        };
        let (claimed, seen) = (claim.bytes.0.cast_signed(), freed >= unit);
        let drops = rungs.iter().any(|rung| rung.rung == "drop");
        let was = |rung: &RungReceipt| match rung.outcome {
            RungOutcome::Done => Some(true),
            RungOutcome::Skipped { .. } => None,
            _ => Some(false),
        };
        let helped = rungs.iter().any(|rung| was(rung) == Some(true) && rung.rung != "quiesce");
        let failed = rungs.iter().any(|rung| was(rung) == Some(false));
        let in_vain = if failed && !helped { Verdict::Failed } else { Verdict::NoEffect };
        let is_met = if has_target { self.is_met(after) } else { Some(freed > claimed - unit) };
        let is_blurred = self.is_blurred(unit);
        match is_met {
            None => Verdict::Unverified,
            Some(true) if has_target => Verdict::Released,
            _ if drops && !holders.is_empty() => Verdict::Pinned,
            Some(true) if seen && !is_blurred => Verdict::Released,
            _ if is_blurred || (is_met == Some(true) && claimed > 0) => Verdict::Unverified,
            Some(true) if claim.basis == ClaimBasis::Cached => Verdict::Released,
            Some(false) if seen => Verdict::Partial,
            Some(false) if !holders.is_empty() => Verdict::Pinned,
            Some(_) => in_vain,
        }
    }

    // This process's own number is missing, and the device's does not agree with the allocators.
    fn is_blurred(&self, unit: i64) -> bool {
        let Receipt { before, after, .. } = self.receipt;
        match (before.own, after.own) {
            (Some(_), Some(_)) => false,
            (None, None) => {
                let reserved = |reading: &Reading| reading.reserved.0.cast_signed();
                let given_back = reserved(before) - reserved(after);
                let has_allocators = reserved(before) > 0 || reserved(after) > 0;
                let differs = |freed: i64| (freed - given_back).abs() >= unit;
                has_allocators && difference(before, after).is_some_and(differs)
            }
            _ => true,
        }
    }

    fn check_ledger(&self) {
        let Some(ledger) = &self.receipt.ledger else {
            assert!(self.was_deaf || matches!(self.world.asked, Asked::Nobody));
            return;
        };
        assert_eq!(ledger.sum(), ledger.driver_bytes.0.cast_signed(), "it adds up");
        if self.is_restless() {
            return;
        }
        let truth = self.after.things.in_use + self.others();
        if !self.decays() {
            assert_eq!(ledger.driver_bytes.0, truth, "to the device's own number");
        }
        // What nobody put on record, and nothing else, is unknown.
        let pool = self.after.things.pool.physical_bytes;
        let frameworks = self.world.frameworks.iter().map(|one| one.reserved());
        let known = ledger.of(LedgerKind::Live) + ledger.of(LedgerKind::Cached);
        assert_eq!(known, pool + frameworks.sum::<Bytes>());
        let accounted = |kind| {
            let of_kind = self.world.accounts.iter().filter(|(other, _)| *other == kind);
            of_kind.map(|(_, shelf)| crate::memory::chunk_bytes(shelf)).sum::<Bytes>()
        };
        assert_eq!(ledger.of(LedgerKind::Graphs), accounted(LedgerKind::Graphs));
        // The rest of what this process has is its libraries', or its context's too without a floor.
        let rest = ledger.of(LedgerKind::Libraries) - accounted(LedgerKind::Libraries);
        let together = ledger.of(LedgerKind::ContextAndLibraries);
        let is_told = matches!(self.world.asked, Asked::Gauge(_));
        let has_floor = self.world.floor.is_some();
        assert!(rest == Bytes::ZERO || is_told && has_floor, "{ledger}");
        assert!(together == Bytes::ZERO || is_told && !has_floor, "{ledger}");
        assert_eq!(ledger.of(LedgerKind::Others).0, self.others());
        assert_eq!(ledger.of(LedgerKind::Context).0, self.world.floor.unwrap_or(0));
    }

    // Our rungs did what they are for, and nobody's code was called without one.
    fn check_calls(&self) {
        let climbed = |visit: &&Visit| visit.is_real && visit.climb.is_some();
        let climbed: Vec<&Visit> = self.visits.iter().filter(climbed).collect();
        let last = |name: &str| climbed.iter().rfind(|visit| visit.rung == name);
        let went_well = |visit: &&Visit| {
            let said = visit.climb.as_ref().map(|climb| &climb.said);
            matches!(said, Some(Said::Climbed { failures, .. }) if failures.is_empty())
        };

        let (filled, living) = &self.after.things.owners;
        if let Some(drop) = last("drop") {
            // One that goes on after its limit begins nothing new.
            let is_whole = drop.goes_on || !filled.contains(&true);
            assert!(is_whole, "an owner was not asked to let go");
        } else {
            assert_eq!(
                (filled, living),
                (&self.before.things.owners.0, &self.before.things.owners.1)
            );
        }
        let has_slept = last("sleep").is_some_and(|sleep| went_well(sleep) && !sleep.goes_on);
        assert!(!has_slept || self.world.blocks.sleep());
        let goes_on = self.visits.iter().any(|visit| visit.goes_on);
        // Nobody frees anything after the last one, but who was left behind.
        let of_all = self.visits.iter().rfind(|visit| visit.is_climbed());
        let is_last = |trim: &&Visit| of_all.is_some_and(|last| std::ptr::eq(last, *trim));
        if !goes_on && last("trim").is_some_and(|trim| went_well(trim) && is_last(trim)) {
            assert!(self.world.blocks.is_trimmed(), "memory is still cached");
        }
        // Who was left behind is called later, or has been called for an earlier release.
        if goes_on {
            return;
        }
        let calls = self.before.things.hooks.iter().zip(&self.after.things.hooks);
        for ((place, doer), (before, after)) in self.world.hooks.iter().zip(calls) {
            let is_called = rungs_at(*place).iter().any(|name| last(name).is_some());
            assert_eq!(before < after, is_called, "{} at {place:?}", doer.name);
        }
    }
}

fn rungs_at(place: HookPoint) -> &'static [&'static str] {
    match place {
        HookPoint::ToHost => &["to_host", "fallback"],
        HookPoint::Sessions => &["sessions", "fallback"],
        HookPoint::Caches => &["caches", "fallback"],
        HookPoint::Collect => &["collect", "fallback"],
        HookPoint::Libraries => &["libraries"],
        HookPoint::ContextReset => &["context_reset"],
        HookPoint::Fallback => &["fallback"],
        HookPoint::Suspend => &["suspend"],
        HookPoint::Exit => &["exit"],
    }
}

// Like with like: this process's part where both tell it, else everybody's.
fn difference(before: &Reading, after: &Reading) -> Option<i64> {
    let (before, after) = match (before.own, after.own) {
        (Some(before), Some(after)) => (before, after),
        _ => (before.driver?, after.driver?),
    };
    Some(before.0.cast_signed() - after.0.cast_signed())
}
