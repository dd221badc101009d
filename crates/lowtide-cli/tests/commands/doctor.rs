//! `lowtide doctor`, as a user meets it: without a GPU, with one, and with bad luck.

use std::fs;
use std::process::Command;

use crate::program::Machine;
use lowtide_device::cuda::{ENTRY_POINTS, EntryGroup};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const CAPABILITIES: [&str; 6] =
    ["digest", "huge_pages", "locked_memory", "per_process", "suspend", "virtual_memory"];

fn device<'a>(report: &'a Value, id: &str) -> &'a Value {
    let devices = report["devices"].as_array().unwrap();
    devices
        .iter()
        .find(|device| device["id"] == id)
        .unwrap_or_else(|| panic!("no {id} in {report}"))
}

#[test]
fn without_a_gpu_host_is_usable_and_the_names_tried_are_said() {
    let machine = Machine::without_gpu();
    let report = machine.run(&["doctor", "--json"]).json();
    assert_eq!(report["cuda"]["available"], false);
    assert_eq!(report["cuda"]["tried"][0]["name"], "/nowhere/libcuda.so.1");
    assert!(report["cuda"]["reason"].as_str().unwrap().contains("LOWTIDE_CUDA_LIBRARY"));
    assert_eq!(report["devices"].as_array().unwrap().len(), 1);
    let host = device(&report, "host");
    assert_eq!((&host["kind"], &host["page_bytes"]), (&json!("host"), &json!(2 * MIB)));
    assert_eq!(host["floor_bytes"], 0);
    assert!(host["total_bytes"].as_u64().unwrap() >= 2 * MIB);
    let text = machine.run(&["doctor"]);
    assert_eq!(text.code(), 0, "a machine without a GPU is an ordinary machine");
    assert!(text.out().contains("/nowhere/libcuda.so.1"), "{}", text.out());
}

#[test]
fn the_usual_names_are_tried_where_no_variable_says_otherwise() {
    let machine = Machine::without_gpu();
    let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), &["doctor", "--json"]);
    let output = command
        .env_remove("LOWTIDE_CUDA_LIBRARY")
        .env_remove("LOWTIDE_NVML_LIBRARY")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tried = report["cuda"]["tried"].as_array().unwrap();
    assert_eq!(tried[0]["name"], "libcuda.so.1");
    // With a driver the search ends where it was found; without one, several names were tried.
    assert!(report["cuda"]["available"] == true || tried.len() >= 3, "{tried:?}");
}

#[test]
fn with_a_gpu_every_key_is_there() {
    let machine = Machine::with_double("total=2GiB,context=48MiB,reserved=32MiB");
    let report = machine.run(&["doctor", "--json"]).json();
    assert_eq!(report["cuda"]["available"], true);
    assert_eq!(report["cuda"]["reason"], Value::Null);
    let gpu = device(&report, "cuda:0");
    assert_eq!((&gpu["kind"], &gpu["page_bytes"]), (&json!("cuda"), &json!(2 * MIB)));
    assert_eq!(gpu["total_bytes"], 2048 * MIB);
    assert_eq!(gpu["usage"]["reserved_bytes"], 32 * MIB);
    assert_eq!(gpu["floor_bytes"], 48 * MIB, "what a context costs on this double");
    for name in CAPABILITIES {
        assert!(gpu["capabilities"][name]["works"].is_boolean(), "{name}");
        assert!(gpu["capabilities"][name]["detail"].is_string(), "{name}");
    }
    let seen = gpu["capabilities"]["virtual_memory"]["detail"].as_str().unwrap();
    assert!(seen.contains("copied out and back"), "tried by the child: {seen}");
}

#[test]
fn the_floor_is_remembered_and_measured_anew_when_asked() {
    let machine = Machine::with_double("context=48MiB");
    assert!(machine.run(&["doctor"]).out().contains("48.0 MiB for a bare context (measured now)"));
    assert!(machine.run(&["doctor"]).out().contains("stored"));
    assert!(machine.run(&["doctor", "--measure-floor"]).out().contains("measured now"));
    let remembered = machine.path("cache/lowtide/floor.json");
    assert!(remembered.exists());
    fs::write(&remembered, "{ not JSON").unwrap();
    assert!(
        machine.run(&["doctor"]).out().contains("measured now"),
        "a broken file remembers nothing"
    );
}

#[test]
fn a_floor_that_cannot_be_remembered_is_still_told() {
    let machine = Machine::with_double("context=48MiB");
    fs::write(machine.path("cache"), "a file where the folder should be").unwrap();
    let answer = machine.run(&["doctor"]);
    assert_eq!(answer.code(), 0);
    assert!(answer.out().contains("48.0 MiB for a bare context (measured now)"));
    assert!(answer.err().contains("could not be stored"), "{}", answer.err());
}

