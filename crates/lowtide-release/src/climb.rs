//! One climb: rung by rung, each on its own, a reading after each, and the verdict from those readings.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lowtide_types::{Reading, Receipt, RungOutcome, RungReceipt, Settling, Verdict};

use crate::advice::advise;
use crate::ask::{Ask, WhenBusy};
use crate::clock::Clock;
use crate::gate::Mode;
use crate::ladder::Placed;
use crate::reading::{Gauge, settled};
use crate::releaser::Inner;
use crate::rung::{Climbed, Expectation, message};

thread_local! {
    /// Whose rung this thread is climbing, by the address of its inside; zero where it is not.
    static CLIMBING: Cell<usize> = const { Cell::new(0) };
}

/// Whose rung this thread is climbing.
pub(crate) fn climber() -> usize {
    CLIMBING.get()
}

/// Does a part of somebody's climb within a limit, in a thread of its own where the clock has one. How
/// it ended; `None` where it was left behind.
pub(crate) fn limited<T: Send + 'static>(
    clock: &dyn Clock,
    limit: Duration,
    climber: usize,
    part: impl FnOnce() -> T + Send + 'static,
) -> Option<thread::Result<T>> {
    let ended: Arc<Mutex<Option<thread::Result<T>>>> = Arc::default();
    let said = Arc::clone(&ended);
    let work = move || {
        let before = CLIMBING.replace(climber);
        let outcome = catch_unwind(AssertUnwindSafe(part));
        CLIMBING.set(before);
        *said.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    };
    let in_time = clock.within(limit, Box::new(work));
    let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
    ended.filter(|_| in_time)
}

impl Inner {
    // The rung itself, or what was put in its place.
    fn placed(&self, placed: &Placed) -> Placed {
        let replaced = self.replaced();
        let other = replaced.iter().find(|rung| rung.name() == placed.rung.name());
        other.map_or_else(|| placed.clone(), |rung| Placed { rung: Arc::clone(rung), ..*placed })
    }

    /// Climbs, with the gate closed unless every rung lets work go on.
    pub(crate) fn closed_climb(&self, ask: &Ask) -> Receipt {
        let began = self.scene.clock().now();
        let mut receipt = self.climb_or_refuse(ask);
        receipt.took_s = (self.scene.clock().since(began) + ask.planned).as_secs_f64();
        receipt
    }

    fn climb_or_refuse(&self, ask: &Ask) -> Receipt {
        if self.scene.gauge().is_none() {
            let reading = self.scene.read();
            return self.receipt(ask, Verdict::NoDevice, (reading, reading), Vec::new(), "");
        }
        if ask.ladder.lets_work_go_on() {
            let _turn = self.turn();
            return self.climb(ask);
        }
        // Another release has the gate closed, but it is no work: its end is waited for.
        drop(self.turn());
        let closed = match ask.when_busy {
            WhenBusy::Refuse => self.gate.try_close(Mode::Drain),
            WhenBusy::Wait(limit) => self.gate.close_within(Mode::Drain, self.scene.clock(), limit),
        };
        match closed {
            Ok(_closed) => {
                let _turn = self.turn();
                let mut receipt = self.climb(ask);
                // What the rungs gave to the device is done when the gate opens.
                if let Some(Err(error)) = self.scene.gauge().map(Gauge::synchronize) {
                    receipt.advice.push(format!("the device could not be waited for: {error}"));
                }
                receipt
            }
            Err(busy) => {
                let reading = self.scene.read();
                let why = format!(
                    "{busy}; nothing was touched: try again when that is over, or wait longer"
                );
                self.receipt(ask, Verdict::Busy, (reading, reading), Vec::new(), &why)
            }
        }
    }

