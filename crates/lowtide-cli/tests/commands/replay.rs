//! `lowtide replay`: the four traces within their bars, and what bad input gets.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::program::{Finished, Machine};
use serde_json::{Value, json};

/// A trace by `bench/traces.py`, as a file of this machine.
fn trace(machine: &Machine, name: &str, seed: u64) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/traces.py");
    let output = Command::new("python3").args([script, name, &seed.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = machine.path(&format!("{name}-{seed}.csv"));
    fs::write(&file, output.stdout).unwrap();
    file.display().to_string()
}

// What `cuMemAlloc` and `cuMemFree` would take for each event, in ms: measured at 2 and 512 MiB.
fn naive_ms(file: &str) -> f64 {
    let text = fs::read_to_string(file).unwrap();
    let cost = |row: &str| {
        let columns: Vec<_> = row.split(',').collect();
        let share = columns[4].parse::<f64>().unwrap() / f64::from(512 << 20);
        if columns[2] == "allocate" { 51.0 + 35.0 * share } else { 44.0 + 259.0 * share }
    };
    text.lines().skip(1).map(cost).sum::<f64>() / 1000.0
}

// Peak over live peak of PyTorch's expandable segments on the same traces, on an H200. The device is a tenth larger
// than the live peak: on a larger one the pool spends memory to save driver calls. There it takes less time than
// `cuMemAlloc` and `cuMemFree`.
#[test]
fn no_trace_takes_more_than_expandable_segments_nor_more_than_a_twentieth() {
    let machine = Machine::without_gpu();
    for (name, peer) in [("random4", 1.05), ("random64", 1.07), ("swap", 1.00), ("ragged", 1.09)] {
        for seed in lowtide_testing::share(1..4) {
            let file = trace(&machine, name, seed);
            let roomy = machine.run(&["replay", &file, "--json"]).json();
            let memory = tenth_more(&roomy);
            let tight = ["replay", &file, "--memory", &memory, "--fit", "--json"];
            let tight = machine.run(&tight).json();
            let number = |answer: &Value, key: &str| answer[key].as_f64().unwrap();
            let [ratio, fit] = ["ratio", "fit_ratio"].map(|key| number(&tight, key));
            // The peers' figures have two decimals.
            assert!(ratio < peer + 0.005, "{name} {seed}: ratio {ratio}");
            assert!(fit <= 1.05, "{name} {seed}: fit {fit}");
            let driver_ms = number(&roomy, "driver_ms");
            assert!(driver_ms <= naive_ms(&file), "{name} {seed}: {driver_ms} ms");
            assert!(number(&roomy, "driver_calls") > 0.0 && number(&roomy, "ns_per_op") > 0.0);
        }
    }
}

// The memory of a device that is a tenth larger than the live peak of a replay.
fn tenth_more(answer: &Value) -> String {
    let live = answer["live_peak_bytes"].as_u64().unwrap();
    format!("{}MiB", (live / 10 * 11) >> 20)
}

// Small blocks lose little to rounding.
#[test]
fn tiny_tensors_take_a_twentieth_more_than_their_bytes_at_most() {
    let machine = Machine::without_gpu();
    for (name, seed) in
        lowtide_testing::share(1..4).flat_map(|seed| [("tiny", seed), ("bits", seed)])
    {
        let file = trace(&machine, name, seed);
        let ratio = machine.run(&["replay", &file, "--json"]).json()["ratio"].as_f64().unwrap();
        assert!(ratio <= 1.05, "{name} {seed}: {ratio}");
    }
}

// On a device with memory to spare: more memory, less time for the driver, and never a quarter more than was live.
#[test]
fn a_roomy_device_saves_driver_time() {
    let machine = Machine::without_gpu();
    for name in ["random4", "random64", "ragged"] {
        let file = trace(&machine, name, 2);
        let play = |memory: &str| {
            let answer = machine.run(&["replay", &file, "--memory", memory, "--json"]).json();
            (answer["ratio"].as_f64().unwrap(), answer["driver_ms"].as_f64().unwrap())
        };
        let tight = play(&tenth_more(&machine.run(&["replay", &file, "--json"]).json()));
        let roomy = play("1TiB");
        assert!(roomy.0 >= tight.0 && roomy.0 < 1.25, "{name}: {roomy:?}, tight {tight:?}");
        assert!(roomy.1 < tight.1, "{name}: {roomy:?}, tight {tight:?}");
    }
}

#[test]
fn a_trace_runs_on_real_pages_too() {
    let machine = Machine::without_gpu();
    let file = machine.path("small.csv");
    fs::write(
        &file,
        "Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1,3000000,0\n0,1,allocate,0x2,100,0\n0,2,free,0x1,3000000,0\n",
    )
    .unwrap();
    let file = file.display().to_string();
    let answer = machine.run(&["replay", &file, "--device", "host", "--json"]).json();
    assert_eq!(answer["events"], 3);
    assert_eq!(answer["live_peak_bytes"], 3_000_100);
    assert_eq!(
        answer["physical_peak_bytes"],
        6 << 20,
        "two pages for the large block, one for the small"
    );
    assert!(answer["driver_calls"].as_u64().unwrap() > 0, "a real device counts its calls");
    assert_eq!(answer["driver_ms"], Value::Null, "and nobody times them");
    let text = machine.run(&["replay", &file, "--device", "host"]).out();
    assert!(text.contains("driver calls") && !text.contains("H200"), "{text}");
    let text = machine.run(&["replay", &file]).out();
    assert!(text.contains("physical peak") && text.contains("MiB"), "{text}");
    assert!(text.contains("H200") && !text.contains("distributed over"), "{text}");
}

#[test]
fn a_trace_is_read_from_standard_input() {
    let machine = Machine::without_gpu();
    let file = trace(&machine, "swap", 1);
    let of_file = machine.run(&["replay", &file, "--json"]).json();
    let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), &["replay", "-", "--json"]);
    let output = command.stdin(fs::File::open(&file).unwrap()).output().unwrap();
    let of_stdin = Finished { output }.json();
    for key in ["events", "live_peak_bytes", "physical_peak_bytes", "driver_calls"] {
        assert_eq!(of_file[key], of_stdin[key], "{key}");
    }
    let empty = machine.run(&["replay", "-"]);
    assert_eq!(empty.code(), 3);
    assert!(empty.err().contains("reading standard input: line 1: "), "{}", empty.err());
}

