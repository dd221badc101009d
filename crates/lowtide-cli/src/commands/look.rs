//! A look at this machine: device memory by owner, and the programs that use it. `metrics` and `top` show it; the
//! numbers are those that `ps`, `status` and the queue read.

use std::collections::{BTreeMap, HashSet};

use anyhow::Context;
use lowtide_device::identity::Identity;
use lowtide_device::private_files::PrivateFolder;
use lowtide_device::processes::{DeviceProcesses, Gpus};
use lowtide_device::{Bytes, DeviceId};
use lowtide_proto::Status;
use lowtide_proto::share::Queue;
use lowtide_types::{LedgerKind, words};
use serde::{Deserialize, Serialize};

use crate::commands::agents::{self, Program};
use crate::commands::known::Processes;
use crate::commands::{helper, ps, queue};

words! {
    /// Whose memory it is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum Band {
        /// Blocks that programs with an agent use.
        Live = "live",
        /// Memory that such programs keep and do not use.
        Cached = "cached",
        /// The rest of such programs: contexts, modules, workspaces.
        Context = "context",
        /// Processes without an agent, or whose agent does not answer.
        Others = "others",
        /// Memory that the driver keeps for itself.
        Reserved = "reserved",
        /// Memory that the driver reports for no process.
        Unknown = "unknown",
    }
}

impl Band {
    pub(super) const ALL: [Band; 6] =
        [Band::Live, Band::Cached, Band::Context, Band::Others, Band::Reserved, Band::Unknown];
}

words! {
    /// The state of a program.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum ProgramState {
        Awake = "awake",
        Asleep = "asleep",
        Suspended = "suspended",
        /// A call of it waits for room that other programs have.
        Waiting = "waiting",
        /// Its agent does not answer, or it has none yet.
        Silent = "silent",
        /// It was not started with `lowtide run`.
        NoAgent = "no agent",
    }
}

impl ProgramState {
    pub(super) const ALL: [ProgramState; 6] = [
        ProgramState::Awake,
        ProgramState::Asleep,
        ProgramState::Suspended,
        ProgramState::Waiting,
        ProgramState::Silent,
        ProgramState::NoAgent,
    ];
}

/// The memory of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct DeviceLook {
    /// The node of a cluster where it is; `None` in a look at this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    /// `None` for a GPU that CUDA does not show here.
    pub(super) id: Option<DeviceId>,
    pub(super) uuid: String,
    #[serde(rename = "total_bytes")]
    pub(super) total: Bytes,
    #[serde(rename = "free_bytes")]
    pub(super) free: Bytes,
    /// The bytes of each band, in the order of [`Band::ALL`]. They add up to the driver's number, total − free; so
    /// the last is below zero where the driver counts shared memory for each process.
    pub(super) bands: BTreeMap<Band, i64>,
}

impl DeviceLook {
    /// Returns what tells it from the other devices of all nodes.
    pub(super) fn key(&self) -> String {
        format!("{} {}", self.node.as_deref().unwrap_or_default(), self.uuid)
    }
}

/// A program that uses a device, or was started with `lowtide run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ProgramLook {
    /// The node of a cluster where it runs; `None` in a look at this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    pub(super) pid: u32,
    /// The time of its start since the boot, in clock ticks; `None` where it has ended or is not of this namespace.
    pub(super) start_ticks: Option<u64>,
    /// Its command line, escaped.
    pub(super) command: String,
    pub(super) state: ProgramState,
    /// What it uses on all devices; `None` where the driver does not say.
    #[serde(rename = "held_bytes")]
    pub(super) held: Option<Bytes>,
    /// What a sleep would free; `None` without an agent.
    #[serde(rename = "sleep_frees_bytes")]
    pub(super) frees: Option<Bytes>,
    /// The first thing that keeps it awake.
    pub(super) obstacle: Option<String>,
    /// Its turn, or what it waits for, in words.
    pub(super) turn: Option<String>,
}

/// What this machine shows at one moment, or all nodes of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Look {
    pub(super) devices: Vec<DeviceLook>,
    pub(super) programs: Vec<ProgramLook>,
    /// What could not be read, and why there is no GPU.
    pub(super) problems: Vec<String>,
}

