//! Suspending a process: the order of its states, and which calls wait while it is locked.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use lowtide_device::nvml::Nvml;

use super::{
    ILLEGAL_STATE, OPERATING_SYSTEM, PAGE, RULE_VARIABLE, Rule, SUCCESS, World,
    pages_of_this_process,
};
use crate::raw::{Properties, Raw};

/// The second process of these rules: locks, checkpoints, restores on command.
pub(super) const LOCKER: &str = "locker:";

pub(super) const RULES: &[Rule] = &[
    ("a_process_is_locked_checkpointed_restored_unlocked_in_that_order", in_that_order),
    ("a_locked_process_waits_in_calls_that_change_the_device", waits_in_calls),
    ("a_checkpointed_process_is_gone_from_the_device", gone_from_the_device),
];

const RUNNING: i32 = 0;
const LOCKED: i32 = 1;
const CHECKPOINTED: i32 = 2;

/// The other process, which answers a code, or a state, for each word.
struct Locker {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Locker {
    fn start() -> Locker {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .env(RULE_VARIABLE, format!("{LOCKER}{}", std::process::id()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Locker { child, input, output }
    }

    fn ask(&mut self, word: &str) -> i32 {
        writeln!(self.input, "{word}").expect("the other process listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the other process answers");
        line.trim().parse().unwrap_or_else(|_| panic!("{word}: {line:?}"))
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process's main.
pub(super) fn locker(pid: i32) -> ExitCode {
    let raw = Raw::load();
    for word in std::io::stdin().lines().map_while(Result::ok) {
        let mut state = -1;
        let answer = match word.as_str() {
            "lock" => raw.cuCheckpointProcessLock(pid, &[0; 8]),
            "checkpoint" => raw.cuCheckpointProcessCheckpoint(pid, 0),
            "restore" => raw.cuCheckpointProcessRestore(pid, 0),
            "unlock" => raw.cuCheckpointProcessUnlock(pid, 0),
            "listed" => listed(pid),
            "in_use_mib" => in_use_mib(),
            "nobody" => raw.cuCheckpointProcessLock(i32::MAX, &[0; 8]),
            "state" => match raw.cuCheckpointProcessGetState(pid, &mut state) {
                SUCCESS => state,
                code => -code,
            },
            _ => return ExitCode::from(2),
        };
        println!("{answer}");
    }
    ExitCode::SUCCESS
}

fn in_that_order(_world: &World) {
    let mut other = Locker::start();
    let mut step = |word, expected| assert_eq!(other.ask(word), expected, "{word}");
    step("nobody", OPERATING_SYSTEM);
    step("state", RUNNING);
    for early in ["checkpoint", "restore", "unlock"] {
        step(early, ILLEGAL_STATE);
    }
    step("lock", SUCCESS);
    step("state", LOCKED);
    for early in ["lock", "restore"] {
        step(early, ILLEGAL_STATE);
    }
    step("checkpoint", SUCCESS);
    step("state", CHECKPOINTED);
    for early in ["lock", "checkpoint", "unlock"] {
        step(early, ILLEGAL_STATE);
    }
    step("restore", SUCCESS);
    step("state", LOCKED);
    step("unlock", SUCCESS);
    step("state", RUNNING);
}

type Call<'a> = (&'static str, Box<dyn Fn() -> i32 + Send + Sync + 'a>);

fn calls(world: &World) -> (Vec<Call<'_>>, Vec<Call<'_>>) {
    let raw = &world.raw;
    let ((at, handle), bare, other) = (world.ready(1), world.reserve(1), world.create(1));
    let (mapped, mapped_handle) = (world.reserve(1), world.create(1));
    assert_eq!(world.map(mapped, 1, mapped_handle), SUCCESS);
    let (gone, gone_handle) = world.ready(1);
    let (stream, event, pinned, plain) =
        (world.stream(), world.event(), world.pinned(PAGE), world.plain(PAGE));
    let (host, doomed) = (pages_of_this_process(PAGE as usize), world.create(1));
    let _ = (handle, gone_handle);
    let waiting: Vec<Call> = vec![
        ("cuInit", Box::new(|| raw.cuInit(0))),
        ("cuMemCreate", Box::new(|| raw.cuMemCreate(&mut 0, PAGE, &Properties::default(), 0))),
        ("cuMemRelease", Box::new(move || raw.cuMemRelease(doomed))),
        ("cuMemMap", Box::new(move || world.map(bare, 1, other))),
        ("cuMemSetAccess", Box::new(move || world.open(mapped, 1))),
        ("cuMemUnmap", Box::new(move || world.unmap(gone, 1))),
        ("cuMemAlloc", Box::new(|| raw.cuMemAlloc_v2(&mut 0, PAGE))),
        ("cuMemFree", Box::new(move || raw.cuMemFree_v2(plain))),
        ("cuMemHostRegister", Box::new(move || raw.cuMemHostRegister_v2(host, PAGE, 1))),
        ("cuMemcpyDtoHAsync", Box::new(move || raw.cuMemcpyDtoHAsync_v2(pinned, at, PAGE, stream))),
        ("cuMemsetD8Async", Box::new(move || raw.cuMemsetD8Async(at, 1, PAGE, stream))),
        ("cuStreamCreate", Box::new(|| raw.cuStreamCreate(&mut 0, 1))),
        ("cuEventRecord", Box::new(move || raw.cuEventRecord(event, stream))),
    ];
    let going_on: Vec<Call> = vec![
        ("cuDriverGetVersion", Box::new(|| raw.cuDriverGetVersion(&mut 0))),
        ("cuDeviceGetCount", Box::new(|| raw.cuDeviceGetCount(&mut 0))),
        ("cuCtxGetCurrent", Box::new(|| raw.cuCtxGetCurrent(&mut 0))),
        ("cuMemGetInfo", Box::new(|| raw.cuMemGetInfo_v2(&mut 0, &mut 0))),
        ("cuMemAddressReserve", Box::new(|| raw.cuMemAddressReserve(&mut 0, PAGE, 0, 0, 0))),
        ("cuStreamQuery", Box::new(move || raw.cuStreamQuery(stream))),
        ("cuStreamGetId", Box::new(move || raw.cuStreamGetId(stream, &mut 0))),
    ];
    (waiting, going_on)
}

fn waits_in_calls(world: &World) {
    let (waiting, going_on) = calls(world);
    let expected: BTreeSet<_> = waiting.iter().map(|(name, _)| *name).collect();
    let all: Vec<_> = waiting.into_iter().chain(going_on).collect();
    let mut other = Locker::start();
    assert_eq!(other.ask("lock"), SUCCESS);
    let returned = &Mutex::new(BTreeSet::new());
    let still_waiting = std::thread::scope(|scope| {
        for (name, call) in &all {
            scope.spawn(move || {
                assert_eq!(world.raw.cuCtxSetCurrent(world.context), SUCCESS);
                let code = call();
                assert_eq!(code, SUCCESS, "{name}");
                returned.lock().expect("no thread fails with it").insert(*name);
            });
        }
        // Long enough for every call that does not wait, by a factor of thousands.
        std::thread::sleep(Duration::from_secs(2));
        let returned = returned.lock().expect("no thread fails with it").clone();
        let still_waiting: BTreeSet<_> =
            all.iter().map(|(name, _)| *name).filter(|name| !returned.contains(name)).collect();
        assert_eq!(other.ask("unlock"), SUCCESS);
        still_waiting
    });
    assert_eq!(still_waiting, expected, "what waits while the process is locked");
}

// Asked from outside: NVML does not answer inside a process that is checkpointed.
fn gone_from_the_device(world: &World) {
    const PAGES: i32 = 64;
    let (_, _handle) = world.ready(64);
    let mut other = Locker::start();
    assert_eq!(other.ask("listed"), 1);
    let before = other.ask("in_use_mib");
    assert_eq!(other.ask("lock"), SUCCESS);
    assert_eq!(other.ask("checkpoint"), SUCCESS);
    assert_eq!(other.ask("listed"), 0, "a checkpointed process is not on the device");
    assert!(other.ask("in_use_mib") + 2 * PAGES <= before, "its memory came back");
    assert_eq!(other.ask("restore"), SUCCESS);
    assert_eq!(other.ask("unlock"), SUCCESS);
    assert_eq!(other.ask("listed"), 1);
    assert!(other.ask("in_use_mib") + PAGES >= before, "and went there again");
}

fn listed(pid: i32) -> i32 {
    let (nvml, uuid) = nvml();
    let processes = nvml.processes(&uuid).expect("the processes");
    i32::from(processes.iter().any(|process| process.pid == pid.cast_unsigned()))
}

fn in_use_mib() -> i32 {
    let (nvml, uuid) = nvml();
    let in_use = nvml.usage(&uuid).expect("the usage").in_use();
    i32::try_from(in_use.0 >> 20).expect("less than two PiB")
}

fn nvml() -> (Nvml, String) {
    let nvml = Nvml::load().expect("NVML comes with the driver");
    let uuid = nvml.uuids().expect("the GPUs").remove(0);
    (nvml, uuid)
}