    fn climb(&self, ask: &Ask) -> Receipt {
        let (clock, noise) = (self.scene.clock(), self.scene.noise().0.cast_signed());
        let (mut last, mut settling) = settled(clock, self.scene.noise(), || self.scene.read());
        let before = ask.done.as_ref().map_or(last, |done| done.before);
        let mut rungs: Vec<RungReceipt> = ask.done.iter().cloned().collect();
        let is_met =
            |reading: &Reading| ask.to.and_then(|to| to.is_met(reading, self.scene.floor()));
        'attempts: for attempt in 1..=ask.ladder.most_attempts() {
            let at_its_start = last;
            for placed in ask.ladder.rungs() {
                let is_enough = !ask.every_rung && is_met(&last) == Some(true);
                if is_enough || clock.is_interrupted() {
                    break 'attempts;
                }
                let rung = self.climb_rung(&self.placed(placed), attempt, last);
                last = rung.after;
                // A rung that was skipped has read nothing.
                if !matches!(rung.outcome, RungOutcome::Skipped { .. }) {
                    settling = rung.settling;
                }
                rungs.push(rung);
            }
            if ask.to.is_none()
                || is_met(&last) == Some(true)
                || last.freed_since(&at_its_start).is_none_or(|freed| freed <= noise)
            {
                break;
            }
        }
        let mut holders = self.scene.owners().holders();
        let mut is_held = !holders.is_empty();
        holders.extend(ask.survivors());
        is_held |= ask.pins() && !holders.is_empty();
        let verdict = judge(&Judged {
            reached: match (ask.to, is_met(&last)) {
                (None, _) => Reached::None,
                (Some(_), Some(true)) => Reached::Met,
                (Some(_), Some(false)) => Reached::Missed,
                (Some(_), None) => Reached::Unknown,
            },
            freed: last.freed_since(&before),
            noise,
            is_held,
            is_in_use: !holders.is_empty(),
            rungs: &rungs,
        });
        let mut receipt = self.receipt(ask, verdict, (before, last), rungs, "");
        receipt.holders = holders;
        if settling == Settling::Falling {
            receipt.advice.push("the number was still falling: ask again in a moment".to_owned());
        }
        receipt.advice.extend(advise(&receipt));
        receipt
    }

    fn climb_rung(&self, placed: &Placed, attempt: u32, before: Reading) -> RungReceipt {
        let (rung, clock) = (&placed.rung, self.scene.clock());
        let receipt = RungReceipt {
            rung: rung.name().into(),
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
        };
        let expected_bytes = match catch_unwind(AssertUnwindSafe(|| rung.expect(&self.scene))) {
            Ok(Expectation::Bytes(bytes)) => bytes,
            Ok(Expectation::Skip(why)) => {
                return RungReceipt { outcome: RungOutcome::Skipped { why }, ..receipt };
            }
            Err(panic) => {
                let outcome = RungOutcome::Panicked { message: message(&*panic) };
                return RungReceipt { outcome, ..receipt };
            }
        };
        let began = clock.now();
        let (outcome, climbed) = self.work(placed);
        let took_s = clock.since(began).as_secs_f64();
        let (after, settling) = settled(clock, self.scene.noise(), || self.scene.read());
        let freed_bytes = after.freed_since(&before);
        RungReceipt {
            outcome,
            touched: climbed.touched,
            skipped: climbed.skipped,
            expected_bytes,
            after,
            freed_bytes,
            settling,
            took_s,
            ..receipt
        }
    }

    // What it did is without its failures: those are in the outcome.
    fn work(&self, placed: &Placed) -> (RungOutcome, Climbed) {
        let (rung, scene) = (Arc::clone(&placed.rung), Arc::clone(&self.scene));
        let own = std::ptr::from_ref(self).addr();
        match limited(self.scene.clock(), placed.limit, own, move || rung.climb(&scene)) {
            None => {
                let limit_ms = placed.limit.as_millis() as u64;
                (RungOutcome::CutOff { limit_ms }, Climbed::default())
            }
            Some(Err(panic)) => {
                (RungOutcome::Panicked { message: message(&*panic) }, Climbed::default())
            }
            Some(Ok(Err(failure))) => {
                (RungOutcome::Failed { why: failure.to_string() }, Climbed::default())
            }
            Some(Ok(Ok(climbed))) if climbed.failures.is_empty() => (RungOutcome::Done, climbed),
            Some(Ok(Ok(climbed))) => {
                (RungOutcome::Failed { why: climbed.failures.join("; ") }, climbed)
            }
        }
    }

    pub(crate) fn receipt(
        &self,
        ask: &Ask,
        verdict: Verdict,
        (before, after): (Reading, Reading),
        rungs: Vec<RungReceipt>,
        advice: &str,
    ) -> Receipt {
        let device = self.scene.gauge().map(Gauge::id);
        let mut receipt = Receipt::new(&ask.name, device, verdict, (before, after));
        receipt.target = ask.to;
        receipt.rungs = rungs;
        receipt.ledger = self.scene.ledger();
        receipt.advice.extend((!advice.is_empty()).then(|| advice.to_owned()));
        receipt
    }
}

/// What a verdict is made of.
struct Judged<'a> {
    reached: Reached,
    freed: Option<i64>,
    /// So much, and less, is none.
    noise: i64,
    /// Somebody has what should be gone.
    is_held: bool,
    /// Somebody has something.
    is_in_use: bool,
    rungs: &'a [RungReceipt],
}

/// Whether there is a target, and whether it is met.
#[derive(Clone, Copy)]
enum Reached {
    None,
    Met,
    Missed,
    /// There is no number to judge it by.
    Unknown,
}

fn judge(judged: &Judged<'_>) -> Verdict {
    let Some(freed) = judged.freed else { return Verdict::Unverified };
    match judged.reached {
        Reached::Unknown => return Verdict::Unverified,
        Reached::Met => return Verdict::Released,
        _ if judged.is_held => return Verdict::Pinned,
        Reached::None if freed > judged.noise => return Verdict::Released,
        _ if judged.is_in_use => return Verdict::Pinned,
        Reached::Missed if freed > judged.noise => return Verdict::Partial,
        _ => {}
    }
    let mut climbed =
        judged.rungs.iter().filter(|rung| !matches!(rung.outcome, RungOutcome::Skipped { .. }));
    let did = |rung: &RungReceipt| rung.outcome == RungOutcome::Done && rung.rung != "quiesce";
    let any_failed = climbed.clone().any(|rung| rung.outcome != RungOutcome::Done);
    if any_failed && !climbed.any(did) { Verdict::Failed } else { Verdict::NoEffect }
}
