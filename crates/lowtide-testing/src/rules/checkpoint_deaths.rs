//! Suspending a process when somebody dies, is stopped, or is faster.
//!
//! The target does the work, not the caller: a caller's death loses nothing, and no lock has an owner.

use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::checkpoint::{CHECKPOINTED, LOCKED, RUNNING, locker, locker_of};
use super::fixture::{
    Fixture, ILLEGAL_STATE, NOT_READY, OPERATING_SYSTEM, OUT_OF_MEMORY, OtherProcess, PAGE, Rule,
    SUCCESS,
};
use crate::raw::Properties;
use crate::role;

/// A process of these rules that has a context, and waits.
pub(super) const TARGET: &str = "target";

pub(super) const RULES: &[Rule] = &[
    ("a_lock_outlives_the_process_that_took_it", a_lock_outlives),
    ("a_lock_has_no_owner", no_owner),
    ("a_checkpoint_completes_without_its_caller", a_checkpoint_completes),
    ("a_restore_completes_without_its_caller", a_restore_completes),
    ("of_two_locks_at_once_one_is_refused", two_at_once),
    ("a_threads_number_stands_for_its_process", a_threads_number),
    ("a_process_that_was_killed_while_locked_has_no_state", killed_while_locked),
    ("a_process_that_was_killed_while_checkpointed_has_no_state", killed_while_checkpointed),
    ("a_lock_of_a_stopped_process_waits_past_its_limit", a_stopped_process),
    ("a_process_runs_after_the_one_that_waited_for_it_was_killed", a_killed_waiter),
    ("a_restore_without_room_is_refused_and_the_process_is_lost", no_room),
];

/// So much memory that a checkpoint of it takes a while on a GPU; a double has less.
const MOST_PAGES: u64 = 512;
/// The double takes so long for a checkpoint or a restore.
const SLOW: &str = "checkpoint_us=300000";
/// The time after which the caller is killed: its call has begun, and is not done.
const MIDDLE: Duration = Duration::from_millis(60);
/// The time in which what was begun is done.
const DONE_WITHIN: Duration = Duration::from_secs(10);
/// The number of tries to kill a caller in the middle of its call.
const TRIES: usize = 5;

fn filled(gpu: &Fixture) -> u64 {
    let (at, _) = gpu.ready(MOST_PAGES.min(gpu.free_bytes() / 4 / PAGE));
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 7, PAGE, 0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSynchronize(), SUCCESS);
    at
}

fn back(gpu: &Fixture, other: &mut OtherProcess, steps: &[&str], at: u64) {
    other.steps(steps);
    assert_eq!(other.ask("state"), RUNNING);
    assert_eq!(gpu.byte(at), 7);
}

fn a_lock_outlives(gpu: &Fixture) {
    let (at, mut first, mut other) = (filled(gpu), locker(), locker());
    assert_eq!(first.ask("lock"), SUCCESS);
    drop(first);
    assert_eq!(other.ask("state"), LOCKED);
    back(gpu, &mut other, &["unlock"], at);
}

fn no_owner(gpu: &Fixture) {
    let (at, mut first, mut other) = (filled(gpu), locker(), locker());
    assert_eq!(first.ask("lock"), SUCCESS);
    assert_eq!(other.ask("lock"), ILLEGAL_STATE);
    assert_eq!(other.ask("checkpoint"), SUCCESS);
    assert_eq!(first.ask("restore"), SUCCESS);
    back(gpu, &mut other, &["unlock"], at);
}

