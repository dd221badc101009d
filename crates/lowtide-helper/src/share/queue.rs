//! The queue: who has memory of the devices, and who waits for it.

use std::time::Duration;

use lowtide_proto::helper::DeviceBytes;
use lowtide_proto::share::{Holder, Queue, QueueDevice, Waiter};

use super::amounts::{Amounts, unsigned};
use super::arbiter::Arbiter;
use super::family::Family;
use super::member::Member;
use super::room::DeviceFree;
use super::waits::order;

impl Arbiter {
    /// Returns the queue for `lowtide status`, with the driver's numbers of this moment.
    pub fn queue(&mut self, now: Duration, numbers: &[DeviceFree]) -> Queue {
        self.room.read(now, numbers);
        let Arbiter { families, waits, room, .. } = &*self;
        let granted = Amounts::sum([room.leased(), self.promised()]);
        let devices = room.devices.values().map(|device| QueueDevice {
            uuid: device.uuid.clone(),
            capacity: device.capacity,
            free: device.free,
            granted: unsigned(granted.at(&device.uuid)),
        });
        let mut holders = Vec::new();
        for family in families.values() {
            holders.extend(family.members.values().map(|member| holder(family, member, now)));
        }
        for device in room.devices.values() {
            holders.extend(device.others.iter().map(|other| Holder {
                pid: other.pid,
                command: other.command.clone(),
                family: None,
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
        let granted = granted.map(|(index, wait)| (index, wait.class(now, families, None)));
        let all = granted.chain(order(waits, now, families, None));
        let waiters = all.filter_map(|(index, class)| {
            let wait = &waits[index];
            let member = self.member(wait.member)?;
            let told = wait.told.as_ref();
            let limit = Duration::from_millis(families.get(&wait.family)?.join.wait_ms);
            Some(Waiter {
                pid: member.target.pid,
                command: member.command.clone(),
                call: wait.need.call.clone(),
                class,
                devices: self.room_of(wait).list(),
                since_s: now.saturating_sub(wait.since).as_secs_f64(),
                limit_s: limit.as_secs_f64(),
                is_granted: wait.is_granted,
                expected_s: told.and_then(|told| told.expected_s),
                why: told.map(|told| told.why.clone()).unwrap_or_default(),
            })
        });
        let waiters = waiters.collect();
        Queue { devices: devices.collect(), holders, waiters }
    }
}

fn holder(family: &Family, member: &Member, now: Duration) -> Holder {
    let until = family.since + family.residence();
    let is_protected = member.idle_since.is_none() && !family.is_away();
    let protected = if is_protected { until.saturating_sub(now) } else { Duration::ZERO };
    Holder {
        pid: member.target.pid,
        command: member.command.clone(),
        family: family.join.family.filter(|_| family.members.len() > 1).map(|first| first.pid),
        priority: Some(family.join.priority),
        state: member.report.as_ref().map(|report| report.state),
        devices: member.held().list(),
        since_s: Some(now.saturating_sub(family.since).as_secs_f64()),
        idle_s: member.idle_since.map(|since| now.saturating_sub(since).as_secs_f64()),
        protected_s: protected.as_secs_f64(),
        unmovable: family.obstacle(now).map(|obstacle| obstacle.why),
    }
}