/// What looks at this machine again and again, and keeps what seldom changes.
#[derive(Default)]
pub(super) struct Looker {
    gpus: Option<Gpus>,
    processes: Processes,
    /// The programs that did not answer the last time.
    silent: HashSet<u32>,
}

impl Looker {
    /// Looks. What cannot be read is a problem in the result.
    pub(super) fn look(&mut self) -> Look {
        let mut problems = Vec::new();
        let mut agents = Vec::new();
        match PrivateFolder::of_user().map_err(Into::into).and_then(|it| {
            let is_known = |target| self.processes.is_known(target);
            agents::all(&it, &mut self.silent, is_known, |_, _| {})
        }) {
            Ok(programs) => agents = programs,
            Err(error) => problems.push(format!("{error:#}")),
        }
        let suspended = helper::suspended_now().unwrap_or_else(|error| {
            problems.push(format!("{error:#}"));
            Vec::new()
        });
        let suspended: Vec<u32> = suspended.into_iter().map(|process| process.pid).collect();
        // Without a helper nobody takes turns.
        let queue = queue::ask().unwrap_or_else(|error| {
            problems.extend(queue::problem(&error));
            None
        });
        self.processes.begin();
        let own: HashSet<u32> =
            agents.iter().map(Program::pid).chain(suspended.iter().copied()).collect();
        let mut process = |pid| self.processes.of(pid, own.contains(&pid));
        let read = match &self.gpus {
            Some(gpus) => gpus.read(|pid| process(pid).0),
            None => {
                Gpus::find().and_then(|found| self.gpus.insert(found).read(|pid| process(pid).0))
            }
        };
        if read.is_err() {
            self.gpus = None;
        }
        let devices = match ps::told(read) {
            Ok((devices, failed, reason)) => {
                problems.extend(failed.into_iter().chain(reason));
                devices
            }
            Err(error) => {
                problems.push(format!("{error:#}"));
                Vec::new()
            }
        };
        Look {
            programs: programs_of(
                &devices,
                &agents,
                &suspended,
                &queue.unwrap_or_default(),
                process,
            ),
            devices: devices.iter().map(|device| bands_of(device, &agents)).collect(),
            problems,
        }
    }
}

impl Look {
    /// Reads a look at all nodes of a cluster: a line of `python -m lowtide.ray top`.
    pub(super) fn of_nodes(line: &str) -> anyhow::Result<Look> {
        serde_json::from_str(line).map(joined).with_context(|| format!("reading {line:?}"))
    }
}

/// A node as `python -m lowtide.ray top` prints it.
#[derive(Deserialize)]
struct NodeLook {
    /// Why it could not be looked at.
    reason: Option<String>,
    #[serde(flatten)]
    look: Look,
}

fn joined(nodes: BTreeMap<String, NodeLook>) -> Look {
    let mut all = Look::default();
    for (node, NodeLook { reason, look }) in nodes {
        let Look { devices, programs, problems } = look;
        let of_node = |problem| format!("node {node:.8}: {problem}");
        all.problems.extend(reason.into_iter().chain(problems).map(of_node));
        let own = || Some(node.clone());
        let named = devices.into_iter().map(|device| DeviceLook { node: own(), ..device });
        all.devices.extend(named);
        let named = programs.into_iter().map(|program| ProgramLook { node: own(), ..program });
        all.programs.extend(named);
    }
    all
}

fn answered(programs: &[Program], pid: u32) -> Option<&Status> {
    programs.iter().find_map(|program| match program {
        Program::Answered(status) if status.pid == pid => Some(&**status),
        _ => None,
    })
}

fn bands_of(device: &DeviceProcesses, agents: &[Program]) -> DeviceLook {
    let usage = &device.usage;
    let mut bands: BTreeMap<Band, i64> = Band::ALL.into_iter().map(|band| (band, 0)).collect();
    let mut add = |band, bytes: Bytes| *bands.entry(band).or_default() += bytes.0.cast_signed();
    add(Band::Reserved, usage.reserved);
    for process in &device.processes {
        let status = answered(agents, process.pid).filter(|status| !status.is_suspended);
        let ledger = status.and_then(|status| {
            status.ledgers.iter().find(|ledger| Some(&ledger.device) == device.id.as_ref())
        });
        let held = process.held.unwrap_or_default();
        let Some(ledger) = ledger else {
            add(Band::Others, held);
            continue;
        };
        // Its own numbers may be of another moment than the driver's, which counts.
        let live = (ledger.of(LedgerKind::Live) + ledger.of(LedgerKind::Graphs)).min(held);
        let cached = ledger.of(LedgerKind::Cached).min(held - live);
        add(Band::Live, live);
        add(Band::Cached, cached);
        add(Band::Context, held - live - cached);
    }
    let known: i64 = bands.values().sum();
    let in_use = usage.total.0.cast_signed() - usage.free.0.cast_signed();
    bands.insert(Band::Unknown, in_use - known);
    let uuid = device.uuid.clone().unwrap_or_default();
    DeviceLook { node: None, id: device.id, uuid, total: usage.total, free: usage.free, bands }
}

