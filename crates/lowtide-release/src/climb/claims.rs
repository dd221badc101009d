//! Claims, counted before a release starts, and what they are held to afterwards.

use std::sync::Arc;

use lowtide_types::{Bytes, Claim, ClaimBasis, Reading, RungName};

use super::request::{Claiming, Request};
use crate::callbacks::{Hook, HookPoint};
use crate::readings::{Gauge, Inventory};

/// Counts what a release says it will free.
pub(crate) fn claim(request: &Request, inventory: &Inventory, before: &Reading) -> Claim {
    if let Some(target) = request.to {
        let excess = target.excess(before, inventory.floor());
        return Claim::new(ClaimBasis::Target, excess.unwrap_or_default());
    }
    match request.claiming {
        Claiming::Owned(bytes) => Claim::new(ClaimBasis::Owned, bytes),
        Claiming::Level { level, .. } => {
            let (now, level) = (before.in_use(), level.in_use());
            let above = now.zip(level).map(|(now, level)| now.saturating_sub(level));
            Claim::new(ClaimBasis::Level, above.unwrap_or_default())
        }
        // Also if every owner has left: a second shutdown claims what the first one left behind.
        Claiming::ByLadder if drops(request) && inventory.owners().has_had_any() => {
            let plan = inventory.owners().plan();
            let measured = plan.steps.iter().filter_map(|step| step.bytes).sum::<Bytes>();
            // An owner that measures nothing may have any block, so all of them are claimed.
            Claim::new(ClaimBasis::Owned, measured.max(before.reserved))
        }
        Claiming::ByLadder => Claim::new(ClaimBasis::Cached, inventory.trimmable()),
    }
}

fn drops(request: &Request) -> bool {
    request.ladder.names().contains(&RungName::Drop)
}

/// Returns by how much a claim may be missed: the noise of the device's number, what is less than its
/// unit, and for a level the growth of libraries.
pub(crate) fn tolerance(request: &Request, inventory: &Inventory, after: &Reading) -> i64 {
    let unit = inventory.gauge().map_or(Bytes(1), Gauge::grain).0.saturating_sub(1);
    let libraries = match request.claiming {
        Claiming::Level { level, may_be_libraries: true } if request.to.is_none() => {
            outside_growth(inventory, &level, after)
        }
        _ => Bytes::ZERO,
    };
    (inventory.noise().0.max(unit) + libraries.0).cast_signed()
}

/// Returns by how much this process's memory outside the allocators has grown since an earlier
/// reading: loaded modules and workspaces. A device without a context has no such memory.
pub(crate) fn outside_growth(inventory: &Inventory, earlier: &Reading, now: &Reading) -> Bytes {
    if inventory.floor() == Some(Bytes::ZERO) {
        return Bytes::ZERO;
    }
    let outside = |reading: &Reading| Some(reading.own?.saturating_sub(reading.reserved));
    let grown = outside(now).zip(outside(earlier));
    grown.map_or(Bytes::ZERO, |(now, earlier)| now.saturating_sub(earlier))
}

/// Names the hooks that apply and that the rungs of a ladder do not run. Those that take whole processes off
/// the device are asked for by a target of zero alone, so no release is told that it left them out.
pub(crate) fn hooks_not_run(request: &Request, inventory: &Inventory) -> Vec<String> {
    let run: Vec<Arc<Hook>> = {
        let rungs = request.ladder.rungs().iter();
        rungs.flat_map(|placed| placed.rung.hooks(inventory)).collect()
    };
    let mut not_run = Vec::new();
    let whole = [HookPoint::Suspend, HookPoint::Exit];
    for point in HookPoint::ALL.into_iter().filter(|point| !whole.contains(point)) {
        let hooks = inventory.hooks(point).into_iter();
        let left_out = hooks.filter(|hook| !run.iter().any(|other| Arc::ptr_eq(hook, other)));
        let applying = left_out.filter(|hook| hook.applies());
        not_run.extend(applying.map(|hook| format!("{}: {}", point.rung(), hook.name())));
    }
    not_run
}
