//! Benchmarks where something is missing: room to write, threads, addresses, a device, the parent.

use std::fs;
use std::process::{Child, Command, Stdio};

use crate::PROGRAM;
use crate::hardship::{self, assert_ended, until};
use crate::program::Machine;

const ALLOC: &str = "alloc --blocks 1000 --rounds 1 --no-growth";

/// Each benchmark at its smallest, on a machine without a GPU.
fn commands() -> Vec<String> {
    vec![ALLOC.to_owned(), "sleep --device host --divide 4096 --turns 1 --json".to_owned()]
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let help = ["--help", "--version", "sleep --help"].map(str::to_owned);
    let all = [commands(), help.to_vec()].concat();
    hardship::without_output(&Machine::without_gpu(), &all);
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_a_benchmark() {
    let all: Vec<_> = commands().into_iter().map(|line| (line, 0)).collect();
    hardship::without_log(&Machine::without_gpu(), &all);
}

#[test]
fn too_few_threads_are_an_error() {
    hardship::with_few_threads(&Machine::without_gpu(), |_| commands());
}

#[test]
fn too_little_address_space_is_an_error() {
    let many = ["alloc --blocks 1000000 --rounds 1 --no-growth".to_owned()];
    let all = [commands(), many.to_vec()].concat();
    hardship::with_little_address_space(&Machine::without_gpu(), &all);
}

#[test]
fn a_file_that_is_none_is_an_error_and_never_a_wait() {
    let machine = Machine::without_gpu();
    let fifo = machine.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for output in [&fifo.display().to_string(), "/", "/nowhere/record", "/dev/full"] {
        for flag in ["--work", "--record"] {
            let words: Vec<&str> = ALLOC.split(' ').chain([flag, output]).collect();
            assert_ended(&machine.run(&words), &[3], &format!("{flag} {output}"));
        }
    }
}

#[test]
fn a_device_that_is_missing_is_told() {
    let (with, without) = (Machine::with_double("devices=1"), Machine::without_gpu());
    for device in ["cuda:7", "cuda:4294967295", "xpu:0"] {
        for benchmark in ["alloc", "sleep"] {
            for machine in [&with, &without] {
                let finished = machine.run(&[benchmark, "--device", device]);
                assert_ended(&finished, &[3], &format!("{benchmark} on {device}"));
                let conclusion =
                    format!("lowtide-bench: {device} is not available (this machine has ");
                assert!(finished.err().starts_with(&conclusion), "{}", finished.err());
                assert_eq!(finished.out(), "");
            }
        }
    }
}

/// The only child of a process, once it has one.
fn child_of(parent: u32) -> u32 {
    let mut child = None;
    until("it has a child", || {
        let file = format!("/proc/{parent}/task/{parent}/children");
        let children = fs::read_to_string(file).expect("the parent runs");
        child = children.split_whitespace().next().map(|child| child.parse().unwrap());
        child.is_some()
    });
    child.expect("it was waited for")
}

/// Whether a process runs. One that has ended may wait for whoever reaps it.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Whether this process ignores a signal.
fn is_ignored(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.unwrap_or_default() & (1 << (number - 1)) != 0
}

#[test]
fn a_benchmark_that_is_ended_takes_its_children_along() {
    let machine = Machine::with_double("context=48MiB");
    let endless = ["sleep", "--divide", "1024", "--turns", "1000", "--processes", "1"];
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("INT", 2)] {
        if is_ignored(number) {
            continue; // A shell starts what runs in the background so, and children inherit it.
        }
        let mut command = machine.command(PROGRAM, &endless);
        let spawned = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut parent = Killed(spawned.unwrap());
        let child = child_of(parent.0.id());
        let pid = parent.0.id().to_string();
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success()
        );
        parent.0.wait().unwrap();
        // The kernel ends the child as soon as its parent has ended.
        until(&format!("the child ends after {signal}"), || !runs(child));
    }
}

/// A process that is killed at the end of the test, whatever happens.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