// A caller that was killed before its call began has done nothing: then another one tries.
fn without_its_caller(other: &mut OtherProcess, step: &str, before: i32, after: i32) {
    for _ in 0..TRIES {
        let mut caller = locker_of(std::process::id(), SLOW);
        assert_eq!(caller.ask("state"), before, "it is ready");
        caller.tell(step);
        thread::sleep(MIDDLE);
        drop(caller);
        let deadline = Instant::now() + DONE_WITHIN;
        while Instant::now() < deadline {
            if other.ask("state") == after {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    panic!("the {step} did not complete");
}

fn a_checkpoint_completes(gpu: &Fixture) {
    let (at, mut other) = (filled(gpu), locker());
    assert_eq!(other.ask("lock"), SUCCESS);
    without_its_caller(&mut other, "checkpoint", LOCKED, CHECKPOINTED);
    assert_eq!(other.ask("listed"), 0);
    back(gpu, &mut other, &["restore", "unlock"], at);
}

fn a_restore_completes(gpu: &Fixture) {
    let (at, mut other) = (filled(gpu), locker());
    assert_eq!((other.ask("lock"), other.ask("checkpoint")), (SUCCESS, SUCCESS));
    without_its_caller(&mut other, "restore", CHECKPOINTED, LOCKED);
    assert_eq!(other.ask("restore"), ILLEGAL_STATE);
    back(gpu, &mut other, &["unlock"], at);
}

fn two_at_once(gpu: &Fixture) {
    let at = filled(gpu);
    let (mut first, mut other) = (locker_of(std::process::id(), SLOW), locker());
    assert_eq!((first.ask("lock"), other.ask("state")), (SUCCESS, LOCKED));
    first.tell("checkpoint");
    // It waits while the checkpoint is under way, or is refused at once.
    assert_eq!(other.ask("lock"), ILLEGAL_STATE);
    assert_eq!(first.answer("checkpoint"), SUCCESS);
    back(gpu, &mut other, &["restore", "unlock"], at);
}

fn a_threads_number(_gpu: &Fixture) {
    let (end, ended) = mpsc::channel::<()>();
    let (sender, number) = mpsc::channel();
    let thread = thread::spawn(move || {
        sender.send(thread_number()).expect("the rule waits");
        let _ended = ended.recv();
    });
    let mut by_thread = locker_of(number.recv().expect("a number"), "");
    let mut by_process = locker();
    assert_eq!(by_thread.ask("lock"), SUCCESS);
    assert_eq!(by_process.ask("state"), LOCKED);
    assert_eq!(by_thread.ask("unlock"), SUCCESS);
    drop(end);
    thread.join().expect("it ends");
}

#[allow(unsafe_code, reason = "std does not tell a thread's number")]
fn thread_number() -> u32 {
    // SAFETY: returns a number.
    unsafe { libc::gettid() }.cast_unsigned()
}

fn killed(steps: &[&str]) {
    let mut target = target_process();
    let mut other = locker_of(target.0.child.id(), "");
    other.steps(steps);
    target.0.child.kill().expect("a child of ours");
    target.0.child.wait().expect("it ended");
    assert_eq!(other.ask("state"), -OPERATING_SYSTEM);
}

fn killed_while_locked(_gpu: &Fixture) {
    killed(&["lock"]);
}

fn killed_while_checkpointed(_gpu: &Fixture) {
    killed(&["lock", "checkpoint"]);
}

fn a_stopped_process(_gpu: &Fixture) {
    let mut target = target_process();
    let mut other = locker_of(target.0.child.id(), "");
    assert_eq!(other.ask("state"), RUNNING, "it is ready");
    signal(&target, "-STOP");
    other.tell("lock_for_a_moment");
    let (sender, answered) = mpsc::channel();
    let code = thread::scope(|scope| {
        scope.spawn(|| sender.send(other.answer("lock_for_a_moment")));
        let early = answered.recv_timeout(Duration::from_secs(1));
        signal(&target, "-CONT");
        assert!(early.is_err(), "it answered {early:?} about a stopped process");
        answered.recv().expect("it answers now")
    });
    // Its limit passed long ago, or its work was done.
    assert!([SUCCESS, NOT_READY].contains(&code), "{code}");
    if code == SUCCESS {
        assert_eq!(other.ask("unlock"), SUCCESS);
    }
    assert_eq!(target.ask("byte"), 7);
}

fn a_killed_waiter(_gpu: &Fixture) {
    let mut target = target_process();
    let mut waiter = locker_of(target.0.child.id(), "");
    assert_eq!(waiter.ask("state"), RUNNING, "it is ready");
    signal(&target, "-STOP");
    waiter.tell("lock_for_a_moment");
    thread::sleep(MIDDLE);
    drop(waiter);
    signal(&target, "-CONT");
    assert_eq!(locker_of(target.0.child.id(), "").ask("state"), RUNNING);
    assert_eq!(target.ask("byte"), 7);
}

// It is lost although the state does not say so: there is room again, and nothing brings it back.
fn no_room(gpu: &Fixture) {
    let target = target_process();
    let mut other = locker_of(target.0.child.id(), "");
    assert_eq!((other.ask("lock"), other.ask("checkpoint")), (SUCCESS, SUCCESS));
    let mut handles = Vec::new();
    for pages in [512, 64, 8, 1] {
        let mut handle = 0;
        while gpu.raw.cuMemCreate(&mut handle, pages * PAGE, &Properties::default(), 0) == SUCCESS {
            handles.push(handle);
        }
    }
    let refused = (other.ask("restore"), other.ask("state"), other.ask("unlock"));
    for handle in handles {
        assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS);
    }
    assert_eq!(refused, (OUT_OF_MEMORY, CHECKPOINTED, ILLEGAL_STATE));
    let again = (other.ask("restore"), other.ask("state"), other.ask("unlock"));
    assert_eq!(again, (OPERATING_SYSTEM, CHECKPOINTED, ILLEGAL_STATE));
}

/// Starts another process with a context.
fn target_process() -> OtherProcess {
    let mut target = OtherProcess::start(TARGET, "");
    assert_eq!(target.ask("byte"), 7, "it is ready");
    target
}

fn signal(target: &OtherProcess, signal: &str) {
    let pid = target.0.child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
    assert!(sent.success(), "kill {signal} {pid}");
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let stat = stat.expect("it has not been waited for");
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    // The kernel stops a process a moment later.
    while (signal == "-STOP") != is_stopped() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs the other process: tells a byte of its device memory for each line.
pub(super) fn target() -> ExitCode {
    let gpu = Fixture::new();
    let (at, _) = gpu.ready(1);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 7, PAGE, 0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSynchronize(), SUCCESS);
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        role::answer(&gpu.byte(at).to_string());
    }
    ExitCode::SUCCESS
}
