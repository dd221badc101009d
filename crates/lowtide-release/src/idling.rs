//! Free on idle: the policy decides, the releaser does.
//!
//! Whoever has a timer calls [`Idling::tick`]. Work holds a [`Working`]: it passes the gate, counts as
//! active, and wakes what an idle release has put to sleep.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lowtide_pool::Scope;
use lowtide_types::{Receipt, Target, Verdict};

use crate::ask::Ask;
use crate::gate::{Pass, Step};
use crate::idle::{Decision, Idle, Task};
use crate::ladder::Ladder;
use crate::releaser::Releaser;

/// So often an idle release is tried while its target is missed and something still comes back.
const ATTEMPTS: u32 = 3;

/// What came of a look at the clock.
#[derive(Debug)]
pub enum Tick {
    /// Memory was given back; the receipt says how much.
    Released(Arc<Receipt>),
    /// Not yet, or not at all.
    No(Decision),
}

/// Gives memory back while nobody works.
#[derive(Clone)]
pub struct Idling {
    releaser: Releaser,
    idle: Idle,
    target: Target,
}

impl Idling {
    /// To the floor of the releaser's device, when the policy says so.
    pub fn new(releaser: &Releaser, idle: &Idle) -> Idling {
        Idling { releaser: releaser.clone(), idle: idle.clone(), target: Target::Floor }
    }

    /// To another target.
    #[must_use]
    pub fn to(mut self, target: Target) -> Idling {
        self.target = target;
        self
    }

    /// Begins a task: waits for a release that is under way, then wakes what sleeps.
    ///
    /// # Errors
    /// Where there is no room to wake; everything is still asleep then.
    pub fn work(&self) -> lowtide_pool::Result<Working> {
        let task = self.idle.task();
        let pass = self.releaser.gate().enter().into_owned();
        for pool in self.releaser.scene().pools() {
            pool.wake(Scope::Whole)?;
        }
        Ok(Working { pass, _task: task })
    }

    /// Looks whether it is time, and releases if it is. Never waits for work: what began meanwhile
    /// goes first.
    pub fn tick(&self) -> Tick {
        match self.idle.due(|| self.has_something()) {
            Decision::Release(claim) => {
                let ladder = Ladder::idle().attempts(ATTEMPTS);
                let ask = Ask::new("idle", ladder).to(self.target).or_refuse();
                let receipt = self.releaser.release(ask);
                if receipt.verdict == Verdict::Busy {
                    claim.put_back();
                } else {
                    claim.done();
                }
                Tick::Released(receipt)
            }
            decision => Tick::No(decision),
        }
    }

    /// How long the policy may be left alone.
    pub fn look_again_in(&self, tick: &Tick) -> Duration {
        match tick {
            Tick::No(Decision::Wait { left }) => *left,
            _ => self.idle.options().after,
        }
    }

    // Memory of an allocator (what sleeps has none on the device), or anything above the floor where
    // that is known.
    fn has_something(&self) -> bool {
        let scene = self.releaser.scene();
        let reading = scene.read();
        reading.reserved.0 > 0 || self.target.is_met(&reading, scene.floor()) == Some(false)
    }
}

impl fmt::Debug for Idling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Idling({:?}, {})", self.releaser, self.target)
    }
}

/// A task at work. Nothing is released while it lives.
#[must_use = "dropping it ends the task"]
pub struct Working {
    // First out of the gate, then counted as finished.
    pass: Pass<'static>,
    _task: Task,
}

impl Working {
    /// As [`Pass::checkpoint`].
    pub fn checkpoint(&mut self) -> Step {
        self.pass.checkpoint()
    }
}

impl fmt::Debug for Working {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Working")
    }
}
