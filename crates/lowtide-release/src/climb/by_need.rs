//! Releases that do no more than needed: a full collection takes long in a large heap, and mostly finds
//! nothing.
//!
//! A full collection leaves no garbage behind. As long as the collectors have noticed no new garbage and
//! no allocator has handed out or taken back a block since, there is nothing to do, and the release only
//! reads the numbers. Otherwise it collects young objects and trims. A full collection follows if the
//! collectors have noticed something, if the claim is not met, or if more is allocated than the last one
//! left.
//!
//! What a collector cannot notice is found all the same: a full collection is due again as soon as it
//! takes no more than a small share of the time (R15).

use std::time::Duration;

use lowtide_types::{Reading, Receipt, RungName, RungReceipt, Verdict};

use super::claims::tolerance;
use super::climber::untouched;
use super::releaser::Releaser;
use super::request::{Request, Thrift};
use crate::callbacks::HookPoint;
use crate::gate::Gate;
use crate::readings::Inventory;

impl Releaser {
    /// Climbs as far as needed.
    pub(crate) fn climb_by_need(&self, request: &Request, closes: Option<&Gate>) -> Receipt {
        let (inventory, began) = (self.inventory(), self.clock().now());
        let recent = self.collected().filter(|last| last.is_recent(began));
        let Some(last) = recent.filter(|_| may_leave_out(request)) else {
            return self.climb(request, closes);
        };
        let mut request = request.clone();
        let before = inventory.read();
        let has_nothing = has_nothing_to_find(&request, inventory);
        let is_unchanged = last.is_the_last_act(inventory);
        if has_nothing && is_unchanged && has_no_other_rung(&request, inventory) {
            let why = "nothing was allocated or freed since the last full collection";
            let receipt = self.rest(&request, why, before);
            if is_met(&receipt, &request, inventory) {
                return receipt;
            }
        }
        request.done = request.done.or_else(|| self.freed_by_asking(before, began));
        if !has_nothing {
            return self.climb(&request, closes);
        }
        let mut short = request.clone();
        short.ladder = short.ladder.with_young_collection();
        let receipt = self.climb(&short, closes);
        let has_grown = last.has_grown(&receipt.after, inventory.noise());
        if is_met(&receipt, &request, inventory) && !has_grown {
            self.set_collected(last.followed_by(&receipt.after, inventory));
            return receipt;
        }
        if receipt.stopped_at.is_some() || self.clock().is_interrupted() {
            return receipt;
        }
        // What the short one freed counts as the first rung of the full one.
        let first = receipt.rung(RungName::Collect.as_str()).cloned();
        request.done = first.map(|rung| RungReceipt { before: receipt.before, ..rung });
        self.climb(&request, closes)
    }

    /// Returns what the question to the collectors freed, as a rung: a collector may look at young
    /// objects to answer it.
    fn freed_by_asking(&self, before: Reading, began: Duration) -> Option<RungReceipt> {
        let inventory = self.inventory();
        if inventory.read_as_counted().is_like(&before, inventory.noise()) {
            return None;
        }
        let after = inventory.read();
        let took_s = self.clock().since(began).as_secs_f64();
        let freed_bytes = after.freed_since(&before);
        let rung = untouched(RungName::Collect, 1, before);
        Some(RungReceipt { after, freed_bytes, took_s, ..rung })
    }
}

/// Returns whether a release may leave something out.
fn may_leave_out(request: &Request) -> bool {
    request.thrift != Thrift::None && request.ladder.names().contains(&RungName::Collect)
}

/// Returns whether the collectors would find nothing, as far as they can tell.
fn has_nothing_to_find(request: &Request, inventory: &Inventory) -> bool {
    let by_default = request.thrift == Thrift::ByTime;
    let collectors = inventory.hooks(HookPoint::Collect);
    collectors.iter().all(|collector| collector.would_find_nothing().unwrap_or(by_default))
}

/// Returns whether a release has done what it claimed, or claimed less than the number can show.
fn is_met(receipt: &Receipt, request: &Request, inventory: &Inventory) -> bool {
    let least = tolerance(request, inventory, &receipt.after);
    let is_small = receipt.claim.is_some_and(|claim| claim.bytes.0.cast_signed() <= least);
    let is_read = receipt.after.in_use().is_some();
    receipt.verdict.is_proved() || (receipt.verdict == Verdict::Unverified && is_read && is_small)
}

/// Returns whether a ladder has nothing to run but collections and trims.
fn has_no_other_rung(request: &Request, inventory: &Inventory) -> bool {
    let others = request.ladder.rungs().iter().map(|placed| &placed.rung);
    let others = others.filter(|rung| ![RungName::Collect, RungName::Trim].contains(&rung.name()));
    others.flat_map(|rung| rung.hooks(inventory)).all(|hook| !hook.applies())
}
