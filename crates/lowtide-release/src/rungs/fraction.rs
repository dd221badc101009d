//! The rung `fraction`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lowtide_types::RungName;

use super::rung::{Climbed, Expectation, Rung};
use super::trim::trim_all;
use crate::callbacks::{Climb, Restore};
use crate::failure::{Failure, message};
use crate::readings::Inventory;

/// Lowers the allocators' fractions, trims, resets their statistics and restores the fractions.
#[derive(Debug)]
pub struct Fraction;

impl Rung for Fraction {
    fn name(&self) -> RungName {
        RungName::Fraction
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        if inventory.settings().is_empty() {
            return Expectation::Skip("no allocator has a fraction to lower".to_owned());
        }
        Expectation::Bytes(None)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        let mut lowered = Vec::new();
        for setting in inventory.settings() {
            if !climb.go_on() {
                climbed.stopped = true;
                break;
            }
            let name = setting.name();
            climbed.attempt(&name, || {
                lowered.push((Restoring::new(&name, setting.lower()?), Arc::clone(&setting)));
                Ok(Vec::new())
            });
        }
        trim_all(inventory, climb, &mut climbed);
        for (restoring, setting) in lowered {
            let name = setting.name();
            climbed.attempt(&name, || {
                setting.reset_statistics()?;
                Ok(Vec::new())
            });
            climbed.attempt(&name, || {
                restoring.restore()?;
                Ok(vec![format!("{name}, lowered and restored").into()])
            });
        }
        Ok(climbed)
    }
}

/// A lowered setting. Dropping it restores the setting.
struct Restoring {
    name: String,
    restore: Option<Restore>,
}

impl Restoring {
    fn new(name: &str, restore: Restore) -> Restoring {
        Restoring { name: name.to_owned(), restore: Some(restore) }
    }

    fn restore(mut self) -> Result<(), Failure> {
        self.restore.take().map_or(Ok(()), |restore| restore())
    }
}

impl Drop for Restoring {
    fn drop(&mut self) {
        let Some(restore) = self.restore.take() else { return };
        // It may be dropped by a panic; a second one would end the process.
        let restored = catch_unwind(AssertUnwindSafe(restore));
        let failure = match restored {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure.to_string(),
            Err(panic) => message(&*panic),
        };
        tracing::error!(setting = self.name, failure, "a setting could not be restored");
    }
}
