//! `lowtide ps`, as a user meets it: who holds device memory, adding up.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use crate::program::Machine;
use serde_json::{Value, json};

const MIB: i64 = 1 << 20;

/// A process that holds a context on the double until it is dropped.
struct Holder {
    child: Child,
}

impl Holder {
    fn start(machine: &Machine) -> Holder {
        let mut command =
            machine.command(env!("CARGO_BIN_EXE_lowtide"), &["floor-child", "cuda:0"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{line:?}");
        Holder { child }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// Every row of a device, and the driver's own number.
fn sum(device: &Value) -> (i64, i64) {
    let bytes = |key: &str| device[key].as_i64().unwrap();
    let processes = device["processes"].as_array().unwrap();
    let named: i64 = processes.iter().filter_map(|process| process["bytes"].as_i64()).sum();
    let rows = named + bytes("unattributed_bytes") + bytes("reserved_bytes");
    (rows, bytes("total_bytes") - bytes("free_bytes"))
}

#[test]
fn rows_add_up_to_what_the_driver_says() {
    let machine = Machine::with_double("context=48MiB,reserved=32MiB,unattributed=16MiB");
    let holder = Holder::start(&machine);
    let answer = machine.run(&["ps", "--json"]).json();
    let device = &answer["devices"][0];
    assert_eq!(device["id"], "cuda:0");
    assert_eq!(device["unattributed_bytes"], 16 * MIB);
    assert_eq!(device["reserved_bytes"], 32 * MIB);
    let process = &device["processes"][0];
    assert_eq!(
        (&process["pid"], &process["bytes"]),
        (&holder.child.id().into(), &(48 * MIB).into())
    );
    let (rows, driver) = sum(device);
    assert_eq!(rows, driver);
}

#[test]
fn people_get_a_table() {
    let machine =
        Machine::with_double("total=1GiB,context=48MiB,reserved=32MiB,unattributed=16MiB");
    let holder = Holder::start(&machine);
    let text = machine.run(&["ps"]).out();
    let row = format!("{:>10}          48.0 MiB  ", holder.child.id());
    assert!(text.contains(&row), "{text}");
    let rest = "
         -          16.0 MiB  unattributed
         -          32.0 MiB  reserved by the driver
            ————————————————
         -          96.0 MiB  in use (total − free)
         -         928.0 MiB  free
         -       1,024.0 MiB  total
";
    assert!(text.contains(rest), "{text}");
}

#[test]
fn a_process_of_this_machine_is_named() {
    let machine = Machine::with_double("context=48MiB");
    let _holder = Holder::start(&machine);
    let answer = machine.run(&["ps", "--json"]).json();
    let process = &answer["devices"][0]["processes"][0];
    if lowtide_device::identity::sees_driver_pids() {
        assert_eq!(process["identity"], "known");
        assert!(process["command"].as_str().unwrap().contains("floor-child cuda:0"), "{process}");
    } else {
        // The double has no /dev/nvidia open, which is what tells in a container.
        assert_eq!(process["identity"], "other_namespace");
    }
}

#[test]
fn memory_that_is_not_reported_is_unattributed() {
    let machine = Machine::with_double("context=48MiB,accounting=off");
    let _holder = Holder::start(&machine);
    let answer = machine.run(&["ps", "--json"]).json();
    let device = &answer["devices"][0];
    assert_eq!(device["processes"][0]["bytes"], Value::Null);
    assert_eq!(device["unattributed_bytes"], 48 * MIB);
    let (rows, driver) = sum(device);
    assert_eq!(rows, driver);
    assert!(machine.run(&["ps"]).out().contains("not reported"));
}

#[test]
fn a_pid_of_nobody_here_is_named_as_unknown() {
    let machine = Machine::with_double("context=48MiB,pid_offset=50000000");
    let _holder = Holder::start(&machine);
    let answer = machine.run(&["ps", "--json"]).json();
    assert_eq!(answer["devices"][0]["processes"][0]["identity"], "not_visible");
    assert!(machine.run(&["ps"]).out().contains("outside this container"));
}

#[test]
fn one_device_can_be_asked_for() {
    let machine = Machine::with_double("devices=2,context=48MiB");
    let _holder = Holder::start(&machine);
    let answer = machine.run(&["ps", "--device", "cuda:1", "--json"]).json();
    let ids: Vec<_> = answer["devices"].as_array().unwrap().iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, ["cuda:1"]);
    assert_eq!(answer["host"], Value::Null);
    let answer = machine.run(&["ps", "--device", "host", "--json"]).json();
    assert_eq!((&answer["devices"], &answer["reason"]), (&json!([]), &Value::Null));
    assert!(answer["host"]["processes"].is_array());
    let text = machine.run(&["ps", "--device", "cuda:0"]).out();
    assert!(
        text.contains("cuda:0") && !text.contains("cuda:1") && !text.contains("host"),
        "{text}"
    );
    let answer = machine.run(&["ps", "--device", "cuda:2"]);
    assert_eq!(answer.code(), 3);
    assert!(
        answer.err().contains("cuda:2 is not available (this machine has cuda:0, cuda:1, host)"),
        "{}",
        answer.err()
    );
}

#[test]
fn a_name_that_no_gpu_has_is_not_blamed_on_nvml() {
    let machine = Machine::without_gpu();
    let answer = machine.run(&["ps", "--device", "hosts"]);
    assert_eq!(answer.code(), 3);
    assert_eq!(answer.err(), "lowtide: hosts is not available (this machine has host)");
    let answer = machine.run(&["ps", "--device", "cuda:0"]);
    assert!(answer.err().contains("the NVML library is not installed"), "{}", answer.err());
}

#[test]
fn a_watch_prints_a_line_of_json_per_look_until_it_is_interrupted() {
    let machine = Machine::with_double("context=48MiB");
    let arguments = ["ps", "--json", "--watch", "0.1"];
    let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut look = || serde_json::from_str::<Value>(&lines.next().unwrap()).unwrap();
    let (before, holder) = (look(), Holder::start(&machine));
    assert_eq!(before["devices"][0]["processes"], json!([]));
    let holds = |look: &Value| look["devices"][0]["processes"][0]["pid"] == holder.child.id();
    let after = (0..1000).map(|_| look()).find(holds).expect("the next looks see the new process");
    assert!(after["at_s"].as_f64() > before["at_s"].as_f64());
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_watch_ends_when_nobody_reads_any_more() {
    let machine = Machine::with_double("context=48MiB");
    for more in [&[][..], &["--json"]] {
        let arguments = [&["ps", "--watch", "0.1"], more].concat();
        let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), &arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn an_interval_that_is_none_is_refused() {
    let machine = Machine::without_gpu();
    for wrong in ["0", "soon", "4000"] {
        let answer = machine.run(&["ps", "--watch", wrong]);
        assert_eq!(answer.code(), 2, "{wrong}: {}", answer.err());
        assert!(answer.err().contains("seconds from 0.1 to 3600"), "{}", answer.err());
    }
}

#[test]
fn asking_costs_no_device_memory() {
    let machine = Machine::with_double("context=48MiB");
    let answer = machine.run(&["ps", "--json"]).json();
    assert_eq!(answer["devices"][0]["processes"].as_array().unwrap().len(), 0);
    let (rows, driver) = sum(&answer["devices"][0]);
    assert_eq!(rows, driver);
}

#[test]
fn without_a_gpu_it_says_why_and_ends_with_zero() {
    let machine = Machine::without_gpu();
    let answer = machine.run(&["ps", "--json"]).json();
    assert_eq!(answer["devices"].as_array().unwrap().len(), 0);
    assert!(answer["reason"].as_str().unwrap().contains("/nowhere/libnvidia-ml.so.1"));
    assert!(machine.run(&["ps"]).out().contains("no GPU"));
}

#[test]
fn nvml_that_answers_with_an_error_is_told_and_ends_with_three() {
    let machine = Machine::with_double("fail=nvmlDeviceGetMemoryInfo_v2:999");
    let answer = machine.run(&["ps"]);
    assert_eq!(answer.code(), 3);
    assert!(answer.err().contains("NVML could not report the memory in use"), "{}", answer.err());
    assert!(answer.out().contains("host"), "the rest is shown all the same");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let machine = Machine::with_double("context=48MiB");
    let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), &["ps", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

// A program whose file has this name, with a device made of this machine's memory.
fn start_with_name(machine: &Machine, name: &[u8]) -> Holder {
    let program = machine.path("").join(OsStr::from_bytes(name));
    symlink(env!("CARGO_BIN_EXE_lowtide"), &program).unwrap();
    let mut command = machine.command(program, &["floor-child", "host"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    Holder { child }
}

#[test]
fn a_name_that_others_chose_is_shown_and_does_nothing_to_the_terminal() {
    let machine = Machine::without_gpu();
    let names: [(&[u8], &str); 4] = [
        (b"p\xffq", r"p\xffq"),
        (b"red\x1b[31m", r"red\u{1b}[31m"),
        (b"two\nlines", r"two\nlines"),
        ("rtl\u{202e}txt\u{9b}".as_bytes(), r"rtl\u{202e}txt\u{9b}"),
    ];
    for (name, shown) in names {
        let holder = start_with_name(&machine, name);
        let (pid, answer) = (holder.child.id(), machine.run(&["ps", "--json"]));
        let text = answer.out();
        let is_safe = |c: char| c == '\n' || lowtide_types::is_printable(c);
        assert!(text.chars().all(is_safe), "{text:?}");
        let processes = answer.json()["host"]["processes"].as_array().unwrap().clone();
        let own = processes.iter().find(|process| process["pid"] == pid).expect("it is listed");
        assert_eq!((&own["identity"], &own["name"]), (&json!("known"), &json!(shown)));
        assert!(own["command"].as_str().unwrap().contains(shown), "{own}");
        let text = machine.run(&["ps"]).out();
        assert!(text.contains(shown) && text.chars().all(is_safe), "{text:?}");
    }
}

#[test]
fn an_unreadable_proc_is_told() {
    let machine = Machine::with_double("context=48MiB");
    let _holder = Holder::start(&machine);
    let lowtide = env!("CARGO_BIN_EXE_lowtide");
    let hidden = format!("mount -t tmpfs none /proc && exec {lowtide} \"$@\"");
    let run = |arguments: &[&str]| {
        let all = [&["-m", "sh", "-c", &hidden, "lowtide"], arguments].concat();
        machine.command("unshare", &all).output().unwrap()
    };
    let output = run(&["ps", "--json"]);
    let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else {
        println!("skipped: /proc cannot be hidden: {}", String::from_utf8_lossy(&output.stderr));
        return;
    };
    let reason = answer["host"]["reason"].as_str().unwrap();
    assert!(reason.contains("/proc"), "{reason}");
    assert_eq!(answer["devices"][0]["processes"][0]["identity"], "no_proc");
    let text = String::from_utf8(run(&["ps"]).stdout).unwrap();
    assert!(!text.contains("no process uses any"), "{text}");
    assert!(text.contains("not known: /proc") && text.contains("unknown: /proc cannot"), "{text}");
}
