//! Every command where something is missing: room to write, threads, addresses, the other end of a
//! FIFO, a device, the parent. The answer is an error and an exit code of ours, and never a panic.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::PROGRAM;
use crate::hardship::{self, assert_ended, until};
use crate::program::{Finished, Machine};

const TRACE: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x1,4096,0\n";

/// Each command at its smallest, on a machine without a GPU.
fn commands(trace: &str) -> Vec<String> {
    vec![
        "doctor".to_owned(),
        "doctor --json".to_owned(),
        "doctor --measure --device host".to_owned(),
        "ps".to_owned(),
        "ps --json".to_owned(),
        format!("replay {trace}"),
        format!("replay {trace} --fit --json"),
        format!("replay {trace} --threads 4"),
        format!("replay {trace} --device host"),
        "demo --device host --divide 512 --json".to_owned(),
    ]
}

fn trace(machine: &Machine) -> String {
    let path = machine.path("trace.csv");
    fs::write(&path, TRACE).unwrap();
    path.display().to_string()
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let machine = Machine::without_gpu();
    let mut all = commands(&trace(&machine));
    all.extend(["--help", "--version", "ps --help"].map(str::to_owned));
    hardship::without_output(&machine, &all);
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_a_command() {
    let machine = Machine::without_gpu();
    let all = commands(&trace(&machine)).into_iter().map(|line| (line, 0));
    let wrong = [("replay /nowhere".to_owned(), 3), ("nonsense".to_owned(), 2)];
    hardship::without_log(&machine, &all.chain(wrong).collect::<Vec<_>>());
}

#[test]
fn too_few_threads_are_an_error() {
    let ended = hardship::with_few_threads(&Machine::without_gpu(), |folder| {
        let trace = folder.join("trace.csv");
        fs::write(&trace, TRACE).unwrap();
        commands(&trace.display().to_string())
    });
    let replayed =
        ended.iter().find(|(threads, line, _)| *threads == 1 && line.contains("--threads"));
    if let Some((_, _, finished)) = replayed {
        assert!(finished.err().contains("starting a thread of the replay"), "{}", finished.err());
    }
}

#[test]
fn too_little_address_space_is_an_error() {
    let machine = Machine::without_gpu();
    hardship::with_little_address_space(&machine, &commands(&trace(&machine)));
}

#[test]
fn a_trace_that_asks_for_more_than_there_is_is_an_error() {
    let machine = Machine::with_double("total=256MiB");
    let path = machine.path("trace.csv");
    let all = u64::MAX.to_string();
    let most = format!("{all}B");
    for size in ["2000000000000", "9223372036854775807", &all] {
        let blocks = [1, 2, 3].map(|block| format!("1,0,allocate,0x{block},{size},0"));
        let lines = blocks.join("\n");
        fs::write(&path, format!("Thread,Time,Action,Pointer,Size,Stream\n{lines}")).unwrap();
        let path = path.display().to_string();
        for more in [
            &[][..],
            &["--fit"],
            &["--threads", "4"],
            &["--streams", "3"],
            &["--device", "host"],
            &["--device", "cuda:0"],
            &["--memory", &most],
            &["--memory", "0"],
        ] {
            let finished = machine.run(&[&["replay", &path], more].concat());
            assert_ended(&finished, &[3], &format!("{size} {more:?}"));
        }
    }
}

#[test]
fn a_file_that_is_none_is_an_error_and_never_a_wait() {
    let machine = Machine::without_gpu();
    let fifo = machine.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (fifo_name, good) = (fifo.display().to_string(), trace(&machine));
    let inputs = [&fifo_name, "/", "/nowhere/trace", "/dev/zero", "/dev/urandom", "/dev/null"];
    for input in inputs {
        assert_ended(&machine.run(&["replay", input]), &[3], input);
    }
    for output in [&fifo_name, "/", "/nowhere/record", "/dev/full"] {
        let finished = machine.run(&["replay", &good, "--record", output]);
        assert_ended(&finished, &[3], &format!("--record {output}"));
    }
    // One that somebody writes, or reads, is as good as a file, however slowly.
    let mut both_ends = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let mut command = machine.command(PROGRAM, &["replay", &fifo_name, "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (head, tail) = TRACE.split_at(30);
    both_ends.write_all(head.as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(20));
    both_ends.write_all(tail.as_bytes()).unwrap();
    wait_until_open(child.id(), &fifo);
    drop(both_ends);
    let finished = Finished { output: child.wait_with_output().unwrap() };
    assert_eq!(finished.json()["events"], 1);
    let reader = thread::spawn(move || {
        let mut text = String::new();
        File::open(fifo).unwrap().read_to_string(&mut text).map(|_| text).unwrap()
    });
    // Refused until the reader has opened it.
    until("it is written", || machine.run(&["replay", &good, "--record", &fifo_name]).code() == 0);
    assert!(reader.join().unwrap().contains("allocate"));
}

// Waits until a process has a file open.
fn wait_until_open(pid: u32, path: &Path) {
    let has_it_open = || {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|file| file == path)
    };
    until("the file is open", has_it_open);
}

#[test]
fn a_device_that_is_missing_ends_every_command_with_three() {
    let machine = Machine::with_double("devices=1");
    let trace = trace(&machine);
    for device in ["cuda:7", "cuda:4294967295", "xpu:0"] {
        for command in [&["doctor"][..], &["ps"], &["demo"], &["replay", &trace]] {
            let arguments = [command, &["--device", device]].concat();
            let finished = machine.run(&arguments);
            assert_ended(&finished, &[3], &format!("{arguments:?}"));
            assert!(
                finished.err().contains(&format!("{device} is not available")),
                "{arguments:?}"
            );
            assert_eq!(finished.out(), "", "{arguments:?}");
        }
    }
}

#[test]
fn a_child_whose_parent_has_ended_before_it_looked_ends() {
    let machine = Machine::with_double("context=48MiB");
    let finished = machine.run(&["floor-child", "cuda:0", "--parent", "1"]);
    if std::process::id() != 1 {
        assert_ended(&finished, &[3], "a child of nobody");
    }
}
