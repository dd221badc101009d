//! What must be true of every receipt, whatever other threads do meanwhile.

use lowtide_release::{Claim, ClaimBasis, Gauge, Receipt, RungOutcome, Verdict};

use crate::figures;
use crate::sabotage::{self, Sabotage};
use crate::trail::{ON_PURPOSE, fail, note};
use crate::world::World;

/// Checks a receipt against its own numbers and counts it.
pub(crate) fn check(world: &World, receipt: &Receipt) {
    figures::release(receipt.verdict);
    note(format_args!("{}: {}", receipt.name, receipt.verdict));
    let mut receipt = receipt.clone();
    if sabotage::is(Sabotage::Receipt) {
        receipt.verdict = Verdict::Released;
        receipt.claim = Some(Claim::new(ClaimBasis::Cached, world.device.info().total));
    }
    if let Some(wrong) = wrong(world, &receipt) {
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
    if receipt.verdict == Verdict::Released
        && let Some(wrong) = wrongly_released(world, receipt)
    {
        return Some(wrong);
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

/// Checks the claim of a receipt that says `released`.
fn wrongly_released(world: &World, receipt: &Receipt) -> Option<String> {
    let Some(claim) = receipt.claim else { return Some("released without a claim".to_owned()) };
    if let Some(target) = receipt.target {
        let met = target.is_met(&receipt.after, world.releaser.inventory().floor());
        return (met != Some(true)).then(|| format!("released, but its target is met: {met:?}"));
    }
    let page = world.device.info().page.0;
    // Less than a page does not show in the device's number.
    let tolerance = Gauge::noise(&world.device).0.max(page - 1).cast_signed();
    let (claimed, freed) = (claim.bytes.0.cast_signed(), receipt.freed_bytes.unwrap_or(i64::MIN));
    // A level is judged with what libraries grew by, which is not in the receipt.
    let is_met = claim.basis == ClaimBasis::Level || freed >= claimed - tolerance;
    (!is_met).then(|| format!("released, but {claimed} bytes were claimed and {freed} freed"))
}