fn programs_of(
    devices: &[DeviceProcesses],
    agents: &[Program],
    suspended: &[u32],
    queue: &Queue,
    mut process: impl FnMut(u32) -> (Identity, Option<u64>),
) -> Vec<ProgramLook> {
    let mut found: BTreeMap<u32, Option<Bytes>> = BTreeMap::new();
    for process in devices.iter().flat_map(|device| &device.processes) {
        let held = found.entry(process.pid).or_default();
        *held = held.map_or(process.held, |held| Some(held + process.held.unwrap_or_default()));
    }
    for pid in agents.iter().map(Program::pid).chain(suspended.iter().copied()) {
        found.entry(pid).or_insert(Some(Bytes::ZERO));
    }
    let look = |(pid, held)| {
        let status = answered(agents, pid);
        let waiter = queue.waiters.iter().find(|waiter| waiter.pid == pid);
        let holder = queue.holders.iter().find(|one| one.pid == pid && one.state.is_some());
        let state = match status {
            _ if suspended.contains(&pid) => ProgramState::Suspended,
            _ if waiter.is_some() => ProgramState::Waiting,
            Some(status) if status.is_suspended => ProgramState::Suspended,
            Some(status) if status.is_asleep => ProgramState::Asleep,
            Some(_) => ProgramState::Awake,
            None if agents.iter().any(|program| program.pid() == pid) => ProgramState::Silent,
            None => ProgramState::NoAgent,
        };
        let is_awake = state == ProgramState::Awake || state == ProgramState::Waiting;
        let frees = status.map(|status| {
            let on_device = status.contexts.iter().map(|context| context.on_device);
            if is_awake { on_device.sum() } else { Bytes::ZERO }
        });
        let (identity, start_ticks) = process(pid);
        ProgramLook {
            node: None,
            pid,
            start_ticks,
            command: ps::one_line(&ps::name(&identity)),
            state,
            held,
            frees,
            obstacle: status.and_then(|status| status.obstacles.first().cloned()),
            turn: waiter
                .map(|waiter| {
                    let (call, since_s, why) = (&waiter.call, waiter.since_s, &waiter.why);
                    format!("{call} waits for {since_s:.0} s: {why}")
                })
                .or_else(|| holder.and_then(queue::turn_text)),
        }
    };
    found.into_iter().map(look).collect()
}

#[cfg(test)]
mod tests {
    use lowtide_device::processes::ProcessUsage;
    use lowtide_device::{Source, Usage};
    use lowtide_types::{Ledger, LedgerLine};

    use super::*;

    fn device(free: Bytes, processes: Vec<(u32, Option<Bytes>)>) -> DeviceProcesses {
        let (total, reserved) = (Bytes::mib(1000), Bytes::mib(50));
        let usage = Usage { total, free, reserved, source: Source::Nvml };
        let of = |(pid, held)| ProcessUsage { pid, identity: Identity::NotVisible, held };
        let processes = processes.into_iter().map(of).collect();
        let (id, uuid) = (Some(DeviceId::Cuda(0)), Some("GPU-1".to_owned()));
        DeviceProcesses { id, uuid, usage, processes, unattributed: 0, reason: None }
    }

    fn agent(pid: u32, live: Bytes, cached: Bytes) -> Program {
        let text = serde_json::json!({
            "pid": pid, "agent": "1", "is_asleep": false, "touches": 1, "idle_s": null,
            "contexts": [{"device": "cuda:0", "blocks": 1, "bytes": live, "on_device_bytes": live}],
            "staying": [], "obstacles": ["RDMA"],
        });
        let mut status: Status = serde_json::from_value(text).unwrap();
        let line = |kind, bytes| LedgerLine { kind, name: "x".to_owned(), bytes };
        let lines = vec![line(LedgerKind::Live, live), line(LedgerKind::Cached, cached)];
        status.ledgers = vec![Ledger::new(DeviceId::Cuda(0), Bytes::mib(500), lines)];
        Program::Answered(Box::new(status))
    }

