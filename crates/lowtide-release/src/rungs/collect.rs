//! The rung `collect`.

use std::sync::Arc;

use lowtide_types::RungName;

use super::hooked::{expect, run_at};
use super::rung::{Climbed, Expectation, Rung};
use super::trim::trim_all;
use crate::callbacks::{Climb, Hook, HookPoint, Round};
use crate::failure::Failure;
use crate::readings::Inventory;

/// After this many rounds that each freed something, the rest is left to the next attempt.
const MOST_ROUNDS: u32 = 8;
/// Weights have been seen to die only in the second collection.
const LEAST_ROUNDS: u32 = 2;

/// Runs the host language's garbage collector, alternating with trim, until nothing more is freed.
#[derive(Debug)]
pub struct Collect {
    is_full: bool,
}

/// Looks at all objects.
pub const COLLECT: Collect = Collect { is_full: true };
/// Looks at young objects alone, which is fast: what a task has just left behind is young.
pub const YOUNG_COLLECT: Collect = Collect { is_full: false };

impl Rung for Collect {
    fn name(&self) -> RungName {
        RungName::Collect
    }

    fn lets_work_go_on(&self) -> bool {
        true
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        let none = "no collector of a host language is registered";
        expect(&inventory.hooks(HookPoint::Collect), none)
    }

    fn hooks(&self, inventory: &Inventory) -> Vec<Arc<Hook>> {
        inventory.hooks(HookPoint::Collect)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        Ok(collect(inventory, climb, self.is_full))
    }
}

/// Collects and trims in turn until nothing more is freed.
fn collect(inventory: &Inventory, climb: &Climb, is_full: bool) -> Climbed {
    let mut climbed = Climbed::default();
    let mut before = inventory.read_as_counted();
    for number in 0..MOST_ROUNDS {
        run_at(HookPoint::Collect, inventory, climb, Round { number, is_full }, &mut climbed);
        trim_all(inventory, climb, &mut climbed);
        let after = inventory.read_as_counted();
        let is_settled = after.is_like(&before, inventory.noise());
        if is_settled && number + 1 >= LEAST_ROUNDS {
            break;
        }
        if !climb.go_on() {
            climbed.stopped = true;
            break;
        }
        before = after;
    }
    climbed
}
