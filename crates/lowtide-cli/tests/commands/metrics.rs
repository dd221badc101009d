//! `lowtide metrics`, as Prometheus and a person meet it.
#![allow(clippy::float_cmp, reason = "counters and bytes are whole numbers")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::agents::program::{Program, World};
use crate::agents::{lowtide, run};
use crate::program::Machine;

/// The samples of a text, by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    };
    lines.map(sample).collect()
}

fn printed(world: &World) -> BTreeMap<String, f64> {
    let output = lowtide(world, &["metrics"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    samples(std::str::from_utf8(&output.stdout).unwrap())
}

fn json(world: &World, arguments: &[&str]) -> Value {
    let output = lowtide(world, arguments).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{arguments:?}: {error}: {}", String::from_utf8_lossy(&output.stderr))
    })
}

/// What receipts and answers said, summed.
#[derive(Default)]
struct Told {
    verdicts: BTreeMap<String, f64>,
    freed: f64,
    releases_s: f64,
    sleeps_s: Vec<f64>,
    wakes_s: Vec<f64>,
    woken: f64,
}

impl Told {
    fn does(&mut self, world: &World, verb: &[&str], program: &Program) {
        let answer = json(world, &[verb, &[&program.pid(), "--json"]].concat());
        assert!(answer["at_s"].as_f64() > Some(1.7e9), "{answer}");
        for receipt in answer["receipts"].as_array().into_iter().flatten() {
            *self.verdicts.entry(receipt["verdict"].as_str().unwrap().to_owned()).or_default() +=
                1.0;
            self.freed += receipt["freed_bytes"].as_f64().unwrap_or(0.0).max(0.0);
            self.releases_s += receipt["took_s"].as_f64().unwrap();
            for rung in receipt["rungs"].as_array().unwrap() {
                if rung["rung"] == "sleep" && rung["outcome"] == "done" {
                    self.sleeps_s.push(rung["took_s"].as_f64().unwrap());
                }
            }
        }
        if answer["answer"] == "woken" {
            self.wakes_s.push(answer["took_s"].as_f64().unwrap());
            self.woken += answer["bytes"].as_f64().unwrap();
        }
    }
}

#[test]
fn the_counters_equal_the_receipts_also_of_programs_that_were_killed() {
    let world = World::new();
    let mut told = Told::default();
    let (mut first, mut second) = (run(&world, &[]), run(&world, &[]));
    first.does("start; alloc 0 8388608; write 0 5");
    second.does("start; alloc 0 4194304; write 0 6");
    for _ in 0..3 {
        told.does(&world, &["sleep"], &first);
        told.does(&world, &["wake"], &first);
    }
    told.does(&world, &["release", "--to", "900GiB"], &second);
    told.does(&world, &["sleep"], &first);
    first.kill();
    told.does(&world, &["sleep"], &second);
    told.does(&world, &["wake"], &second);
    let close = |name: &str, sum: f64, counts: f64| {
        // Each duration is rounded to nanoseconds.
        let error = 1e-9 * counts + 1e-12;
        for _ in 0..2 {
            let found = printed(&world)[name];
            assert!((found - sum).abs() < error, "{name}: {found} and {sum}");
        }
    };
    let text = printed(&world);
    let sum: f64 = told.verdicts.values().sum();
    assert!(
        sum >= 6.0 && told.sleeps_s.len() == 5 && told.wakes_s.len() == 4,
        "{:?}",
        told.verdicts
    );
    for (name, value) in text.iter().filter(|(name, _)| name.starts_with("lowtide_releases_total"))
    {
        let verdict = name.split('"').nth(1).unwrap();
        assert_eq!(*value, told.verdicts.get(verdict).copied().unwrap_or(0.0), "{name}");
    }
    assert_eq!(text["lowtide_freed_bytes_total"], told.freed);
    assert_eq!(text["lowtide_woken_bytes_total"], told.woken);
    assert_eq!(text["lowtide_sleep_duration_seconds_count"], 5.0);
    assert_eq!(text["lowtide_wake_duration_seconds_count"], 4.0);
    assert_eq!(text["lowtide_wake_duration_seconds_bucket{le=\"+Inf\"}"], 4.0);
    close("lowtide_sleep_duration_seconds_sum", told.sleeps_s.iter().sum(), 5.0);
    close("lowtide_wake_duration_seconds_sum", told.wakes_s.iter().sum(), 4.0);
    close("lowtide_release_duration_seconds_sum", told.releases_s, 7.0);
    second.does("check 0");
}

