//! `lowtide demo`, as a user meets it, and as somebody sees it who watches from outside.

use std::process::Stdio;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::program::{Finished, Machine, one_line};
use crate::suspend::helper;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// The least there is: two MiB for a unit, on the double and on `host`.
const SMALL: [&str; 3] = ["demo", "--divide", "128"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], more].concat()
}

/// One run without a GPU, for all tests that read its JSON: each run takes two processor seconds. Each
/// state is held for much longer than the time between two samples.
static ON_HOST: LazyLock<Value> = LazyLock::new(|| {
    let arguments = ["demo", "--divide", "8", "--hold", "50", "--json"];
    Machine::without_gpu().run(&arguments).json()
});

/// The text of one run on the double with rungs, in 80 columns.
pub(crate) static WITH_RUNGS: LazyLock<String> = LazyLock::new(|| {
    let machine = Machine::with_double("total=1GiB");
    let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), &with(&["--rungs"]));
    Finished { output: command.env("COLUMNS", "80").output().unwrap() }.out()
});

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no bytes: {value}"))
}

fn scenario<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let mut all = answer["scenarios"].as_array().unwrap().iter();
    all.find(|scenario| scenario["name"] == name).unwrap_or_else(|| panic!("no scenario {name}"))
}

fn failed_checks(scenario: &Value) -> Vec<&Value> {
    let checks = scenario["checks"].as_array().unwrap();
    assert!(!checks.is_empty(), "{}", scenario["name"]);
    checks.iter().filter(|check| check["passed"] != true).collect()
}

#[test]
fn five_scenarios_run_and_are_proved_on_host() {
    let answer = &*ON_HOST;
    assert_eq!((&answer["device"], &answer["proved"]), (&json!("host"), &json!(true)));
    assert_eq!((&answer["source"], &answer["counts"]), (&json!("kernel"), &json!("own")));
    let names: Vec<_> =
        answer["scenarios"].as_array().unwrap().iter().map(|scenario| &scenario["name"]).collect();
    assert_eq!(names, ["stages", "between tasks", "shutdown", "idle", "updates"]);
    for scenario in answer["scenarios"].as_array().unwrap() {
        assert_eq!(scenario["verdict"], "released", "{:?}", failed_checks(scenario));
        assert_eq!(scenario["peak_bytes"], scenario["largest_bytes"], "{}", scenario["name"]);
        for key in ["before_bytes", "after_bytes"] {
            assert!(
                bytes(&scenario[key]) <= bytes(&scenario["peak_bytes"]),
                "{key} of {}",
                scenario["name"]
            );
            assert!(scenario["today"][key].is_u64(), "{key} of {}", scenario["name"]);
        }
        for key in ["holders", "reserved_bytes", "plan", "receipts", "states"] {
            assert!(scenario[key].is_array(), "{key} of {}", scenario["name"]);
        }
        assert!(!scenario["receipts"].as_array().unwrap().is_empty(), "{}", scenario["name"]);
    }
    let unit = bytes(&answer["unit_bytes"]);
    let stages = scenario(answer, "stages");
    assert_eq!(bytes(&stages["today"]["peak_bytes"]), 40 * unit, "the sum");
    assert_eq!(bytes(&stages["peak_bytes"]), 16 * unit, "the largest");
    assert!(stages["refused"].as_str().unwrap().contains("\"all at once\" does not fit: it needs"));
    let share = scenario(answer, "between tasks")["cleaning"]["share"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&share), "{share}");
    let idle = scenario(answer, "idle");
    let why = idle["suspended"]["why_not"].as_str().unwrap();
    assert!(why.contains("on a GPU"), "on host it says what it would show: {why}");
    assert_eq!(
        (&idle["after_bytes"], &idle["today"]["after_bytes"]),
        (&json!(0), &idle["before_bytes"])
    );
}