#[test]
fn sizes_are_accepted_in_mb_too() {
    let machine = Machine::without_gpu();
    let file = machine.path("block.csv");
    let header = "Thread,Time,Action,Pointer,Size,Stream\n";
    fs::write(&file, format!("{header}0,0,allocate,0x1,8388608,0\n")).unwrap();
    let file = file.display().to_string();
    let play = |memory: &str| machine.run(&["replay", &file, "--memory", memory]).code();
    assert_eq!([play("8MiB"), play("8MB"), play("9mb"), play("0.009 GB")], [0, 3, 0, 0]);
}

#[test]
fn blocks_can_be_dealt_over_streams_and_threads() {
    let machine = Machine::without_gpu();
    for name in ["random4", "random64", "swap", "ragged"] {
        let file = trace(&machine, name, 1);
        let plain = machine.run(&["replay", &file, "--json"]).json();
        assert_eq!((&plain["streams"], &plain["threads"]), (&json!(1), &json!(1)));
        for (streams, threads) in [("2", "1"), ("1", "2"), ("2", "2")] {
            let dealt = ["--streams", streams, "--threads", threads, "--json"];
            let answer = machine.run(&[&["replay", &file], &dealt[..]].concat()).json();
            let what = format!("{name} over {streams} streams and {threads} threads: {answer}");
            assert_eq!(answer["streams"].to_string(), streams, "{what}");
            assert_eq!(answer["threads"].to_string(), threads, "{what}");
            assert_eq!(answer["events"], plain["events"], "{what}");
            let ratio = answer["ratio"].as_f64().unwrap();
            // Where both are dealt, a thread may rest while its stream holds back what it freed.
            let most = if (streams, threads) == ("2", "2") { 2.5 } else { 1.5 };
            assert!((1.0..most).contains(&ratio), "{what}");
            if threads == "1" {
                assert_eq!(answer["live_peak_bytes"], plain["live_peak_bytes"], "{what}");
                let peak = |answer: &Value| answer["physical_peak_bytes"].as_u64().unwrap();
                assert!(peak(&answer) > peak(&plain), "streams hold blocks back: {what}");
            }
        }
    }
    let file = machine.path("swap-1.csv").display().to_string();
    let text = machine.run(&["replay", &file, "--streams", "2", "--threads", "3"]).out();
    assert!(text.contains("streams: 2, threads: 3"), "{text}");
}