#[test]
fn the_kinds_of_memory_add_up_to_the_drivers_number_and_no_label_has_a_command() {
    let world = World::new();
    let mut program = run(&world, &[]);
    program.does("start; alloc 0 8388608; write 0 5");
    let output = lowtide(&world, &["metrics"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("client"), "{text}");
    let ps = json(&world, &["ps", "--json"]);
    let device = &ps["devices"][0];
    let uuid = device["uuid"].as_str().unwrap();
    let all = samples(&text);
    let of = |name: &str| {
        all[&format!("lowtide_device_memory_{name}bytes{{device=\"cuda:0\",uuid=\"{uuid}\"}}")]
    };
    assert_eq!(of("total_"), device["total_bytes"].as_f64().unwrap());
    let kind = |kind: &str| {
        all[&format!(
            "lowtide_device_memory_bytes{{device=\"cuda:0\",uuid=\"{uuid}\",kind=\"{kind}\"}}"
        )]
    };
    let kinds = ["live", "cached", "context", "others", "reserved", "unknown"];
    let sum: f64 = kinds.into_iter().map(kind).sum();
    assert_eq!(sum, of("total_") - of("free_"));
    assert_eq!((kind("live"), kind("others")), (8_388_608.0, 0.0), "{text}");
    assert_eq!(all["lowtide_program_state{state=\"awake\"}"], 1.0);
    assert_eq!(all["lowtide_problems"], 0.0);
}

/// A server that ends when it is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(machine: &Machine) -> Server {
        let mut command = machine.command(crate::PROGRAM, &["metrics", "--listen", "127.0.0.1:0"]);
        let runtime = machine.path("run");
        std::fs::create_dir_all(&runtime).unwrap();
        command.env("XDG_RUNTIME_DIR", runtime);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Server { child, address }
    }

    fn says(&self, asked: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{asked}\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn it_is_served_over_http_and_a_silent_client_keeps_nobody_waiting() {
    let machine = Machine::without_gpu();
    let server = Server::start(&machine);
    let _silent: Vec<_> = (0..5).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    let text = server.says("GET /metrics HTTP/1.1");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let all = samples(body);
    assert_eq!(all["lowtide_releases_total{verdict=\"released\"}"], 0.0);
    // There is no GPU, which is one line in `doctor`.
    assert_eq!(all["lowtide_problems"], 1.0);
    assert!(!body.contains("lowtide_device_memory_bytes{"), "{body}");
    assert!(server.says("GET /other HTTP/1.1").starts_with("HTTP/1.1 404 "));
    assert!(server.says("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405 "));
    let long = server.says(&format!("GET /{} HTTP/1.1", "x".repeat(100)));
    assert!(long.starts_with("HTTP/1.1 404 "), "{long}");
}

#[test]
fn clients_that_do_not_end_their_question_shut_nobody_out() {
    let machine = Machine::without_gpu();
    let server = Server::start(&machine);
    let begin = || {
        let mut client = TcpStream::connect(&server.address).unwrap();
        client.write_all(b"G").unwrap();
        client
    };
    let _slow: Vec<_> = (0..100).map(|_| begin()).collect();
    assert!(server.says("GET /metrics HTTP/1.1").starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn another_address_than_loopback_needs_a_word_more() {
    let machine = Machine::without_gpu();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9835"] {
        let finished = machine.run(&["metrics", "--listen", address]);
        assert_eq!(finished.code(), 3, "{address}");
        assert!(finished.err().contains("--public"), "{}", finished.err());
    }
}

#[test]
fn a_text_file_has_the_same_numbers() {
    let world = World::new();
    let mut program = run(&world, &[]);
    program.does("start; alloc 0 8388608; write 0 5");
    json(&world, &["sleep", &program.pid(), "--json"]);
    let path = world.folder().join("lowtide.prom");
    let arguments = ["metrics", "--textfile", &path.display().to_string()];
    assert_eq!(lowtide(&world, &arguments).output().unwrap().status.code(), Some(0));
    let written = samples(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(written, printed(&world));
    assert_eq!(written["lowtide_program_state{state=\"asleep\"}"], 1.0);
}
