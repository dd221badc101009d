//! What must be true of every receipt, whatever other threads do meanwhile.

use lowtide_release::{Receipt, RungOutcome, Verdict};

use crate::figures;
use crate::trail::{ON_PURPOSE, fail, note};
use crate::world::World;

/// Checks a receipt against its own numbers and counts it.
pub(crate) fn check(world: &World, receipt: &Receipt) {
    figures::release(receipt.verdict);
    note(format_args!("{}: {}", receipt.name, receipt.verdict));
    if let Some(wrong) = wrong(world, receipt) {
        fail(format!("a receipt is wrong: {wrong}\n{}", receipt.detailed()));
    }
}

fn wrong(world: &World, receipt: &Receipt) -> Option<String> {
    let of_readings = receipt.after.freed_since(&receipt.before);
    if receipt.freed_bytes != of_readings {
        return Some(format!(
            "freed {:?}, but the readings say {of_readings:?}",
            receipt.freed_bytes
        ));
    }
    if receipt.verdict == Verdict::NoDevice {
        return Some("there is a device".to_owned());
    }
    if receipt.verdict == Verdict::Unverified && !world.has_faults {
        return Some("the device could be asked".to_owned());
    }
    if receipt.verdict == Verdict::Released {
        let floor = world.releaser.inventory().floor();
        let is_met = receipt.target.map(|target| target.is_met(&receipt.after, floor));
        match is_met {
            Some(Some(true)) => {}
            Some(met) => return Some(format!("released, but its target is met: {met:?}")),
            None if receipt.freed_bytes.is_some_and(|freed| freed > 0) => {}
            None => return Some("released, but nothing was freed".to_owned()),
        }
    }
    if let Some(ledger) = &receipt.ledger
        && ledger.sum() != ledger.driver_bytes.0.cast_signed()
    {
        return Some("the ledger does not add up".to_owned());
    }
    receipt.rungs.iter().find_map(|rung| {
        let name = &rung.rung;
        if rung.freed_bytes != rung.after.freed_since(&rung.before) {
            return Some(format!("{name} freed other bytes than its readings say"));
        }
        match &rung.outcome {
            RungOutcome::Panicked { message } if !message.contains(ON_PURPOSE) => {
                Some(format!("{name} panicked: {message}"))
            }
            _ => None,
        }
    })
}
