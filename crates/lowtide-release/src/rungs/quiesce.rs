//! The rung `quiesce`.

use lowtide_types::{Bytes, RungName};

use super::rung::{Climbed, Expectation, Rung};
use crate::callbacks::Climb;
use crate::failure::Failure;
use crate::readings::Inventory;

/// Waits for all work on the device. The releaser has closed the gate by then.
#[derive(Debug)]
pub struct Quiesce;

impl Rung for Quiesce {
    fn name(&self) -> RungName {
        RungName::Quiesce
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        match inventory.gauge() {
            Some(_) => Expectation::Bytes(Some(Bytes::ZERO)),
            None => Expectation::Skip("there is no device".to_owned()),
        }
    }

    fn climb(&self, inventory: &Inventory, _: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        if let Some(gauge) = inventory.gauge() {
            gauge.synchronize()?;
            climbed.touched.push(format!("{}, all streams", gauge.id()).into());
        }
        Ok(climbed)
    }
}
