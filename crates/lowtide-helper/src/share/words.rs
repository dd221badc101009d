//! Why a call waits, for people.

use std::time::Duration;

use super::amounts::{Amounts, unsigned};
use super::family::{Families, Family, FamilyId};
use super::plan::Giver;
use super::room::{DeviceFree, Room};
use super::waits::Waiting;

/// What a call waits for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Reason {
    pub(super) why: String,
    pub(super) command: Option<String>,
    pub(super) expected: Option<Duration>,
}

/// Says that programs give way, now or when their residence is over.
pub(super) fn for_givers(
    families: &Families,
    givers: &[Giver],
    now: Duration,
    wake: Duration,
) -> Reason {
    let mut reason = Reason::default();
    let mut until = now;
    let mut parts = Vec::new();
    for giver in givers {
        let Some(family) = families.get(&giver.id) else { continue };
        let does = if giver.from > now { "works; its turn ends soon" } else { "gives way" };
        parts.push(format!("{} {does}", family.name()));
        until = until.max(giver.from + family.switch().saturating_sub(family.wake()));
        if giver.from > now {
            reason.command = Some(format!("lowtide sleep {}", family.pid()));
        }
    }
    reason.why = parts.join(", ");
    reason.expected = Some(until.saturating_sub(now) + wake);
    reason
}

/// Says that memory is on its way out.
pub(super) fn for_orders(families: &Families, extra: &Amounts, wake: Duration) -> Reason {
    let giving = families.values().filter_map(|it| Some((it, it.order.as_ref()?)));
    let giving = giving.filter(|(_, order)| order.gain.meets(extra)).map(|(family, _)| family);
    let took = giving.clone().map(|it| it.switch().saturating_sub(it.wake())).max();
    let names: Vec<_> = giving.map(|family| format!("{} gives way", family.name())).collect();
    let why = if names.is_empty() { "it is next".to_owned() } else { names.join(", ") };
    Reason { why, command: None, expected: Some(took.unwrap_or_default() + wake) }
}

/// Says who is in the way and cannot be made to move.
pub(super) fn for_obstacles(
    families: &Families,
    room: &Room,
    wait: &Waiting,
    missing: &Amounts,
    now: Duration,
) -> Reason {
    let mut reason = Reason::default();
    let mut parts = Vec::new();
    for (_, family) in families.iter().filter(|(id, _)| **id != wait.family) {
        let held = family.held();
        if !held.meets(missing) {
            continue;
        }
        if let Some(obstacle) = family.obstacle(now) {
            parts.push(format!(
                "{} has {} and {}",
                family.name(),
                on(&held, missing),
                obstacle.why
            ));
            reason.command = reason.command.or(obstacle.command);
        } else if family.order.is_none() {
            let has = on(&held, missing);
            parts.push(format!("{} has {has} and is waited for by others", family.name()));
        }
    }
    for device in devices(room, missing) {
        for other in &device.others {
            let bytes = other.bytes.map_or_else(|| "memory".to_owned(), |bytes| bytes.to_string());
            parts.push(format!(
                "process {} ({}) has {bytes} and does not share",
                other.pid, other.command
            ));
            reason.command.get_or_insert_with(|| format!("kill {}", other.pid));
        }
    }
    if parts.is_empty() {
        parts.push("calls that came first have the room".to_owned());
    }
    reason.why = parts.join("; ");
    reason
}

/// Says whose memory of a device cannot be moved, as the end of a sentence.
pub(super) fn fixed_by(families: &Families, device: &DeviceFree, asker: FamilyId) -> String {
    let is_fixed = |it: &Family| it.is_lasting() && it.held().at(&device.uuid) > 0;
    let fixed = families.iter().filter(|(id, it)| **id != asker && is_fixed(it));
    let programs = fixed.map(|(_, family)| family.name());
    let others = device.others.iter().map(|it| format!("process {} ({})", it.pid, it.command));
    let names: Vec<String> = programs.chain(others).collect();
    if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
}

fn devices<'a>(room: &'a Room, on: &'a Amounts) -> impl Iterator<Item = &'a DeviceFree> {
    room.devices.values().filter(|device| on.at(&device.uuid) > 0)
}

/// Returns the size on the devices where something is missing.
fn on(held: &Amounts, missing: &Amounts) -> String {
    let sum = held.iter().filter(|(uuid, _)| missing.at(uuid) > 0).map(|(_, bytes)| bytes).sum();
    unsigned(sum).to_string()
}