#[test]
fn a_shutdown_names_the_holder_and_updates_stay_flat() {
    let shutdown = scenario(&ON_HOST, "shutdown");
    let model = &shutdown["plan"].as_array().unwrap().last().unwrap()["bytes"];
    let holder = json!({
        "path": "profiler.hooks", "holds": "runner.model", "count": 2, "bytes": model, "cut": null,
        "by_hand": null, "since": shutdown["holders"][0]["since"]
    });
    assert_eq!(shutdown["holders"], json!([holder]));
    assert!(holder["since"].as_str().unwrap().contains("demo/shutdown.rs:"), "{holder}");
    assert_eq!(shutdown["after_bytes"], 0, "the runner is kept, its memory is not");
    assert_eq!(shutdown["today"]["after_bytes"], shutdown["today"]["before_bytes"]);
    let verdicts: Vec<_> = shutdown["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|receipt| &receipt["verdict"])
        .collect();
    assert_eq!(verdicts, ["pinned", "released"]);

    let updates = scenario(&ON_HOST, "updates");
    let reserved = updates["reserved_bytes"].as_array().unwrap();
    assert_eq!(reserved.len(), 200);
    assert!(reserved.iter().all(|bytes| *bytes == reserved[0]), "{reserved:?}");
    let today = updates["today"]["reserved_bytes"].as_array().unwrap();
    assert_eq!(today.len(), 200);
    assert!(bytes(today.last().unwrap()) > bytes(&today[0]), "{today:?}");
}

#[test]
fn people_get_receipts_and_a_table() {
    let machine = Machine::with_double("total=1GiB");
    assert!(helper().is_file(), "it is beside the program");
    let answer = machine.run(&SMALL);
    assert_eq!(answer.code(), 0, "{}", answer.err());
    let text = answer.out();
    for line in [
        "cuda:0  lowtide driver double",
        "1. stages  four models",
        "    stage judge on cuda:0: released, 16.0 MiB freed",
        "    after audio on cuda:0: released, 20.0 MiB freed",
        "  plan             1. runner.pooling, 2.0 MiB, borrows runner.model",
        "      held: runner.model by profiler.hooks since\n        crates/",
        "      → by hand: drop profiler.hooks, which holds runner.model",
        "  suspended        context and all: 64.0 MiB → 0.0 MiB in ",
        "    idle on cuda:0: released, 32.0 MiB freed of 32.0 MiB claimed (96.0 MiB",
        "reserved: 12.0 MiB after update 1, 12.0 MiB after update 200",
        "scenario        today: peak         left  lowtide: peak         left  verdict",
        "stages            144.0 MiB    144.0 MiB       96.0 MiB     64.0 MiB  released",
        "5 of 5 scenarios proved in ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("confirmed        no"), "{text}");
    assert!(!text.contains("touched"), "rungs are shown on request: {text}");
    assert_eq!(answer.err(), "", "progress is for terminals");
}

#[test]
fn rungs_are_shown_on_request() {
    let text = one_line(&WITH_RUNGS);
    for words in ["Before: allocated", "quiesce 0.0 MiB freed", "trim 16.0 MiB freed of 16.0 MiB"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

// What the picture in the README is drawn from.
#[test]
fn memory_over_time_is_in_the_json_for_both_ways() {
    for scenario in ON_HOST["scenarios"].as_array().unwrap() {
        let samples = scenario["samples"].as_array().unwrap();
        for (way, numbers) in [("today", &scenario["today"]), ("lowtide", scenario)] {
            let own: Vec<_> = samples.iter().filter(|sample| sample["way"] == way).collect();
            let times: Vec<_> = own.iter().map(|it| it["at_s"].as_f64().unwrap()).collect();
            assert!(times.is_sorted() && times.len() > 1, "{} {way}: {times:?}", scenario["name"]);
            let seen: Vec<_> = own.iter().map(|sample| bytes(&sample["bytes"])).collect();
            assert_eq!(seen.iter().copied().max(), numbers["peak_bytes"].as_u64(), "{scenario}");
            assert!(seen.contains(&bytes(&numbers["after_bytes"])), "{seen:?}");
            let is_row = |three: &[u64]| three[0] == three[1] && three[1] == three[2];
            assert!(!seen.windows(3).any(is_row), "a row is kept by its ends: {seen:?}");
        }
    }
}

#[test]
fn where_the_driver_reports_no_process_the_memory_of_all_counts() {
    let machine = Machine::with_double("total=1GiB,accounting=off,unattributed=16MiB");
    let answer = machine.run(&with(&["--json"])).json();
    assert_eq!((&answer["counts"], &answer["source"]), (&json!("everybody"), &json!("nvml")));
    assert_eq!(answer["floor_bytes"], 64 * MIB, "what a context costs on this double");
    let idle = scenario(&answer, "idle");
    assert_eq!(idle["after_bytes"], (64 + 16) * MIB, "the floor, and what is somebody else's");
}

#[test]
fn what_is_not_proved_is_reported_and_ends_with_one() {
    // The floor cannot be measured: NVML answers the survey, and not the second question.
    let machine = Machine::with_double("total=1GiB,fail=nvmlDeviceGetMemoryInfo_v2@2:999");
    let answer = machine.run(&with(&["--json"]));
    assert_eq!(answer.code(), 1, "{}", answer.err());
    let said: Value = serde_json::from_str(&answer.out()).unwrap();
    assert_eq!((&said["proved"], &said["floor_bytes"]), (&json!(false), &Value::Null));
    for scenario in said["scenarios"].as_array().unwrap() {
        let expected = if scenario["name"] == "idle" { "unverified" } else { "released" };
        assert_eq!(scenario["verdict"], expected, "{}", scenario["name"]);
    }
    assert!(!failed_checks(scenario(&said, "idle")).is_empty());
    assert!(answer.err().contains("not proved: idle (unverified): "), "{}", answer.err());
    assert!(
        answer.err().contains("the floor is not known: NVML could not report"),
        "{}",
        answer.err()
    );
}

#[test]
fn what_cannot_run_is_reported() {
    let refused = |machine: &Machine, arguments: &[&str], code: i32, words: &str| {
        let answer: Finished = machine.run(arguments);
        assert_eq!(answer.code(), code, "{}", answer.err());
        assert!(answer.err().contains(words), "{}", answer.err());
    };
    let without = Machine::without_gpu();
    refused(
        &without,
        &["demo", "--device", "cuda:7"],
        3,
        "cuda:7 is not available (this machine has host): no GPU can be used: the CUDA driver is not installed",
    );
    refused(
        &without,
        &["demo", "--device", "gpu"],
        3,
        "gpu is not available (this machine has host)",
    );
    refused(&without, &["demo", "--device", "GPU"], 2, "\"GPU\" is not a device");
    refused(&without, &["demo", "--hold", "soon"], 2, "--hold <MS>");
    let double = Machine::with_double("total=1GiB");
    refused(
        &double,
        &["demo", "--device", "cuda:7"],
        3,
        "cuda:7 is not available (this machine has cuda:0, host)",
    );
    let tiny = Machine::with_double("total=160MiB");
    refused(&tiny, &SMALL, 3, "not even the smallest demo fits: cuda:0 is out of memory");
    // A scenario that fails is named, and what was printed until then stays.
    let failing = Machine::with_double("total=1GiB,oom_at=4MiB");
    let larger = ["demo", "--divide", "32"];
    refused(&failing, &larger, 3, "scenario 1, four models in one process, one after another: ");
}

/// What the kernel reports for the demo's process, and when it was asked.
struct Look {
    from_s: f64,
    until_s: f64,
    bytes: u64,
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(60);

/// Runs the demo, and meanwhile asks `lowtide ps` from processes of their own.
fn watched(machine: &Machine, hold_ms: &str) -> (Value, Vec<Look>) {
    let arguments = ["demo", "--json", "--device", "host", "--divide", "16", "--hold", hold_ms];
    let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), &arguments);
    let demo = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = demo.id();
    let demo = thread::spawn(move || demo.wait_with_output().unwrap());
    let mut looks = Vec::new();
    while !demo.is_finished() {
        let from_s = now_s();
        let seen = machine.run(&["ps", "--json"]).json();
        let until_s = now_s();
        let processes = seen["host"]["processes"].as_array().unwrap();
        let own = processes.iter().find(|process| process["pid"] == pid);
        looks.extend(own.map(|own| Look { from_s, until_s, bytes: bytes(&own["bytes"]) }));
        // Each state is held for longer than a look and this take.
        thread::sleep(BETWEEN_LOOKS);
    }
    (Finished { output: demo.join().unwrap() }.json(), looks)
}

/// How often a state was looked at; every time it was as the demo says.
fn times_seen(state: &Value, looks: &[Look]) -> usize {
    let (from_s, until_s) = (state["from_s"].as_f64().unwrap(), state["until_s"].as_f64().unwrap());
    let within = |look: &&Look| look.from_s >= from_s && look.until_s <= until_s;
    let inside: Vec<_> = looks.iter().filter(within).collect();
    for look in &inside {
        assert_eq!(look.bytes, bytes(&state["bytes"]), "seen from outside: {state}");
    }
    inside.len()
}

#[test]
fn what_it_says_is_what_is_seen_from_outside() {
    let machine = Machine::without_gpu();
    // On a busy machine a look takes long: the states are then held for longer.
    let mut holds = ["300", "1500", "6000"].into_iter();
    let (answer, looks) = loop {
        let hold_ms = holds.next().expect("a look takes longer than any state lasts");
        let (answer, looks) = watched(&machine, hold_ms);
        let scenarios = answer["scenarios"].as_array().unwrap().clone();
        let mut states =
            scenarios.iter().flat_map(|scenario| scenario["states"].as_array().unwrap());
        if states.all(|state| times_seen(state, &looks) > 0) {
            break (answer, looks);
        }
    };
    let mut largest = 0;
    for scenario in answer["scenarios"].as_array().unwrap() {
        let states = scenario["states"].as_array().unwrap();
        for (way, numbers) in [("today", &scenario["today"]), ("lowtide", scenario)] {
            let own: Vec<_> = states.iter().filter(|state| state["way"] == way).collect();
            for key in ["before_bytes", "peak_bytes", "after_bytes"] {
                let held = own.iter().any(|state| state["bytes"] == numbers[key]);
                assert!(held, "{key} of {} {way} was never held", scenario["name"]);
            }
            let [first, .., last] = own.as_slice() else { panic!("too few states: {scenario}") };
            let (from_s, until_s) = (first["from_s"].as_f64(), last["until_s"].as_f64());
            let peak = bytes(&numbers["peak_bytes"]);
            for look in &looks {
                let inside = Some(look.from_s) >= from_s && Some(look.until_s) <= until_s;
                assert!(
                    !inside || look.bytes <= peak,
                    "{} {way}: {}",
                    scenario["name"],
                    look.bytes
                );
            }
            largest = largest.max(peak);
        }
    }
    assert_eq!(looks.iter().map(|look| look.bytes).max(), Some(largest), "the most ever seen");
}

#[test]
fn the_picture_is_drawn_from_the_json_and_says_what_it_is_of() {
    let machine = Machine::with_double("total=1GiB");
    let (json, picture) = (machine.path("demo.json"), machine.path("memory.svg"));
    std::fs::write(&json, machine.run(&with(&["--json"])).out()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/picture.py");
    let (from, to) = (json.display().to_string(), picture.display().to_string());
    let drawing =
        machine.command("python3", &[script, &from, &to, "--commit", "0123456789ab"]).output();
    let drawing = Finished { output: drawing.unwrap() };
    assert_eq!(drawing.code(), 0, "{}", drawing.err());
    let text = std::fs::read_to_string(&picture).unwrap();
    let words = "cuda:0, lowtide driver double (a test tool, no GPU), commit 0123456789ab, 2";
    assert!(text.contains(words) && text.contains("a bare context, 64 MiB"), "{text}");
    for words in ["stages", "shutdown", "144 MiB → 144 MiB", "96 MiB → 64 MiB"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let parse = "import sys, xml.dom.minidom as dom; dom.parse(sys.argv[1])";
    let parsed =
        Finished { output: machine.command("python3", &["-c", parse, &to]).output().unwrap() };
    assert_eq!(parsed.code(), 0, "{}", parsed.err());
}

#[test]
fn the_watching_script_agrees_on_the_double() {
    let machine = Machine::with_double("total=1GiB");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/watch_demo.py");
    let lowtide = env!("CARGO_BIN_EXE_lowtide");
    let arguments = [script, "--lowtide", lowtide, "--hold", "300", "--", "--divide", "128"];
    let answer = Finished { output: machine.command("python3", &arguments).output().unwrap() };
    assert_eq!(answer.code(), 0, "{}{}", answer.out(), answer.err());
    assert!(answer.out().contains("all agree with the demo"), "{}", answer.out());
}
