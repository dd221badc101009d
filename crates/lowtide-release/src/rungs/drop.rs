//! The rung `drop`.

use lowtide_types::{RungName, Touch};

use super::rung::{Climbed, Expectation, Rung};
use crate::callbacks::Climb;
use crate::failure::Failure;
use crate::owners::DropOutcome;
use crate::readings::Inventory;

/// Drops owners in plan order, wrappers first.
#[derive(Debug)]
pub struct DropOwners;

impl Rung for DropOwners {
    fn name(&self) -> RungName {
        RungName::Drop
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        let plan = inventory.owners().plan();
        if plan.steps.is_empty() {
            return Expectation::Skip("no owner has anything".to_owned());
        }
        Expectation::Bytes(plan.steps.iter().map(|step| step.bytes).sum())
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let shutdown = inventory.owners().shutdown_while(&|| climb.go_on());
        let mut climbed = Climbed { stopped: !climb.go_on(), ..Climbed::default() };
        for dropped in &shutdown.dropped {
            climbed.touched.push(Touch { what: dropped.name.clone(), bytes: dropped.bytes });
            if let DropOutcome::Panicked { message } = &dropped.outcome {
                climbed.failures.push(format!("{}: its drop panicked: {message}", dropped.name));
            }
        }
        Ok(climbed)
    }
}