    #[test]
    fn bands_add_up_to_the_drivers_number_whatever_agents_say() {
        let agents = [agent(7, Bytes::mib(100), Bytes::mib(20)), agent(8, Bytes::gib(9), Bytes(5))];
        let processes = vec![
            (7, Some(Bytes::mib(150))),
            (8, Some(Bytes::mib(90))),
            (9, None),
            (10, Some(Bytes::mib(60))),
        ];
        for free in [Bytes::mib(600), Bytes::mib(700), Bytes::mib(300)] {
            let look = bands_of(&device(free, processes.clone()), &agents);
            assert_eq!(look.bands.values().sum::<i64>(), (Bytes::mib(1000) - free).0.cast_signed());
            let mib = |band| look.bands[&band] >> 20;
            assert_eq!((mib(Band::Live), mib(Band::Cached), mib(Band::Context)), (190, 20, 30));
            assert_eq!((mib(Band::Others), mib(Band::Reserved)), (60, 50));
        }
    }

    #[test]
    fn a_program_is_listed_once_with_its_state_and_what_a_sleep_frees() {
        let agents =
            [agent(7, Bytes::mib(100), Bytes::ZERO), agent(8, Bytes::mib(30), Bytes::ZERO)];
        let devices = [
            device(Bytes::ZERO, vec![(7, Some(Bytes::mib(120))), (9, Some(Bytes::mib(60)))]),
            device(Bytes::ZERO, vec![(7, Some(Bytes::mib(5)))]),
        ];
        let mut queue = Queue::default();
        let waiter = serde_json::json!({
            "pid": 8, "command": "x", "call": "wake", "class": "normal", "devices": [], "since_s": 3.0,
            "limit_s": 60.0, "is_granted": false, "expected_s": null, "why": "process 7 works on",
        });
        queue.waiters.push(serde_json::from_value(waiter).unwrap());
        let all = programs_of(&devices, &agents, &[11], &queue, |_| (Identity::NoProc, None));
        let facts = all.iter().map(|it| (it.pid, it.state, it.held, it.frees)).collect::<Vec<_>>();
        let mib = |mib| Some(Bytes::mib(mib));
        let expected = [
            (7, ProgramState::Awake, mib(125), mib(100)),
            (8, ProgramState::Waiting, mib(0), mib(30)),
            (9, ProgramState::NoAgent, mib(60), None),
            (11, ProgramState::Suspended, mib(0), None),
        ];
        assert_eq!(facts, expected);
        assert_eq!(all[0].obstacle.as_deref(), Some("RDMA"));
        assert_eq!(all[1].turn.as_deref(), Some("wake waits for 3 s: process 7 works on"));
    }

    #[test]
    fn what_is_equal_on_two_nodes_keeps_its_node_and_a_reason_is_a_problem() {
        let look = r#"{"devices": [{"id": "cuda:0", "uuid": "GPU-1", "total_bytes": 8, "free_bytes": 2,
            "bands": {"live": 6}}], "programs": [{"pid": 7, "start_ticks": 1, "command": "x", "state": "asleep",
            "held_bytes": null, "sleep_frees_bytes": 0, "obstacle": null, "turn": null}], "problems": ["cold"]}"#;
        let text = format!(
            r#"{{"aaaaaaaa11": {look}, "bbbbbbbb22": {look}, "cccccccc33": {{"reason": "no lowtide"}}}}"#
        );
        let all = Look::of_nodes(&text).unwrap();
        let nodes = ["aaaaaaaa11", "bbbbbbbb22"].map(|node| Some(node.to_owned()));
        assert!(all.devices.iter().map(|device| device.node.clone()).eq(nodes.clone()));
        assert!(all.programs.iter().map(|program| program.node.clone()).eq(nodes));
        let problems = ["node aaaaaaaa: cold", "node bbbbbbbb: cold", "node cccccccc: no lowtide"];
        assert_eq!(all.problems, problems);
    }
}
