//! Free on idle: the policy decides, the releaser frees.
//!
//! Work holds a [`Working`]: it passes the gate, counts as active, and brings back what a release took
//! off the device. A thread with a timer calls [`Idling::tick`], or [`Idling::watch`], which is the loop
//! around it. Work that arrives during an idle release does not wait for all of it: the release stops
//! at its next safe point.

use std::sync::Arc;
use std::time::Duration;

use lowtide_types::{Receipt, Target, Verdict, debug_as};

use super::idle::{Decision, Idle, Task};
use crate::climb::{Releaser, Request, RestoreError, Restored};
use crate::clock::Clock;
use crate::gate::{OwnedPass, Step};
use crate::readings::Gauge;
use crate::rungs::Ladder;

/// The longest pause between two ticks: a watch ends this soon after it is told to, and notices a
/// clock that jumped.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest pause between two ticks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// The result of a tick.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a tick is looked at once, and not kept")]
pub enum Tick {
    /// An idle release ran; this is its receipt.
    Released(Receipt),
    /// No release was due, for this reason.
    No(Decision),
}

/// Frees memory while no work runs. Clones share their policy.
///
/// A test sets the clock by hand:
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use lowtide_device::{Bytes, Device, HostOptions};
/// use lowtide_pool::Pool;
/// use lowtide_release::{Idle, Idling, ManualClock, Releaser, Tick, Verdict};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// let pool = Pool::new(&device)?;
/// let clock = Arc::new(ManualClock::default()); // a program uses `lowtide::SystemClock`
/// let releaser = Releaser::new(&device, clock.clone());
/// releaser.add_pool(&pool);
/// let idling = Idling::new(&releaser, &Idle::new("5m".parse()?, clock.clone()));
///
/// let task = idling.work()?;
/// let weights = pool.block(Bytes::mib(20))?;
/// weights.fill(7)?;
/// drop(task);
/// assert!(matches!(idling.tick(), Tick::No(_))); // too early
/// clock.advance(Duration::from_secs(300));
/// let Tick::Released(receipt) = idling.tick() else { panic!("five minutes have passed") };
/// assert_eq!(receipt.verdict, Verdict::Released);
/// assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
///
/// let task = idling.work()?; // awake again
/// let mut byte = [0];
/// weights.read(Bytes::ZERO, &mut byte)?;
/// assert_eq!(byte, [7]);
/// # drop(task);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Idling {
    releaser: Releaser,
    idle: Idle,
    target: Target,
    /// Whether only caches are released, while work may go on.
    only_caches: bool,
}

impl Idling {
    /// Creates an idling that releases to the floor whenever the policy `idle` says so.
    pub fn new(releaser: &Releaser, idle: &Idle) -> Idling {
        Idling {
            releaser: releaser.clone(),
            idle: idle.clone(),
            target: Target::Floor,
            only_caches: false,
        }
    }

    /// Sets another target.
    #[must_use]
    pub fn to(mut self, target: Target) -> Idling {
        self.target = target;
        self
    }

    /// Releases only garbage and cached memory, and closes no gate: for a program that does not say when
    /// it works ([`Idling::notice`]).
    #[must_use]
    pub fn only_caches(mut self) -> Idling {
        self.only_caches = true;
        self
    }

    /// Counts work that was noticed and not announced: the quiet time begins again.
    pub fn notice(&self) {
        drop(self.idle.task());
    }

    /// Returns the same idling with another clock for the waits of its caller, as
    /// [`Releaser::with_clock`]. The policy keeps its own.
    #[must_use]
    pub fn with_clock(&self, clock: Arc<dyn Clock>) -> Idling {
        Idling { releaser: self.releaser.with_clock(clock), ..self.clone() }
    }

    /// Begins a task: enters the gate, and brings back what a release took off the device
    /// ([`Releaser::enter`]). An idle release that is under way stops at its next safe point.
    ///
    /// # Errors
    /// If something could not be brought back; the task has not begun then. In a forked child that
    /// inherited the releaser.
    #[track_caller]
    pub fn work(&self) -> Result<Working, RestoreError> {
        if self.is_inherited() {
            return Err(lowtide_pool::Error::from(lowtide_device::Error::Forked).into());
        }
        // Counted first: that is what stops an idle release.
        let task = self.idle.task();
        let (pass, restored) = self.releaser.enter()?;
        Ok(Working { pass, task, restored, idling: self.clone() })
    }

    /// Releases if it is time. Never waits for work, and stops when work arrives.
    pub fn tick(&self) -> Tick {
        if self.is_inherited() {
            return Tick::No(Decision::Inherited);
        }
        let gauge = self.releaser.inventory().gauge();
        let neighbours = || gauge.map_or_else(Vec::new, Gauge::neighbours);
        let ticket = match self.idle.due_beside(|| self.has_something(), neighbours) {
            Decision::Release(ticket) => ticket,
            decision => return Tick::No(decision),
        };
        let (gate, is_stale) = (self.releaser.gate().clone(), ticket.staleness());
        let request = if self.only_caches {
            Request::new("idle", Ladder::cache())
        } else {
            Request::new("idle", Ladder::idle()).to(self.target).or_refuse()
        };
        let request =
            request.summarised().go_on_while(move || !is_stale() && gate.state().waiting == 0);
        let receipt = self.releaser.release(request);
        if receipt.verdict == Verdict::Busy {
            ticket.put_back();
        } else {
            ticket.done();
        }
        Tick::Released(receipt)
    }