// What streams hold back is waited for before a block is refused.
#[test]
fn streams_are_waited_for_where_memory_is_short() {
    let machine = Machine::without_gpu();
    let file = trace(&machine, "ragged", 1);
    let play = |memory: &str| {
        machine.run(&["replay", &file, "--streams", "2", "--memory", memory, "--json"]).json()
    };
    let (wide, tight) = (play("1TiB"), play("1900MiB"));
    let peak = |answer: &Value| answer["physical_peak_bytes"].as_u64().unwrap();
    assert!(peak(&wide) > 2000 << 20 && peak(&tight) <= 1900 << 20, "{wide} {tight}");
    assert_eq!(tight["events"], wide["events"]);
}

#[test]
fn a_recording_replays_to_the_same_numbers() {
    let machine = Machine::without_gpu();
    let file = trace(&machine, "ragged", 1);
    let copy = machine.path("copy.csv").display().to_string();
    for streams in ["1", "2"] {
        let play = |file: &str, more: &[&str]| {
            let arguments = ["replay", file, "--streams", streams, "--json"];
            machine.run(&[&arguments[..], more].concat()).json()
        };
        let (first, again) = (play(&file, &["--record", &copy]), play(&copy, &[]));
        for key in ["events", "live_peak_bytes", "physical_peak_bytes", "driver_calls"] {
            assert_eq!(first[key], again[key], "{key} with {streams} streams");
        }
    }
    // The order of threads is in their recording.
    let arguments = ["replay", &file, "--threads", "2", "--record", &copy, "--json"];
    let first = machine.run(&arguments).json();
    let again = machine.run(&["replay", &copy, "--json"]).json();
    assert_eq!(first["events"], again["events"]);
    let threads = fs::read_to_string(&copy).unwrap();
    let threads: BTreeSet<_> = threads.lines().skip(1).map(|line| line.split(',').next()).collect();
    assert_eq!(threads.len(), 2);
}

#[test]
fn what_is_wrong_is_told() {
    let machine = Machine::without_gpu();
    let write = |name: &str, text: &str| {
        fs::write(machine.path(name), text).unwrap();
        machine.path(name).display().to_string()
    };
    let header = "Thread,Time,Action,Pointer,Size,Stream\n";
    let cases = [
        (vec!["replay".to_owned(), "/nowhere/trace.csv".to_owned()], "opening /nowhere/trace.csv"),
        (vec!["replay".to_owned(), write("a.csv", "hello\n")], "not a trace"),
        (
            vec!["replay".to_owned(), write("b.csv", &format!("{header}0,0,free,0x1,5,0\n"))],
            "line 2: 0x1 is freed",
        ),
        (
            vec![
                "replay".to_owned(),
                write("c.csv", &format!("{header}0,0,allocate,0x1,8000000,0\n")),
                "--memory".to_owned(),
                "4MiB".to_owned(),
            ],
            "dry-run is out of memory",
        ),
        (
            vec![
                "replay".to_owned(),
                write("e.csv", &format!("{header}0,0,allocate,0x1,5,0\n")),
                "--record".to_owned(),
                "/nowhere/copy.csv".to_owned(),
            ],
            "writing /nowhere/copy.csv",
        ),
        (
            vec![
                "replay".to_owned(),
                write(
                    "d.csv",
                    &format!(
                        "{header}0,0,allocate,0x1,5,0\n0,1,allocate,0x2,{},0\n",
                        u64::MAX - 1024
                    ),
                ),
            ],
            "is larger than all memory of dry-run",
        ),
    ];
    for (arguments, expected) in cases {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let answer = machine.run(&arguments);
        assert_eq!(answer.code(), 3, "{arguments:?}: {}", answer.err());
        assert!(answer.err().contains(expected), "{arguments:?}: {}", answer.err());
    }
    for wrong in [
        &["--memory", "lots"][..],
        &["--streams", "0"],
        &["--streams", "65"],
        &["--threads", "0"],
        &["--threads", "65"],
        &["--threads", "many"],
        &["--record"],
        &["--fit", "--streams", "2"],
        &["--fit", "--threads", "2"],
    ] {
        let answer = machine.run(&[&["replay", "x"], wrong].concat());
        assert_eq!(answer.code(), 2, "{wrong:?}: {}", answer.err());
        assert!(answer.err().contains(wrong[0]), "{wrong:?}: {}", answer.err());
    }
}
