//! The rungs `context_reset` and `fallback`: the last of a ladder.

use std::sync::Arc;
use std::time::Duration;

use lowtide_types::RungName;

use super::collect::Collect;
use super::hooked::{CACHES, SESSIONS, TO_HOST, expect, run_at};
use super::sleep::{SLEEP_LIMIT, Sleep};
use super::trim::Trim;
use crate::climb::Climb;
use crate::failure::Failure;
use crate::hooks::{Hook, HookPoint, Round};
use crate::inventory::Inventory;
use crate::rung::{Climbed, Expectation, Rung};

/// Destroys the context and creates it anew. Only in a disposable process, because in a live framework
/// it destroys memory that is in use.
#[derive(Debug)]
pub struct ContextReset;

impl Rung for ContextReset {
    fn name(&self) -> RungName {
        RungName::ContextReset
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        if !inventory.is_disposable() {
            let why = "the process is not disposable, and a reset destroys memory in use";
            return Expectation::Skip(why.to_owned());
        }
        expect(&inventory.hooks(HookPoint::ContextReset), "no hook can reset the context")
    }

    fn hooks(&self, inventory: &Inventory) -> Vec<Arc<Hook>> {
        inventory.hooks(HookPoint::ContextReset)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        run_at(HookPoint::ContextReset, inventory, climb, Round::ONLY, &mut climbed);
        Ok(climbed)
    }
}

/// Climbs every rung that frees memory without losing any once more, then runs the hooks of the last
/// resort.
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
        let rungs: [&dyn Rung; 4] = [&TO_HOST, &SESSIONS, &CACHES, &Collect];
        let of_rungs = rungs.iter().flat_map(|rung| rung.hooks(inventory));
        of_rungs.chain(inventory.hooks(HookPoint::Fallback)).collect()
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        for hooked in [&TO_HOST, &SESSIONS, &CACHES] {
            hooked.run(inventory, climb, &mut climbed);
        }
        for rung in [&Collect as &dyn Rung, &Trim, &Sleep] {
            if !climb.go_on() {
                return Ok(Climbed { stopped: true, ..climbed });
            }
            climbed.attempt_rung(rung.name().as_str(), || rung.climb(inventory, climb));
        }
        run_at(HookPoint::Fallback, inventory, climb, Round::ONLY, &mut climbed);
        Ok(climbed)
    }
}
