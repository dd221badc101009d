//! Suspending a process: the order of its states, and which calls wait while it is locked.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::accounts::nvml;
use super::fixture::{
    Fixture, ILLEGAL_STATE, NOT_READY, OPERATING_SYSTEM, OtherProcess, PAGE, Rule, SUCCESS, made,
    pages_of_this_process,
};
use crate::raw::{Properties, Raw};
use crate::role;

/// The second process of these rules: locks, checkpoints, restores on command.
pub(super) const LOCKER: &str = "locker:";

pub(super) const RULES: &[Rule] = &[
    ("a_process_is_locked_checkpointed_restored_unlocked_in_that_order", in_that_order),
    ("a_locked_process_waits_in_calls_that_change_the_device", waits_in_calls),
    ("a_locked_process_waits_in_calls_that_make_and_end_things", waits_in_more_calls),
    ("a_checkpointed_process_is_gone_from_the_device", gone_from_the_device),
    ("nvml_does_not_answer_inside_a_locked_process", nvml_waits_in_a_locked_process),
    ("nvml_does_not_answer_inside_a_checkpointed_process", nvml_waits_in_a_checkpointed_process),
    ("nvml_answers_other_processes_about_a_locked_one", nvml_answers_others),
    ("a_lock_waits_for_work_in_flight", a_lock_waits),
    ("a_lock_gives_up_at_its_time_limit", a_lock_gives_up),
    ("a_process_goes_on_after_a_lock_that_gave_up", goes_on_after_a_lock_that_gave_up),
];

/// A call that does not wait in a locked process returns within this time, however busy the machine is.
const GO_ON_WITHIN: Duration = Duration::from_secs(120);

pub(super) const RUNNING: i32 = 0;
pub(super) const LOCKED: i32 = 1;
pub(super) const CHECKPOINTED: i32 = 2;

/// Starts a process that locks this one.
pub(super) fn locker() -> OtherProcess {
    locker_of(std::process::id(), "")
}

/// Starts a process that locks the one of this number, with settings of the double.
pub(super) fn locker_of(pid: u32, double: &str) -> OtherProcess {
    OtherProcess::start(&format!("{LOCKER}{pid}"), double)
}

/// Runs the other process: answers each word on its standard input.
pub(super) fn lock_and_answer(pid: i32) -> ExitCode {
    let raw = Raw::load();
    for word in std::io::stdin().lines().map_while(Result::ok) {
        let mut state = -1;
        let answer = match word.as_str() {
            "lock" => raw.cuCheckpointProcessLock(pid, &[0; 8]),
            // The first word is a limit in ms, and none of the work here is done in one.
            "lock_for_a_moment" => raw.cuCheckpointProcessLock(pid, &[1, 0, 0, 0, 0, 0, 0, 0]),
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
        role::answer(&answer.to_string());
    }
    ExitCode::SUCCESS
}

fn in_that_order(_gpu: &Fixture) {
    let mut other = locker();
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

fn calls(gpu: &Fixture) -> (Vec<Call<'_>>, Vec<Call<'_>>) {
    let raw = &gpu.raw;
    let ((at, handle), bare, other) = (gpu.ready(1), gpu.reserve(1), gpu.create(1));
    let (mapped, mapped_handle) = (gpu.reserve(1), gpu.create(1));
    assert_eq!(gpu.map(mapped, 1, mapped_handle), SUCCESS);
    let (gone, gone_handle) = gpu.ready(1);
    let (stream, event, pinned, plain) =
        (gpu.stream(), gpu.event(), gpu.pinned(PAGE), gpu.plain(PAGE));
    let (host, doomed) = (pages_of_this_process(PAGE as usize), gpu.create(1));
    let _ = (handle, gone_handle);
    let waiting: Vec<Call> = vec![
        ("cuInit", Box::new(|| raw.cuInit(0))),
        ("cuMemCreate", Box::new(|| raw.cuMemCreate(&mut 0, PAGE, &Properties::default(), 0))),
        ("cuMemRelease", Box::new(move || raw.cuMemRelease(doomed))),
        ("cuMemMap", Box::new(move || gpu.map(bare, 1, other))),
        ("cuMemSetAccess", Box::new(move || gpu.open(mapped, 1))),
        ("cuMemUnmap", Box::new(move || gpu.unmap(gone, 1))),
        ("cuMemAlloc", Box::new(|| raw.cuMemAlloc_v2(&mut 0, PAGE))),
        ("cuMemFree", Box::new(move || raw.cuMemFree_v2(plain))),
        ("cuMemHostRegister", Box::new(move || raw.cuMemHostRegister_v2(host, PAGE, 1))),
        ("cuMemcpyDtoHAsync", Box::new(move || raw.cuMemcpyDtoHAsync_v2(pinned, at, PAGE, stream))),
        ("cuMemsetD8Async", Box::new(move || raw.cuMemsetD8Async(at, 1, PAGE, stream))),
        ("cuStreamCreate", Box::new(|| raw.cuStreamCreate(&mut 0, 1))),
        ("cuEventRecord", Box::new(move || raw.cuEventRecord(event, stream))),
    ];
    // One more, so that the release below is not the last.
    assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut 0, 0), SUCCESS);
    let going_on: Vec<Call> = vec![
        ("cuDriverGetVersion", Box::new(|| raw.cuDriverGetVersion(&mut 0))),
        ("cuDeviceGetCount", Box::new(|| raw.cuDeviceGetCount(&mut 0))),
        ("cuDevicePrimaryCtxRetain", Box::new(|| raw.cuDevicePrimaryCtxRetain(&mut 0, 0))),
        ("cuDevicePrimaryCtxRelease", Box::new(|| raw.cuDevicePrimaryCtxRelease_v2(0))),
        ("cuCtxGetCurrent", Box::new(|| raw.cuCtxGetCurrent(&mut 0))),
        ("cuMemGetInfo", Box::new(|| raw.cuMemGetInfo_v2(&mut 0, &mut 0))),
        ("cuMemAddressReserve", Box::new(|| raw.cuMemAddressReserve(&mut 0, PAGE, 0, 0, 0))),
        ("cuStreamQuery", Box::new(move || raw.cuStreamQuery(stream))),
        ("cuStreamGetId", Box::new(move || raw.cuStreamGetId(stream, &mut 0))),
    ];
    (waiting, going_on)
}

