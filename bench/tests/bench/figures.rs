//! The answers of the benchmarks have figures that can be true, and units.

use std::fs;

use crate::program::Machine;
use lowtide_device::{Bytes, Device};
use lowtide_pool::trace;
use lowtide_pool::{Policy, replay};
use serde_json::{Value, json};

fn number(answer: &Value, key: &str) -> f64 {
    answer[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {answer}"))
}

#[test]
fn alloc_measures_hits_and_says_what_the_work_was() {
    let machine = Machine::without_gpu();
    let (work, record) = (machine.path("work.csv"), machine.path("record.csv"));
    let (work, record) = (work.display().to_string(), record.display().to_string());
    let small = ["alloc", "--blocks", "2000", "--rounds", "2", "--no-growth"];
    let files = ["--work", &work, "--record", &record, "--json"];
    let answer = machine.run(&[&small[..], &files].concat()).json();
    assert_eq!((&answer["device"], &answer["blocks"]), (&json!("dry-run"), &json!(2000)));
    assert_eq!((&answer["rounds"], &answer["seed"]), (&json!(2), &json!(1)));
    assert!(number(&answer, "same_ns") > 0.0 && number(&answer, "other_ns") > 0.0, "{answer}");
    assert_eq!(answer["same_driver_calls"], 0, "a hit makes none");
    assert_eq!(answer["growth"], json!([]), "not asked for");

    let work = fs::read_to_string(work).unwrap();
    let rows = work.lines().map(|line| line.split_once(',').unwrap());
    let (sizes, mut order): (Vec<u64>, Vec<usize>) = rows
        .map(|(size, next)| (size.parse::<u64>().unwrap(), next.parse::<usize>().unwrap()))
        .unzip();
    assert_eq!(sizes.iter().sum::<u64>(), answer["live_bytes"].as_u64().unwrap());
    assert!(!order.is_sorted(), "in another order than they were allocated");
    order.sort_unstable();
    assert_eq!(order, (0..2000).collect::<Vec<_>>(), "each block once");

    // All blocks, then two rounds of each kind: a free and an allocation for each.
    let recorded = trace::read(fs::read(record).unwrap().as_slice()).unwrap();
    assert_eq!(recorded.len(), 2000 + 2 * 2 * 2 * 2000);
    let device = Device::dry_run(Bytes::gib(1 << 16)).0;
    let all = replay::Options::default();
    let replayed =
        replay::replay(&recorded, &device, None, Policy::default(), all, &|_| ()).unwrap();
    assert!(Some(replayed.live_peak_bytes.0) >= answer["live_bytes"].as_u64());

    let text = machine.run(&small).out();
    assert!(text.contains(" MiB") && text.contains(" ns per pair"), "{text}");
    assert!(text.contains("0 driver calls in 2 rounds"), "{text}");
}

#[test]
fn alloc_makes_sizes_fit_on_a_real_device() {
    let machine = Machine::with_double("total=1GiB");
    let small = ["alloc", "--blocks", "2000", "--rounds", "1", "--no-growth", "--json"];
    let answer = machine.run(&[&small[..], &["--device", "cuda:0"]].concat()).json();
    assert_eq!((&answer["device"], &answer["same_driver_calls"]), (&json!("cuda:0"), &json!(0)));
    let (live, divided_by) = (number(&answer, "live_bytes"), number(&answer, "sizes_divided_by"));
    assert!(live > 0.0 && live < f64::from(1 << 30) && divided_by > 1.0, "{answer}");
}

// With a fifth of the device free, other sizes hardly ever call the driver. On a device that is nearly full they do.
#[test]
fn alloc_measures_with_as_much_of_the_device_free_as_it_is_told() {
    let machine = Machine::without_gpu();
    let measure = |more: &[&str]| {
        let some = ["alloc", "--blocks", "4000", "--rounds", "9", "--no-growth", "--json"];
        machine.run(&[&some[..], more].concat()).json()
    };
    let (roomy, tight) = (measure(&["--free", "20"]), measure(&["--free", "4"]));
    let bytes = |answer: &Value, key: &str| number(answer, key) / f64::from(1 << 20);
    let total = bytes(&roomy, "live_bytes") / 0.8;
    let free = bytes(&roomy, "free_bytes") / total;
    assert!((0.195..=0.2).contains(&free), "{free} of {roomy}");
    assert!(bytes(&roomy, "physical_peak_bytes") < 0.96 * total, "a twentieth stays free: {roomy}");
    assert!(number(&roomy, "other_driver_calls") < 0.25 * 9.0 * 4000.0, "{roomy}");
    let calls = |answer: &Value| number(answer, "other_driver_calls");
    assert!(calls(&tight) > 4.0 * calls(&roomy), "{tight} {roomy}");

    let machine = Machine::with_double("total=1GiB");
    let small = ["alloc", "--blocks", "500", "--rounds", "1", "--no-growth", "--json"];
    let answer = machine.run(&[&small[..], &["--device", "cuda:0", "--free", "30"]].concat());
    let free = number(&answer.json(), "free_bytes") / f64::from(1 << 30);
    assert!((0.29..=0.31).contains(&free), "{free}");
}

#[test]
fn sleep_measures_beside_the_plain_copy() {
    let machine = Machine::without_gpu();
    let small = ["sleep", "--device", "host", "--divide", "256", "--turns", "1"];
    let answer = machine.run(&[&small[..], &["--json"]].concat()).json();
    assert_eq!((&answer["device"], &answer["right"]), (&json!("host"), &json!(true)));
    assert_eq!((&answer["kept_blocks"], &answer["discarded_blocks"]), (&json!(195), &json!(32)));
    assert_eq!((&answer["processes"], &answer["turns"]), (&json!(1), &json!(1)));
    assert_eq!((&answer["context_bytes"], &answer["asleep_bytes"]), (&json!(0), &json!(0)));
    let (kept, backup) = (number(&answer, "kept_bytes"), number(&answer, "backup_bytes"));
    assert!(kept > 0.0 && backup >= kept, "{answer}");
    assert_eq!(answer["discarded_bytes"], 80 << 20);
    for key in [
        "raw_out_s",
        "raw_in_s",
        "first_sleep_s",
        "unchanged_sleep_s",
        "changed_sleep_s",
        "wake_s",
        "wake_at_once_s",
        "changed_ratio",
        "wake_ratio",
    ] {
        assert!(number(&answer, key) > 0.0, "{key}: {answer}");
    }
    assert_eq!(answer["first_sleeps_s"], json!([answer["first_sleep_s"]]));
    let pool = &answer["asleep"];
    assert_eq!((&pool["physical_bytes"], &pool["blocks"]), (&json!(0), &json!(195 + 32)));
    assert_eq!(pool["asleep_bytes"], pool["live_bytes"]);
    let text = machine.run(&small).out();
    for expected in [
        "kept",
        "plain copy out ",
        " MiB in 195 blocks",
        " ms  every page changed",
        "divided by 256",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(text.contains("right after every wake"), "{text}");
}

#[test]
fn sleep_takes_the_first_gpu_where_none_is_named() {
    let machine = Machine::with_double("devices=2");
    let small = ["sleep", "--divide", "1024", "--turns", "1", "--processes", "2"];
    let answer = machine.run(&[&small[..], &["--json"]].concat()).json();
    assert_eq!((&answer["device"], &answer["right"]), (&json!("cuda:0"), &json!(true)));
    assert_eq!(answer["first_sleeps_s"].as_array().unwrap().len(), 2);
    assert_eq!(answer["context_bytes"], 64 << 20, "what a context costs on this double");
    assert!(number(&answer, "asleep_bytes") >= number(&answer, "context_bytes"), "{answer}");
}

#[test]
fn what_cannot_be_measured_is_told() {
    let machine = Machine::without_gpu();
    for more in [&[][..], &["--divide", "256"]] {
        let arguments = [&["sleep", "--device", "cuda:0"], more].concat();
        let answer = machine.run(&arguments);
        assert_eq!(answer.code(), 3, "{}", answer.err());
        assert!(
            answer.err().contains("no GPU can be used: the CUDA driver is not installed"),
            "{}",
            answer.err()
        );
        assert_eq!(answer.out(), "");
    }
    let answer = machine.run(&["alloc", "--device", "cuda:0"]);
    assert_eq!(answer.code(), 3);
    let answer = machine.run(&["alloc", "--work", "/nowhere/work.csv", "--no-growth"]);
    assert_eq!(answer.code(), 3);
    assert!(answer.err().contains("writing /nowhere/work.csv"), "{}", answer.err());
    // The device is there, and the processes fail.
    let machine = Machine::with_double("oom_at=1MiB");
    let answer = machine.run(&["sleep", "--divide", "256", "--turns", "1"]);
    assert_eq!(answer.code(), 3, "{}", answer.err());
    assert!(answer.err().contains("out of memory"), "{}", answer.err());
    assert!(answer.err().contains("a --divide larger than 256"), "{}", answer.err());
    // Too many blocks for the device, however small.
    let machine = Machine::with_double("total=80MiB,reserved=0MiB");
    let answer = machine.run(&["alloc", "--device", "cuda:0", "--blocks", "100000"]);
    assert_eq!(answer.code(), 3, "{}", answer.err());
    assert!(answer.err().contains("try fewer --blocks"), "{}", answer.err());
}

#[test]
fn wrong_usage_ends_with_two() {
    let machine = Machine::without_gpu();
    for wrong in [
        &["alloc", "--blocks", "1"][..],
        &["alloc", "--rounds", "0"],
        &["alloc", "--free", "0"],
        &["alloc", "--free", "100"],
        &["sleep", "--turns", "0"],
        &["sleep", "--divide", "0"],
        &["sleep", "--processes", "101"],
        &["sleep", "--device", "TPU"],
    ] {
        let answer = machine.run(wrong);
        assert_eq!(answer.code(), 2, "{wrong:?}: {}", answer.err());
        assert!(answer.err().contains(wrong[1]), "{wrong:?}: {}", answer.err());
    }
}

#[test]
fn every_benchmark_has_completions_and_a_man_page() {
    let machine = Machine::without_gpu();
    let to = machine.path("prefix");
    let ended = machine.run(&["generate", to.to_str().expect("text")]);
    assert_eq!(ended.code(), 0, "{}", ended.err());
    let read = |path: &str| {
        fs::read_to_string(to.join("share").join(path))
            .unwrap_or_else(|why| panic!("{path}: {why}"))
    };
    for shell in [
        "bash-completion/completions/lowtide-bench",
        "zsh/site-functions/_lowtide-bench",
        "fish/vendor_completions.d/lowtide-bench.fish",
    ] {
        let script = read(shell);
        assert!(script.contains("turns") && script.contains("no-growth"), "{script}");
    }
    assert!(read("man/man1/lowtide-bench.1").contains("lowtide\\-bench\\-sleep(1)"));
    assert!(read("man/man1/lowtide-bench-sleep.1").contains("\\-\\-turns"));
    assert!(!to.join("share/man/man1/lowtide-bench-sleep-child.1").exists(), "it is hidden");
}

#[test]
fn text_fits_the_columns() {
    let machine = Machine::without_gpu();
    for columns in [60, 80, 120] {
        let small = ["alloc", "--blocks", "100", "--rounds", "1", "--no-growth"];
        let mut command = machine.command(crate::PROGRAM, &small);
        let output = command.env("COLUMNS", columns.to_string()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
    }
}