#[test]
fn a_child_that_fails_is_a_reason_and_not_the_end() {
    let machine = Machine::with_double("fail=cuDevicePrimaryCtxRetain:999");
    let report = machine.run(&["doctor", "--json"]).json();
    let gpu = device(&report, "cuda:0");
    assert_eq!(gpu["floor_bytes"], Value::Null);
    let reason = gpu["floor_reason"].as_str().unwrap();
    assert!(reason.contains("cuDevicePrimaryCtxRetain failed on cuda:0"), "{reason}");
}

#[test]
fn an_operation_that_fails_on_this_machine_is_said() {
    let machine = Machine::with_double("fail=cuMemMap:801");
    let report = machine.run(&["doctor", "--json"]).json();
    let tried = &device(&report, "cuda:0")["capabilities"]["virtual_memory"];
    assert_eq!(tried["works"], false);
    assert!(tried["detail"].as_str().unwrap().contains("cuMemMap failed on cuda:0"), "{tried}");
    assert!(tried["advice"].is_string());
}

#[test]
fn measuring_gives_speeds_with_units() {
    let machine = Machine::with_double("total=256MiB");
    let answer = machine.run(&["doctor", "--measure", "--device", "cuda:0"]);
    assert_eq!(answer.code(), 0, "{}", answer.err());
    for row in ["link out", "link in", "digest speed", "host memory"] {
        let line = answer.out().lines().find(|line| line.contains(row)).map(str::to_owned);
        assert!(
            line.as_ref().is_some_and(|line| line.contains("GiB/s")),
            "{row}: {}",
            answer.out()
        );
    }
}

