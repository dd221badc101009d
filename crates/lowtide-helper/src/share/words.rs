//! Why a call waits, and the queue, for people.

use std::time::Duration;

use lowtide_proto::helper::DeviceBytes;
use lowtide_proto::share::{Holder, Queue, QueueDevice, Waiter};

use super::amounts::{Amounts, unsigned};
use super::member::{Member, MemberId};
use super::plan::Giver;
use super::room::{DeviceFree, Room};
use super::waits::{Members, Waiting, order};

/// What a call waits for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Reason {
    pub(super) why: String,
    pub(super) command: Option<String>,
    pub(super) expected: Option<Duration>,
}

/// Says that programs give way, now or when their residence is over.
pub(super) fn for_givers(
    members: &Members,
    givers: &[Giver],
    now: Duration,
    wake: Duration,
) -> Reason {
    let mut reason = Reason::default();
    let mut until = now;
    let mut parts = Vec::new();
    for giver in givers {
        let Some(member) = members.get(&giver.id) else { continue };
        let does = if giver.from > now { "works; its turn ends soon" } else { "gives way" };
        parts.push(format!("{} {does}", member.name()));
        until = until.max(giver.from + member.switch().saturating_sub(member.wake()));
        if giver.from > now {
            reason.command = Some(format!("lowtide sleep {}", member.target.pid));
        }
    }
    reason.why = parts.join(", ");
    reason.expected = Some(until.saturating_sub(now) + wake);
    reason
}

/// Says that memory is on its way out.
pub(super) fn for_orders(members: &Members, extra: &Amounts, wake: Duration) -> Reason {
    let giving = members.values().filter_map(|it| Some((it, it.order.as_ref()?)));
    let giving = giving.filter(|(_, order)| order.gain.meets(extra)).map(|(member, _)| member);
    let took = giving.clone().map(|it| it.switch().saturating_sub(it.wake())).max();
    let names: Vec<_> = giving.map(|member| format!("{} gives way", member.name())).collect();
    let why = if names.is_empty() { "it is next".to_owned() } else { names.join(", ") };
    Reason { why, command: None, expected: Some(took.unwrap_or_default() + wake) }
}

/// Says who is in the way and cannot be made to move.
pub(super) fn for_obstacles(
    members: &Members,
    room: &Room,
    wait: &Waiting,
    missing: &Amounts,
    now: Duration,
) -> Reason {
    let mut reason = Reason::default();
    let mut parts = Vec::new();
    for (_, member) in members.iter().filter(|(id, _)| **id != wait.member) {
        let held = member.held();
        if !held.meets(missing) {
            continue;
        }
        if let Some(obstacle) = member.obstacle(now) {
            parts.push(format!(
                "{} has {} and {}",
                member.name(),
                on(&held, missing),
                obstacle.why
            ));
            reason.command = reason.command.or(obstacle.command);
        } else if member.order.is_none() {
            let has = on(&held, missing);
            parts.push(format!("{} has {has} and is waited for by others", member.name()));
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
pub(super) fn fixed_by(members: &Members, device: &DeviceFree, asker: MemberId) -> String {
    let fixed = members.iter().filter(|(id, it)| **id != asker && it.is_lasting());
    let members = fixed.map(|(_, member)| member.name());
    let others = device.others.iter().map(|it| format!("process {} ({})", it.pid, it.command));
    let names: Vec<String> = members.chain(others).collect();
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

/// Returns the queue for `lowtide status`.
pub(super) fn queue(members: &Members, waits: &[Waiting], room: &Room, now: Duration) -> Queue {
    let leased = room.leased();
    let devices = room.devices.values().map(|device| QueueDevice {
        uuid: device.uuid.clone(),
        capacity: device.capacity,
        free: device.free,
        granted: unsigned(leased.at(&device.uuid)),
    });
    let mut holders: Vec<Holder> = members.values().map(|member| holder(member, now)).collect();
    for device in room.devices.values() {
        holders.extend(device.others.iter().map(|other| Holder {
            pid: other.pid,
            command: other.command.clone(),
            priority: None,
            state: None,
            devices: vec![DeviceBytes {
                uuid: device.uuid.clone(),
                bytes: other.bytes.unwrap_or_default(),
            }],
            since_s: None,
            idle_s: None,
            protected_s: 0.0,
            unmovable: Some("does not share".to_owned()),
        }));
    }
    let granted = waits.iter().enumerate().filter(|(_, wait)| wait.is_granted);
    let granted = granted.map(|(index, wait)| (index, wait.class(now, members, None)));
    let all = granted.chain(order(waits, now, members, None));
    let waiters = all.filter_map(|(index, class)| {
        let wait = &waits[index];
        let member = members.get(&wait.member)?;
        let told = wait.told.as_ref();
        Some(Waiter {
            pid: member.target.pid,
            command: member.join.command.clone(),
            call: wait.need.call.clone(),
            class,
            devices: wait.extra(members, None).list(),
            since_s: now.saturating_sub(wait.since).as_secs_f64(),
            limit_s: Duration::from_millis(member.join.wait_ms).as_secs_f64(),
            is_granted: wait.is_granted,
            expected_s: told.and_then(|told| told.expected_s),
            why: told.map(|told| told.why.clone()).unwrap_or_default(),
        })
    });
    let waiters = waiters.collect();
    Queue { devices: devices.collect(), holders, waiters }
}

fn holder(member: &Member, now: Duration) -> Holder {
    let until = member.since + member.residence();
    let is_protected = member.idle_since.is_none() && !member.is_away();
    let protected = if is_protected { until.saturating_sub(now) } else { Duration::ZERO };
    Holder {
        pid: member.target.pid,
        command: member.join.command.clone(),
        priority: Some(member.join.priority),
        state: member.report.as_ref().map(|report| report.state),
        devices: member.held().list(),
        since_s: Some(now.saturating_sub(member.since).as_secs_f64()),
        idle_s: member.idle_since.map(|since| now.saturating_sub(since).as_secs_f64()),
        protected_s: protected.as_secs_f64(),
        unmovable: member.obstacle(now).map(|obstacle| obstacle.why),
    }
}
