//! Rungs that are made of hooks: `to_host`, `sessions`, `caches`, `libraries`, `suspend`, `exit`, and those that
//! one release brings along.

use std::sync::Arc;
use std::time::Duration;

use lowtide_types::RungName;

use super::rung::{Climbed, Expectation, LIMIT, Rung};
use super::sleep::SLEEP_LIMIT;
use crate::callbacks::{Climb, Hook, HookPoint, Round};
use crate::failure::Failure;
use crate::readings::Inventory;

/// Runs the hooks that are registered at one point, each on its own: one that fails does not stop the
/// next.
#[derive(Debug)]
pub struct Hooked {
    name: RungName,
    point: HookPoint,
    /// The reason to skip the rung when no hook is registered.
    none: &'static str,
    /// Whether hooks that are [costly](Hook::costly) are left out, and work may go on.
    is_cheap: bool,
}

/// Moves models to host memory.
pub const TO_HOST: Hooked =
    Hooked::at(RungName::ToHost, HookPoint::ToHost, "no model can be moved to the host");
/// Closes sessions of inference runtimes.
pub const SESSIONS: Hooked =
    Hooked::at(RungName::Sessions, HookPoint::Sessions, "no inference runtime is known");
/// Clears registered caches.
pub const CACHES: Hooked =
    Hooked::at(RungName::Caches, HookPoint::Caches, "no cache is registered");
/// Clears the registered caches that are cheap to fill again, while work goes on.
pub const CHEAP_CACHES: Hooked = Hooked {
    name: RungName::Caches,
    point: HookPoint::Caches,
    none: "no cache is registered",
    is_cheap: true,
};
/// Frees workspaces, communicators and leftovers of other processes.
pub const LIBRARIES: Hooked =
    Hooked::at(RungName::Libraries, HookPoint::Libraries, "no library is known");

/// Takes whole processes off the device; they live on. Of the named ladders, [`LadderName::Zero`] has it.
///
/// [`LadderName::Zero`]: crate::LadderName::Zero
pub const SUSPEND: Hooked = Hooked::at(
    RungName::Suspend,
    HookPoint::Suspend,
    "no process is registered that can be suspended",
);
/// Ends processes, with all that they started. Of the named ladders, [`LadderName::Zero`] has it.
///
/// [`LadderName::Zero`]: crate::LadderName::Zero
pub const EXIT: Hooked =
    Hooked::at(RungName::Exit, HookPoint::Exit, "no process is registered that may end");

impl Hooked {
    const fn at(name: RungName, point: HookPoint, none: &'static str) -> Hooked {
        Hooked { name, point, none, is_cheap: false }
    }

    /// Runs the hooks as a part of another rung.
    pub(super) fn run(&self, inventory: &Inventory, climb: &Climb, climbed: &mut Climbed) {
        run(&self.hooks(inventory), climb, Round::ONLY, climbed);
    }
}

impl Rung for Hooked {
    fn name(&self) -> RungName {
        self.name.clone()
    }

    fn lets_work_go_on(&self) -> bool {
        self.is_cheap
    }

    // The driver copies the memory of a process that is suspended.
    fn limit(&self) -> Duration {
        if self.point == HookPoint::Suspend { SLEEP_LIMIT } else { LIMIT }
    }

    fn hooks(&self, inventory: &Inventory) -> Vec<Arc<Hook>> {
        let mut hooks = inventory.hooks(self.point);
        hooks.retain(|hook| !(self.is_cheap && hook.is_costly()));
        hooks
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        expect(&self.hooks(inventory), self.none)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        self.run(inventory, climb, &mut climbed);
        Ok(climbed)
    }
}

/// A rung of one release alone, made of hooks that the release brings.
#[derive(Debug)]
pub struct Parts {
    name: RungName,
    hooks: Vec<Arc<Hook>>,
}

impl Parts {
    /// Creates a rung under the name of the rung that it replaces.
    pub fn new(name: RungName, hooks: Vec<Hook>) -> Parts {
        Parts { name, hooks: hooks.into_iter().map(Arc::new).collect() }
    }
}

impl Rung for Parts {
    fn name(&self) -> RungName {
        self.name.clone()
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        expect(&self.hooks, "it has no parts")
    }

    fn climb(&self, _: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        run(&self.hooks, climb, Round::ONLY, &mut climbed);
        Ok(climbed)
    }
}

/// Returns how much hooks expect to free, or why none of them applies.
pub(super) fn expect(hooks: &[Arc<Hook>], none: &str) -> Expectation {
    if hooks.is_empty() {
        return Expectation::Skip(none.to_owned());
    }
    let skipped: Vec<Option<String>> = hooks.iter().map(|hook| hook.why_not()).collect();
    if skipped.iter().all(Option::is_some) {
        return Expectation::Skip(skipped.into_iter().flatten().collect::<Vec<_>>().join("; "));
    }
    let applying = hooks.iter().zip(skipped).filter(|(_, skipped)| skipped.is_none());
    Expectation::Bytes(applying.map(|(hook, _)| hook.expected()).sum())
}

/// Runs the hooks that are registered at a point.
pub(super) fn run_at(
    point: HookPoint,
    inventory: &Inventory,
    climb: &Climb,
    round: Round,
    climbed: &mut Climbed,
) {
    run(&inventory.hooks(point), climb, round, climbed);
}

pub(super) fn run(hooks: &[Arc<Hook>], climb: &Climb, round: Round, climbed: &mut Climbed) {
    for hook in hooks {
        if !climb.go_on() {
            climbed.stopped = true;
            return;
        }
        climbed.attempt_rung(hook.name(), || match hook.why_not() {
            Some(skipped) => Ok(Climbed { skipped: vec![skipped], ..Climbed::default() }),
            None => Ok(Climbed { touched: hook.run(climb, round)?, ..Climbed::default() }),
        });
    }
}