#[test]
fn a_device_that_cannot_be_measured_does_not_hide_the_rest() {
    let machine = Machine::with_double("total=256MiB,oom_at=2MiB");
    let report = machine.run(&["doctor", "--measure", "--json"]).json();
    let gpu = device(&report, "cuda:0");
    assert_eq!(gpu["measured"], Value::Null);
    assert!(gpu["measured_reason"].as_str().unwrap().contains("out of memory"), "{gpu}");
    assert!(device(&report, "host")["measured"]["digest_gib_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_device_that_is_asked_for_and_cannot_be_used_is_told_why() {
    let machine = Machine::with_double("fail=cuInit:999");
    let answer = machine.run(&["doctor", "--device", "cuda:0"]);
    assert_eq!(answer.code(), 3);
    let expected = "lowtide: cuda:0 is not available (this machine has host): cuInit failed";
    assert!(answer.err().starts_with(expected), "{}", answer.err());
}

#[test]
fn without_nvml_the_driver_still_serves() {
    let double = lowtide_testing::double::Double::path().display().to_string();
    let machine = Machine::with_libraries(&double, "/nowhere/libnvidia-ml.so.1");
    let answer = machine.run(&["doctor"]);
    assert_eq!(answer.code(), 0, "{}", answer.err());
    assert!(answer.out().contains("NVML does not report how much is in use"), "{}", answer.out());
    assert!(
        answer.words().contains(
            "unknown: memory per process cannot be read: the NVML library is not installed"
        ),
        "{}",
        answer.out()
    );
}

#[test]
fn a_file_that_is_no_library_is_named_with_the_loaders_words() {
    let machine = Machine::without_gpu();
    let file = machine.path("libcuda.so.1");
    fs::write(&file, "not a library").unwrap();
    let machine = Machine::with_libraries(file.to_str().unwrap(), "/nowhere/nvml");
    let report = machine.run(&["doctor", "--json"]).json();
    let reason = report["cuda"]["reason"].as_str().unwrap();
    assert!(reason.contains(file.to_str().unwrap()), "{reason}");
}

/// A library that has these functions and does nothing; the driver version is the caller's.
fn stub(machine: &Machine, names: &[&str], version: i32) -> String {
    let functions: String = names
        .iter()
        .map(|name| match *name {
            "cuDriverGetVersion" => {
                format!("int cuDriverGetVersion(int *v) {{ *v = {version}; return 0; }}\n")
            }
            name => format!("int {name}(void) {{ return 0; }}\n"),
        })
        .collect();
    let (source, library) = (machine.path("stub.c"), machine.path("libstub.so"));
    fs::write(&source, functions).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status()
        .unwrap();
    assert!(built.success());
    library.display().to_string()
}

/// The functions that every driver has.
fn core_names() -> Vec<&'static str> {
    let core = ENTRY_POINTS.iter().filter(|entry| entry.group == EntryGroup::Core);
    core.map(|entry| entry.name).collect()
}

#[test]
fn a_missing_function_is_named() {
    let machine = Machine::without_gpu();
    for missing in core_names() {
        let others: Vec<_> = core_names().into_iter().filter(|name| *name != missing).collect();
        let machine = Machine::with_libraries(&stub(&machine, &others, 13000), "/nowhere/nvml");
        let report = machine.run(&["doctor", "--json"]).json();
        assert_eq!(report["cuda"]["available"], false);
        let reason = report["cuda"]["reason"].as_str().unwrap();
        assert!(reason.contains(&format!("the CUDA driver has no {missing}")), "{reason}");
    }
}

#[test]
fn a_driver_that_is_too_old_is_named_with_both_versions() {
    let machine = Machine::without_gpu();
    let machine = Machine::with_libraries(&stub(&machine, &core_names(), 11040), "/nowhere/nvml");
    let report = machine.run(&["doctor", "--json"]).json();
    let reason = report["cuda"]["reason"].as_str().unwrap();
    assert!(reason.contains("11.4") && reason.contains("12.0"), "{reason}");
}

fn assert_no_gpu(machine: &Machine, expected: &str) {
    let report = machine.run(&["doctor", "--json"]).json();
    assert_eq!(report["cuda"]["tried"].as_array().unwrap().len(), 1, "{expected}");
    assert_eq!(report["cuda"]["available"], false, "{expected}");
    let reason = report["cuda"]["reason"].as_str().unwrap();
    assert!(reason.contains(expected), "{expected}: {reason}");
    assert_eq!(device(&report, "host")["kind"], "host");
}

#[test]
fn a_driver_that_does_not_start_or_shows_nothing_is_a_reason() {
    assert_no_gpu(
        &Machine::with_double("fail=cuInit:100"),
        "no GPU is visible: check CUDA_VISIBLE_DEVICES",
    );
    assert_no_gpu(
        &Machine::with_double("fail=cuDeviceGetName:999"),
        "cuDeviceGetName failed on cuda:0",
    );
    let folder = Machine::without_gpu();
    let stub = stub(&folder, &core_names(), 13000);
    assert_no_gpu(&Machine::with_libraries(&stub, "/nowhere/nvml"), "CUDA_VISIBLE_DEVICES");
}

#[test]
fn wrong_usage_is_told_and_ends_with_two() {
    let machine = Machine::without_gpu();
    for (arguments, expected) in [
        (&["doctor", "--device", "cuda:x"][..], "\"cuda:x\" is not a device"),
        (&["doctor", "--device", "TPU"][..], "\"TPU\" is not a device"),
        (&["doctor", "--frobnicate"][..], "--frobnicate"),
        (&["frobnicate"][..], "frobnicate"),
        (&[][..], "Usage"),
    ] {
        let answer = machine.run(arguments);
        assert_eq!(answer.code(), 2, "{arguments:?}");
        assert!(answer.err().contains(expected), "{arguments:?}: {}", answer.err());
    }
}

// The conclusion comes first, the list of paths last.
#[test]
fn a_missing_device_ends_with_three_everywhere() {
    let machine = Machine::without_gpu();
    let trace = machine.path("trace.csv");
    fs::write(&trace, "Thread,Time,Action,Pointer,Size,Stream\n").unwrap();
    let trace = trace.display().to_string();
    for wanted in ["cuda:7", "xpu:0"] {
        for command in
            [&["doctor"][..], &["ps"], &["ps", "--watch"], &["demo"], &["replay", &trace]]
        {
            let answer = machine.run(&[command, &["--device", wanted]].concat());
            assert_eq!(answer.code(), 3, "{command:?}: {}", answer.err());
            let conclusion = format!("lowtide: {wanted} is not available (this machine has host)");
            assert!(answer.err().starts_with(&conclusion), "{command:?}: {}", answer.err());
            assert_eq!(answer.out(), "", "{command:?}");
        }
    }
    let said = machine.run(&["demo", "--device", "cuda:0"]).err();
    assert!(said.ends_with("(looked for /nowhere/libcuda.so.1)"), "{said}");
}

#[test]
fn help_teaches() {
    let machine = Machine::without_gpu();
    let help = machine.run(&["doctor", "--help"]).out();
    for word in ["--measure", "--json", "floor", "Ends with 0"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let help = machine.run(&["--help"]).out();
    for word in ["LOWTIDE_CUDA_LIBRARY", "0  done", "1  done", "2  wrong usage", "3  could not run"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_told() {
    let machine = Machine::without_gpu();
    for arguments in [&["doctor"][..], &["doctor", "--json"], &["ps"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = machine
            .command(env!("CARGO_BIN_EXE_lowtide"), arguments)
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{arguments:?}");
    }
}
