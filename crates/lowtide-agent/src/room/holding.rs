//! What this process has on its devices, as the arbiter is told.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Once, PoisonError};
use std::time::{Duration, Instant};

use lowtide_proto::Ask;
use lowtide_proto::helper::DeviceBytes;
use lowtide_proto::share::{self, Holding, Need, Report, ToArbiter};
use lowtide_types::Bytes;

use super::table::{Room, Wait};
use crate::memory::unmanaged::{self, Kind};
use crate::say::say;
use crate::sleep::agent::Agent;
use crate::sleep::is_exiting;
use crate::{gate, obstacles, settings};

/// The time for which obstacles count that were seen from outside.
const SEEN_FOR: Duration = Duration::from_secs(10);

impl Room {
    /// Returns what the process has, for the arbiter. `idle` is the time for which nothing has been on the devices.
    pub(crate) fn report_of(&self, agent: &Agent, idle: Option<Duration>) -> Report {
        let unmovable = self.obstacles(agent);
        if !unmovable.is_empty() {
            say_unmovable(&unmovable);
        }
        let mut devices = self.holdings(agent);
        if unmovable.is_empty() && agent.can_be_suspended() {
            for one in &mut devices {
                one.suspendable = one.staying;
            }
        }
        Report {
            state: self.state(),
            devices,
            idle_ms: idle.map(|idle| idle.as_millis() as u64),
            in_capture: agent.memory.is_capturing(),
            is_exiting: is_exiting(),
            unmovable,
            sleep_ms: self.sleep_ms.load(SeqCst),
            wake_ms: self.wake_ms.load(SeqCst),
        }
    }

    /// Returns why the memory cannot leave. Who gives way looks again, so what is seen from outside may be some seconds
    /// old: a report is on the way of each wait.
    fn obstacles(&self, agent: &Agent) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, names) = match seen.take() {
            Some(fresh) if fresh.0.elapsed() < SEEN_FOR => seen.insert(fresh),
            _ => seen.insert((Instant::now(), obstacles::seen())),
        };
        agent.noted_obstacles(true).into_iter().chain(names.iter().cloned()).collect()
    }

    fn state(&self) -> share::State {
        if self.orders.load(SeqCst) > 0 {
            share::State::Draining
        } else if self.is_waking.load(SeqCst) {
            share::State::Waking
        } else if gate::is_suspended() {
            share::State::Suspended
        } else if gate::is_asleep() {
            share::State::Asleep
        } else {
            share::State::Awake
        }
    }

    /// Returns all that the process will have on each device once a call has its memory; `None` if it waits no more.
    pub(crate) fn need_of(&self, agent: &Agent, ticket: u64) -> Option<ToArbiter> {
        let holdings = self.holdings(agent);
        let kept = self.staying().clone();
        let table = self.table();
        let wait = table.waits.get(&ticket)?;
        let all = |one: &Holding| {
            // The helper keeps a margin beside what the process had.
            if let Some(need) = agent.suspension.need_on(&one.uuid) {
                return (one.uuid.clone(), need);
            }
            let staying = one.staying.max(kept.get(&one.uuid).copied().unwrap_or_default());
            let memory =
                if wait.back == Some(Ask::Resume) { Bytes::ZERO } else { one.resident + one.back };
            (one.uuid.clone(), staying + memory)
        };
        let mut devices: BTreeMap<String, Bytes> = holdings.iter().map(all).collect();
        if let Some(want) = &wait.want {
            *devices.entry(want.uuid.clone()).or_default() += want.bytes;
        }
        let devices = devices.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO);
        let devices = devices.map(|(uuid, bytes)| DeviceBytes { uuid, bytes }).collect();
        let Wait { call, can_leave, .. } = wait;
        Some(ToArbiter::Need(Need { ticket, call: call.clone(), devices, can_leave: *can_leave }))
    }

    /// Returns the memory that the process has on each device, by the driver's numbers where it gives them.
    pub(crate) fn used(&self, agent: &Agent) -> Vec<DeviceBytes> {
        let of = |one: Holding| DeviceBytes { uuid: one.uuid, bytes: one.resident + one.staying };
        self.holdings(agent).into_iter().map(of).collect()
    }

    /// Returns what has left each device since an earlier reading.
    pub(crate) fn freed_since(&self, agent: &Agent, before: Vec<DeviceBytes>) -> Vec<DeviceBytes> {
        let now: BTreeMap<_, _> =
            self.used(agent).into_iter().map(|one| (one.uuid, one.bytes)).collect();
        let left = |one: &DeviceBytes| now.get(&one.uuid).copied().unwrap_or_default();
        let freed = |one: DeviceBytes| DeviceBytes {
            bytes: Bytes(one.bytes.0.saturating_sub(left(&one).0)),
            uuid: one.uuid,
        };
        before.into_iter().map(freed).collect()
    }

    fn holdings(&self, agent: &Agent) -> Vec<Holding> {
        let mut holdings = Vec::<Holding>::new();
        let mut others = BTreeMap::<String, Bytes>::new();
        for context in agent.memory.contexts() {
            let Some(uuid) = context.device.info().uuid.clone() else { continue };
            // Managed memory may be on the host.
            let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Managed);
            *others.entry(uuid.clone()).or_default() +=
                kinds.map(|kind| unmanaged::sum(kind, context.handle)).sum();
            let at = holdings.iter().position(|one| one.uuid == uuid).unwrap_or_else(|| {
                holdings.push(Holding { uuid, ..Holding::default() });
                holdings.len() - 1
            });
            holdings[at].resident += context.on_device();
            holdings[at].back += context.asleep();
        }
        // Neither the driver nor NVML answers a suspended process.
        let Some(_pass) = gate::try_enter_quietly() else { return holdings };
        for one in &mut holdings {
            let own =
                self.own_bytes(&one.uuid).map(|own| Bytes(own.0.saturating_sub(one.resident.0)));
            one.staying = own.unwrap_or_else(|| others[&one.uuid]);
            self.staying().insert(one.uuid.clone(), one.staying);
        }
        holdings
    }

    /// Returns what NVML says that this process has on a device; `None` where it does not know.
    fn own_bytes(&self, uuid: &str) -> Option<Bytes> {
        let processes = self.nvml.as_ref()?.processes(uuid).ok()?;
        processes.into_iter().find(|one| one.pid == std::process::id())?.used
    }
}

/// Says once that the program gives no way to others.
fn say_unmovable(obstacles: &[String]) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let (what, ways) = match settings::family() {
            Some(_) => (
                "no process of this `lowtide run` gives way to others",
                "; with `lowtide run --apart` the others do",
            ),
            None => ("the program gives no way to others", ""),
        };
        say!("{what}: process {} cannot sleep: {}{ways}", std::process::id(), obstacles.join(", "));
    });
}