// The calls that do not return while the process is so, as the other process has made it. These go on
// without waiting, and are waited for.
fn waiting<'a>(
    gpu: &Fixture,
    steps: &[&str],
    back: &[&str],
    calls: &[Call<'a>],
    going_on: &BTreeSet<&str>,
) -> BTreeSet<&'a str> {
    let mut other = locker();
    other.steps(steps);
    let returned = &Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for (name, call) in calls {
            scope.spawn(move || {
                assert_eq!(gpu.raw.cuCtxSetCurrent(gpu.context), SUCCESS);
                let code = call();
                assert_eq!(code, SUCCESS, "{name}");
                returned.lock().expect("no thread fails with it").insert(*name);
            });
        }
        let deadline = Instant::now() + GO_ON_WITHIN;
        while !going_on.is_subset(&returned.lock().expect("no thread fails with it"))
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Long enough for another call that does not wait, by a factor of thousands.
        std::thread::sleep(Duration::from_secs(1));
        let returned = returned.lock().expect("no thread fails with it").clone();
        other.steps(back);
        names(calls).difference(&returned).copied().collect()
    })
}

fn names<'a>(calls: &[Call<'a>]) -> BTreeSet<&'a str> {
    calls.iter().map(|(name, _)| *name).collect()
}

fn waits_in_calls(gpu: &Fixture) {
    let (mut calls, going_on) = calls(gpu);
    let (expected, others) = (names(&calls), names(&going_on));
    calls.extend(going_on);
    assert_eq!(waiting(gpu, &["lock"], &["unlock"], &calls, &others), expected);
}

fn waits_in_more_calls(gpu: &Fixture) {
    let raw = &gpu.raw;
    let ((at, _), pinned, freed) = (gpu.ready(1), gpu.pinned(PAGE), gpu.pinned(PAGE));
    let (stream, ended_stream, ended_event) = (gpu.stream(), gpu.stream(), gpu.event());
    let (module, exec, function) = (gpu.module(), empty_graph(gpu), gpu.digest());
    let registered = pages_of_this_process(PAGE as usize);
    assert_eq!(raw.cuMemHostRegister_v2(registered, PAGE, 1), SUCCESS);
    let calls: Vec<Call> = vec![
        ("cuMemHostAlloc", Box::new(|| raw.cuMemHostAlloc(&mut 0, PAGE, 0))),
        ("cuMemFreeHost", Box::new(move || raw.cuMemFreeHost(freed))),
        ("cuMemHostUnregister", Box::new(move || raw.cuMemHostUnregister(registered))),
        ("cuMemcpyHtoDAsync", Box::new(move || raw.cuMemcpyHtoDAsync_v2(at, pinned, 64, stream))),
        ("cuMemcpyHtoD", Box::new(move || raw.cuMemcpyHtoD_v2(at, pinned, 64))),
        ("cuMemcpyDtoH", Box::new(move || raw.cuMemcpyDtoH_v2(pinned, at, 64))),
        ("cuStreamDestroy", Box::new(move || raw.cuStreamDestroy_v2(ended_stream))),
        ("cuEventCreate", Box::new(|| raw.cuEventCreate(&mut 0, 0))),
        ("cuEventDestroy", Box::new(move || raw.cuEventDestroy_v2(ended_event))),
        ("cuModuleLoadData", Box::new(|| i32::from(gpu.module() == 0))),
        ("cuModuleUnload", Box::new(move || raw.cuModuleUnload(module))),
        ("cuLaunchKernel", Box::new(move || gpu.launch_digest(function, at, 0))),
        ("cuGraphLaunch", Box::new(move || raw.cuGraphLaunch(exec, stream))),
    ];
    let none = BTreeSet::new();
    assert_eq!(waiting(gpu, &["lock"], &["unlock"], &calls, &none), names(&calls));
}

