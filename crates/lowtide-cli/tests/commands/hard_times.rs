//! Every command where something is missing: room to write, threads, addresses, the other end of a
//! FIFO, a device, the parent. The answer is an error and an exit code of ours, and never a panic.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{Finished, Machine};

const LOWTIDE: &str = env!("CARGO_BIN_EXE_lowtide");
const TRACE: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x1,4096,0\n";

/// Each command at its smallest, on a machine without a GPU.
fn commands(trace: &str) -> Vec<Vec<String>> {
    let lines = [
        "doctor".to_owned(),
        "doctor --json".to_owned(),
        "doctor --measure --device host".to_owned(),
        "ps".to_owned(),
        "ps --json".to_owned(),
        format!("replay {trace}"),
        format!("replay {trace} --fit --json"),
        format!("replay {trace} --threads 4"),
        format!("replay {trace} --device host"),
        "bench alloc --blocks 1000 --rounds 1 --no-growth".to_owned(),
        "bench sleep --device host --divide 4096 --turns 1 --json".to_owned(),
        "demo --device host --divide 512 --json".to_owned(),
    ];
    lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

fn trace(machine: &Machine) -> String {
    let path = machine.path("trace.csv");
    fs::write(&path, TRACE).unwrap();
    path.display().to_string()
}

/// Asserts that a command ended with one of these codes and did not panic.
#[track_caller]
fn assert_ended(finished: &Finished, codes: &[i32], what: &str) {
    let (status, err) = (finished.output.status, finished.err());
    assert!(status.code().is_some_and(|code| codes.contains(&code)), "{what}: {status}: {err}");
    assert!(!err.contains("panicked"), "{what}: {err}");
    assert!(status.code() != Some(3) || err.contains("lowtide: "), "{what}: no reason: {err}");
}

fn run(mut command: Command) -> Finished {
    Finished { output: command.output().unwrap() }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let machine = Machine::without_gpu();
    let mut all = commands(&trace(&machine));
    all.extend(
        ["--help", "--version", "ps --help"]
            .map(|line| line.split(' ').map(str::to_owned).collect()),
    );
    for arguments in all {
        let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = machine.command(LOWTIDE, &words(&arguments));
        command.stdout(full()).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let finished = Finished { output };
        assert_ended(&finished, &[3], &format!("{arguments:?}"));
        let told = "writing to standard output: No space left";
        assert!(finished.err().contains(told), "{}", finished.err());
    }
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_a_command() {
    let machine = Machine::without_gpu();
    let mut all = commands(&trace(&machine));
    all.push(vec!["replay".to_owned(), "/nowhere".to_owned()]);
    all.push(vec!["nonsense".to_owned()]);
    for arguments in all {
        let expected = match arguments[0].as_str() {
            "nonsense" => 2,
            "replay" if arguments[1] == "/nowhere" => 3,
            _ => 0,
        };
        let mut command = machine.command(LOWTIDE, &words(&arguments));
        command.env("LOWTIDE_LOG", "trace");
        command
            .stdout(Stdio::null())
            .stderr(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let status = command.status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}: {status}");
    }
}

#[test]
fn too_few_threads_are_an_error() {
    let machine = Machine::without_gpu();
    // The limit does not bind root, so the program runs as nobody, where nobody can reach it.
    let folder = tempfile::Builder::new().prefix("lowtide-threads-").tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("lowtide");
    fs::copy(LOWTIDE, &program).unwrap();
    let trace = folder.path().join("trace.csv");
    fs::write(&trace, TRACE).unwrap();
    let is_root = lowtide_device::private_files::effective_user() == 0;
    let limited = |threads: u32, arguments: &[&str]| {
        let limit = format!("--nproc={threads}");
        let nobody = ["setpriv", "--reuid", "65534", "--clear-groups"];
        let all = [if is_root { &nobody[..] } else { &[] }, &["prlimit", &limit]].concat();
        let mut command = machine.command(all[0], &all[1..]);
        command.arg(&program).args(arguments).env("XDG_CACHE_HOME", folder.path().join("cache"));
        command.output().map(|output| Finished { output })
    };
    if !limited(100_000, &["--version"]).is_ok_and(|finished| finished.output.status.success()) {
        println!("skipped: setpriv or prlimit is missing, or nobody cannot run the program");
        return;
    }
    for threads in [1, 2, 4] {
        for arguments in commands(&trace.display().to_string()) {
            let finished = limited(threads, &words(&arguments)).unwrap();
            assert_ended(&finished, &[0, 3], &format!("{arguments:?} with {threads} threads"));
        }
    }
    let path = trace.display().to_string();
    let finished = limited(1, &["replay", &path, "--threads", "4"]).unwrap();
    assert!(finished.err().contains("starting a thread of the replay"), "{}", finished.err());
}

#[test]
fn too_little_address_space_is_an_error() {
    let machine = Machine::without_gpu();
    let mut all = commands(&trace(&machine));
    all.push(
        "bench alloc --blocks 1000000 --rounds 1 --no-growth"
            .split(' ')
            .map(str::to_owned)
            .collect(),
    );
    for kib in [20_000, 60_000] {
        for arguments in &all {
            let limited = format!("ulimit -v {kib} && exec \"$@\"");
            let shell = [&["-c", &limited, "sh", LOWTIDE], &words(arguments)[..]].concat();
            let finished = run(machine.command("sh", &shell));
            // A thread for which the C library has no memory for a destructor is ended by the library, with
            // the whole process. Nobody can catch that.
            if !finished.err().contains("Fatal glibc error: failed to register TLS destructor") {
                assert_ended(&finished, &[0, 3], &format!("{arguments:?} with {kib} KiB"));
            }
        }
    }
}

#[test]
fn a_trace_that_asks_for_more_than_there_is_is_an_error() {
    let machine = Machine::with_double("total=256MiB");
    let path = machine.path("trace.csv");
    let all = u64::MAX.to_string();
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
            &["--memory", &all],
            &["--memory", "0"],
        ] {
            let finished = machine.lowtide(&[&["replay", &path], more].concat());
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
        assert_ended(&machine.lowtide(&["replay", input]), &[3], input);
    }
    for output in [&fifo_name, "/", "/nowhere/record", "/dev/full"] {
        let finished = machine.lowtide(&["replay", &good, "--record", output]);
        assert_ended(&finished, &[3], &format!("--record {output}"));
        for flag in ["--work", "--record"] {
            let small = ["bench", "alloc", "--blocks", "100", "--rounds", "1", "--no-growth"];
            let finished = machine.lowtide(&[&small[..], &[flag, output]].concat());
            assert_ended(&finished, &[3], &format!("{flag} {output}"));
        }
    }
    // One that somebody writes, or reads, is as good as a file, however slowly.
    let mut both_ends = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let mut command = machine.command(LOWTIDE, &["replay", &fifo_name, "--json"]);
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
    until("it is written", || {
        machine.lowtide(&["replay", &good, "--record", &fifo_name]).code() == 0
    });
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

/// Waits until something has happened. Fails after minutes, which nothing here takes.
#[track_caller]
fn until(what: &str, mut has_happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !has_happened() {
        assert!(began.elapsed() < Duration::from_secs(300), "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_device_that_is_missing_ends_every_command_with_three() {
    let machine = Machine::with_double("devices=1");
    let trace = trace(&machine);
    for device in ["cuda:7", "cuda:4294967295", "xpu:0"] {
        for command in [
            &["doctor"][..],
            &["ps"],
            &["demo"],
            &["replay", &trace],
            &["bench", "alloc"],
            &["bench", "sleep"],
        ] {
            let arguments = [command, &["--device", device]].concat();
            let finished = machine.lowtide(&arguments);
            assert_ended(&finished, &[3], &format!("{arguments:?}"));
            assert!(
                finished.err().contains(&format!("{device} is not available")),
                "{arguments:?}"
            );
            assert_eq!(finished.out(), "", "{arguments:?}");
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
    let endless = ["bench", "sleep", "--divide", "1024", "--turns", "1000", "--processes", "1"];
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("INT", 2)] {
        if is_ignored(number) {
            continue; // A shell starts what runs in the background so, and children inherit it.
        }
        let mut command = machine.command(LOWTIDE, &endless);
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
    // A parent that has ended before the child looked.
    let finished = machine.lowtide(&["floor-child", "cuda:0", "--parent", "1"]);
    if std::process::id() != 1 {
        assert_ended(&finished, &[3], "a child of nobody");
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