    /// Returns how long to wait before the next tick.
    pub fn pause_after(&self, tick: &Tick) -> Duration {
        let pause = match tick {
            Tick::No(Decision::Wait { left }) => *left,
            // Who ends a task releases, and the watch only makes up for tasks that were dropped.
            _ if self.idle.options().at_end => LONGEST_PAUSE,
            _ => self.idle.options().after,
        };
        pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }

    /// Whether a forked child inherited the releaser or the policy.
    fn is_inherited(&self) -> bool {
        self.releaser.is_inherited() || self.idle.is_inherited()
    }

    /// Ticks until it is told to stop: the loop of a thread that watches for idle time. `pause` waits
    /// for the given time and returns whether to go on; `on_release` gets the receipt of every idle
    /// release. Returns at once in a forked child that inherited the idling.
    pub fn watch(
        &self,
        mut pause: impl FnMut(Duration) -> bool,
        mut on_release: impl FnMut(&Receipt),
    ) {
        loop {
            let tick = self.tick();
            match &tick {
                Tick::Released(receipt) => on_release(receipt),
                Tick::No(Decision::Inherited) => return,
                Tick::No(_) => {}
            }
            if !pause(self.pause_after(&tick)) {
                return;
            }
        }
    }

    /// Whether there is anything to free: memory of an allocator (sleeping memory is not on the
    /// device), or memory above the target.
    fn has_something(&self) -> bool {
        let inventory = self.releaser.inventory();
        let reading = inventory.read();
        if self.only_caches {
            return reading.reserved > reading.allocated;
        }
        reading.reserved.0 > 0 || self.target.is_met(&reading, inventory.floor()) == Some(false)
    }
}

debug_as!(Idling, |it| "Idling({:?}, {})", it.releaser, it.target);

/// A task that is running. No release takes its memory while it exists.
#[derive(Debug)]
#[must_use = "dropping it ends the task"]
pub struct Working {
    // Dropped in this order: out of the gate first, then counted as finished.
    pass: OwnedPass,
    task: Task,
    restored: Option<Restored>,
    idling: Idling,
}

impl Working {
    /// Asks whether the task should stop, as [`Pass::checkpoint`](crate::Pass::checkpoint).
    pub fn checkpoint(&mut self) -> Step {
        self.pass.checkpoint()
    }

    /// Ends the task. If the policy frees [at the end of a task](crate::IdleOptions::at_end), releases at
    /// once, on this thread. A task that is dropped leaves that to the thread that watches.
    pub fn end(self) -> Option<Tick> {
        let Working { pass, task, idling, .. } = self;
        // Out of the gate first, then counted as finished.
        drop(pass);
        drop(task);
        idling.idle.options().at_end.then(|| idling.tick())
    }

    /// The same by another clock, as [`Releaser::with_clock`].
    pub fn end_with_clock(mut self, clock: Arc<dyn Clock>) -> Option<Tick> {
        self.idling = self.idling.with_clock(clock);
        self.end()
    }

    /// Returns what was brought back before the task began.
    pub fn restored(&self) -> Option<&Restored> {
        self.restored.as_ref()
    }

    /// Returns the pass of the task, for parts that enter
    /// [within](crate::Gate::enter_within) it.
    pub fn pass(&self) -> &OwnedPass {
        &self.pass
    }
}

#[cfg(test)]
mod tests {
    use lowtide_device::{Device, HostOptions};
    use lowtide_pool::{Phase, Pool, Tag};
    use lowtide_types::Bytes;

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn work_that_is_only_noticed_keeps_what_is_in_use() {
        let options = HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() };
        let device = Device::host(options).unwrap();
        let pool = Pool::new(&device).unwrap();
        let clock = ManualClock::default();
        let releaser = Releaser::new(&device, Arc::new(clock.clone()));
        releaser.add_pool(&pool);
        let idle = Idle::new("30s".parse().unwrap(), Arc::new(clock.clone()));
        let idling = Idling::new(&releaser, &idle).only_caches();
        let model = pool.block(Bytes::mib(8)).unwrap();
        drop(pool.block(Bytes::mib(16)).unwrap());
        clock.advance(Duration::from_secs(60));
        assert!(matches!(idling.tick(), Tick::No(Decision::NothingRan)), "nothing was noticed");
        idling.notice();
        clock.advance(Duration::from_secs(29));
        assert!(matches!(idling.tick(), Tick::No(Decision::Wait { .. })));
        clock.advance(Duration::from_secs(1));
        let Tick::Released(receipt) = idling.tick() else { panic!("it was time") };
        assert_eq!(receipt.verdict, Verdict::Released);
        assert_eq!(device.usage().unwrap().in_use(), Bytes::mib(8));
        assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake, "nothing was put to sleep");
        idling.notice();
        clock.advance(Duration::from_secs(60));
        assert!(matches!(idling.tick(), Tick::No(Decision::NothingToUnload)));
        drop(model);
    }
}
