//! The rung `trim`.

use lowtide_types::{Bytes, RungName, Touch};

use super::rung::{Climbed, Expectation, Rung};
use crate::callbacks::Climb;
use crate::failure::Failure;
use crate::readings::Inventory;

/// Waits for the device, because memory that its work still uses cannot be freed; returns the cached
/// memory of every known allocator to the driver; waits again.
#[derive(Debug)]
pub struct Trim;

impl Rung for Trim {
    fn name(&self) -> RungName {
        RungName::Trim
    }

    fn lets_work_go_on(&self) -> bool {
        true
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        let allocators = inventory.allocators();
        if allocators.is_empty() {
            return Expectation::Skip("no allocator is known".to_owned());
        }
        let counts = allocators.iter().map(|allocator| allocator.counts());
        let cached = counts.map(|counts| counts.reserved.saturating_sub(counts.allocated)).sum();
        Expectation::Bytes(Some(cached))
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        synchronize(inventory, &mut climbed);
        trim_all(inventory, climb, &mut climbed);
        synchronize(inventory, &mut climbed);
        Ok(climbed)
    }
}

fn synchronize(inventory: &Inventory, climbed: &mut Climbed) {
    let Some(gauge) = inventory.gauge() else { return };
    climbed.attempt("synchronise", || {
        gauge.synchronize()?;
        Ok(Vec::new())
    });
}

/// Trims every allocator, each on its own.
pub(super) fn trim_all(inventory: &Inventory, climb: &Climb, climbed: &mut Climbed) {
    for allocator in inventory.allocators() {
        if !climb.go_on() {
            climbed.stopped = true;
            return;
        }
        let name = allocator.name();
        climbed.attempt(&name, || {
            if let Some(why) = allocator.why_not_trim() {
                return Err(why.into());
            }
            let freed = allocator.trim()?;
            let touched = (freed > Bytes::ZERO)
                .then(|| Touch::sized(format!("{name}, cached memory"), freed));
            Ok(touched.into_iter().collect())
        });
    }
}
