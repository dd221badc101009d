//! The rungs `context_reset` and `fallback`: the last of a ladder.

use std::sync::Arc;
use std::time::Duration;

use lowtide_types::RungName;

use super::collect::COLLECT;
use super::hooked::{CACHES, SESSIONS, TO_HOST, expect, run, run_at};
use super::rung::{Climbed, Expectation, Rung};
use super::sleep::{SLEEP_LIMIT, Sleep};
use super::trim::Trim;
use crate::callbacks::{Climb, Hook, HookPoint, Round};
use crate::failure::Failure;
use crate::readings::Inventory;

/// Ends what is disposable, and with it its context: worker processes, which are started anew at their
/// next use. A context of this process is reset only if the process is disposable, because in a live
/// framework that destroys memory in use.
#[derive(Debug)]
pub struct ContextReset;

impl ContextReset {
    /// Returns the hooks whose object is disposable.
    fn disposable(inventory: &Inventory) -> Vec<Arc<Hook>> {
        let mut hooks = inventory.hooks(HookPoint::ContextReset);
        hooks.retain(|hook| inventory.is_disposable() || hook.is_of_disposable());
        hooks
    }
}

impl Rung for ContextReset {
    fn name(&self) -> RungName {
        RungName::ContextReset
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        let hooks = ContextReset::disposable(inventory);
        match expect(&hooks, "no hook can reset the context") {
            Expectation::Skip(why) if !inventory.is_disposable() => {
                let own = "the process is not disposable, and a reset destroys memory in use";
                let others = if hooks.is_empty() { String::new() } else { format!("; {why}") };
                Expectation::Skip(format!("{own}{others}"))
            }
            expectation => expectation,
        }
    }

    fn hooks(&self, inventory: &Inventory) -> Vec<Arc<Hook>> {
        inventory.hooks(HookPoint::ContextReset)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        run(&ContextReset::disposable(inventory), climb, Round::ONLY, &mut climbed);
        Ok(climbed)
    }
}

/// Climbs every rung that frees memory without losing any once more, then runs the hooks of the last
/// resort.
///
/// In a large heap that takes a second. If it has freed nothing, the rungs are left out until other numbers
/// are read than then.
#[derive(Debug)]
pub struct Fallback;

impl Rung for Fallback {
    fn name(&self) -> RungName {
        RungName::Fallback
    }

    fn limit(&self) -> Duration {
        SLEEP_LIMIT
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        Expectation::Bytes(None)
    }

    fn hooks(&self, inventory: &Inventory) -> Vec<Arc<Hook>> {
        let rungs: [&dyn Rung; 4] = [&TO_HOST, &SESSIONS, &CACHES, &COLLECT];
        let of_rungs = rungs.iter().flat_map(|rung| rung.hooks(inventory));
        of_rungs.chain(inventory.hooks(HookPoint::Fallback)).collect()
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        let before = inventory.read();
        let was_in_vain = inventory.fallback_was_in_vain(&before);
        if !was_in_vain {
            for hooked in [&TO_HOST, &SESSIONS, &CACHES] {
                hooked.run(inventory, climb, &mut climbed);
            }
            for rung in [&COLLECT as &dyn Rung, &Trim, &Sleep] {
                if !climb.go_on() {
                    return Ok(Climbed { stopped: true, ..climbed });
                }
                climbed.attempt_rung(rung.name().as_str(), || rung.climb(inventory, climb));
            }
            inventory.note_fallback(&before, inventory.read());
        }
        run_at(HookPoint::Fallback, inventory, climb, Round::ONLY, &mut climbed);
        Ok(climbed)
    }
}