fn empty_graph(gpu: &Fixture) -> u64 {
    let stream = gpu.stream();
    assert_eq!(gpu.raw.cuStreamBeginCapture_v2(stream, 0), SUCCESS);
    let graph = made(|graph| gpu.raw.cuStreamEndCapture(stream, graph));
    made(|exec| gpu.raw.cuGraphInstantiateWithFlags(exec, graph, 0))
}

fn nvml_waits(gpu: &Fixture, steps: &[&str], back: &[&str]) {
    let (nvml, uuid) = &nvml();
    let calls: Vec<Call> = vec![
        ("usage", Box::new(|| i32::from(nvml.usage(uuid).is_err()))),
        ("processes", Box::new(|| i32::from(nvml.processes(uuid).is_err()))),
    ];
    assert_eq!(waiting(gpu, steps, back, &calls, &BTreeSet::new()), names(&calls));
}

fn nvml_waits_in_a_locked_process(gpu: &Fixture) {
    nvml_waits(gpu, &["lock"], &["unlock"]);
}

fn nvml_waits_in_a_checkpointed_process(gpu: &Fixture) {
    nvml_waits(gpu, &["lock", "checkpoint"], &["restore", "unlock"]);
}

fn nvml_answers_others(_gpu: &Fixture) {
    let mut other = locker();
    let before = other.ask("in_use_mib");
    assert_eq!(other.ask("lock"), SUCCESS);
    let answers = (other.ask("listed"), other.ask("in_use_mib"));
    assert_eq!(other.ask("unlock"), SUCCESS);
    assert_eq!(answers, (1, before));
}

fn a_lock_waits(gpu: &Fixture) {
    let (mut other, stream) = (locker(), gpu.stream());
    assert_eq!(other.ask("state"), RUNNING, "it is ready");
    gpu.keep_busy(stream);
    assert_eq!(other.ask("lock"), SUCCESS);
    let code = gpu.raw.cuStreamQuery(stream);
    assert_eq!(other.ask("unlock"), SUCCESS);
    assert_eq!(code, SUCCESS);
}

// What a lock with too short a limit answers, and the state that it leaves.
fn locked_for_a_moment(gpu: &Fixture) -> (i32, i32) {
    let mut other = locker();
    assert_eq!(other.ask("state"), RUNNING, "it is ready");
    gpu.keep_busy(gpu.stream());
    let answers = (other.ask("lock_for_a_moment"), other.ask("state"));
    // Whatever it answered: a process that is locked does not end.
    other.ask("unlock");
    answers
}

fn a_lock_gives_up(gpu: &Fixture) {
    assert_eq!(locked_for_a_moment(gpu).0, NOT_READY);
}

fn goes_on_after_a_lock_that_gave_up(gpu: &Fixture) {
    assert_eq!(locked_for_a_moment(gpu).1, RUNNING);
}

// Asked from outside: NVML does not answer inside.
fn gone_from_the_device(gpu: &Fixture) {
    const PAGES: i32 = 64;
    let (_, _handle) = gpu.ready(64);
    let mut other = locker();
    assert_eq!(other.ask("listed"), 1);
    let before = other.ask("in_use_mib");
    other.steps(&["lock", "checkpoint"]);
    assert_eq!(other.ask("listed"), 0, "a checkpointed process is not on the device");
    assert!(other.ask("in_use_mib") + 2 * PAGES <= before, "its memory came back");
    other.steps(&["restore", "unlock"]);
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
