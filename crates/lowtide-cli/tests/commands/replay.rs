//! `lowtide replay`: the four traces within their bars, and what bad input gets.

use std::fs;
use std::process::Command;

use crate::program::Machine;
use serde_json::Value;

/// A trace by `bench/traces.py`, as a file of this machine.
fn trace(machine: &Machine, name: &str, seed: u32) -> String {
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

// Peak over live peak of PyTorch's expandable segments on the same traces, on an H200.
#[test]
fn no_trace_takes_more_than_expandable_segments_nor_more_than_a_twentieth() {
    let machine = Machine::without_gpu();
    for (name, peer) in [("random4", 1.05), ("random64", 1.07), ("swap", 1.00), ("ragged", 1.09)] {
        for seed in 1..=3 {
            let file = trace(&machine, name, seed);
            let answer = machine.lowtide(&["replay", &file, "--fit", "--json"]).json();
            let number = |key: &str| answer[key].as_f64().unwrap();
            // The peers' figures have two decimals.
            assert!(number("ratio") < peer + 0.005, "{name} {seed}: ratio {}", number("ratio"));
            assert!(number("fit_ratio") <= 1.05, "{name} {seed}: fit {}", number("fit_ratio"));
            assert!(
                number("driver_ms") <= naive_ms(&file),
                "{name} {seed}: {} ms",
                number("driver_ms")
            );
            assert!(number("driver_calls") > 0.0 && number("ns_per_op") > 0.0);
        }
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
    let answer = machine.lowtide(&["replay", &file, "--device", "host", "--json"]).json();
    assert_eq!(answer["events"], 3);
    assert_eq!(answer["live_peak_bytes"], 3_000_100);
    assert_eq!(
        answer["physical_peak_bytes"],
        6 << 20,
        "two pages for the large block, one for the small"
    );
    assert_eq!(answer["driver_ms"], Value::Null, "nobody counts a real device's calls");
    let text = machine.lowtide(&["replay", &file]).out();
    assert!(text.contains("physical peak") && text.contains("MiB"), "{text}");
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
        (vec!["replay".to_owned(), write("a.csv", "hello\n")], "begins with the columns"),
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
            "books is out of memory",
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
            "no addresses left",
        ),
    ];
    for (arguments, expected) in cases {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let answer = machine.lowtide(&arguments);
        assert_eq!(answer.code(), 3, "{arguments:?}: {}", answer.err());
        assert!(answer.err().contains(expected), "{arguments:?}: {}", answer.err());
    }
    assert_eq!(machine.lowtide(&["replay", "x", "--memory", "lots"]).code(), 2);
}
