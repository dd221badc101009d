//! Memory that processes share by handles (`cuIpcGetMemHandle`), and what that does to sleep.

use std::fs;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::{Answer, Ask};
use lowtide_types::Bytes;

use crate::program::{LIMIT, Program, Route, World, agent, client, helper};
use crate::slept;

const BYTES: u64 = 6 << 20;

/// Two programs on one machine: the first has block 0, which the second has open as its block 0.
fn pair(world: &World) -> (Program, Program, String) {
    let mut exporter = world.start(Route::Dlsym);
    exporter.does(&format!("alloc 0 {BYTES}; write 0 5"));
    let handle = exporter.text("handle 0 0");
    let mut importer = world.start(Route::Address);
    importer.does("alloc 1 4194304; write 1 9");
    importer.does(&open(&handle));
    importer.does("seed 0 5; check 0");
    (exporter, importer, handle)
}

fn open(handle: &str) -> String {
    format!("open 0 {BYTES} 1 {handle}")
}

/// Expects that a program does not sleep, because of another one.
fn stays_awake_for(program: &Program, other: &str) {
    let Answer::Refused { reason } = program.ask(Ask::Sleep) else { panic!("it slept") };
    assert!(reason.contains(&format!("process {other} has 6.0 MiB open")), "{reason}");
    assert_eq!(program.status().obstacles.len(), 1);
}

/// Waits until nothing keeps a program from sleeping: its agent sees the end of another process a little later.
fn is_free(program: &Program) {
    let began = Instant::now();
    while !program.status().obstacles.is_empty() {
        assert!(began.elapsed() < LIMIT, "{:?}", program.status().obstacles);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn both_processes_see_what_either_writes() {
    let world = World::new();
    let (mut exporter, mut importer, _) = pair(&world);
    importer.does("write 0 6");
    exporter.does("seed 0 6; check 0; write 0 7");
    importer.does("seed 0 7; check 0; check 1; close 0");
    assert_eq!(world.said().matches("under `lowtide run` only").count(), 1, "{}", world.said());
}

#[test]
fn memory_stays_while_it_is_open_and_sleeps_after_the_last_close() {
    let world = World::new();
    let (mut exporter, mut importer, handle) = pair(&world);
    stays_awake_for(&exporter, &importer.pid());
    importer.does(&open(&handle));
    importer.does("close 0");
    stays_awake_for(&exporter, &importer.pid());
    importer.does("check 0; close 0");
    is_free(&exporter);
    slept(&exporter);
    // A handle that nobody has open keeps nothing awake, and an open wakes.
    importer.does(&open(&handle));
    assert!(!exporter.status().is_asleep);
    importer.does("check 0; close 0");
    exporter.does("check 0");
}

#[test]
fn memory_opens_whatever_becomes_of_the_runtime_folder() {
    for is_made_again in [false, true] {
        let world = World::new();
        let (exporter, mut importer, handle) = pair(&world);
        let run = world.folder().join("run/lowtide");
        fs::remove_dir_all(&run).expect("a folder");
        if is_made_again {
            fs::create_dir(&run).expect("a folder");
        }
        importer.does("close 0");
        importer.does(&open(&handle));
        importer.does("seed 0 5; check 0");
        // A command finds the program again a little later.
        let began = Instant::now();
        while !exporter.socket().exists() {
            assert!(began.elapsed() < LIMIT, "it does not listen");
            thread::sleep(Duration::from_millis(50));
        }
        stays_awake_for(&exporter, &importer.pid());
    }
}

#[test]
fn somebody_else_at_the_place_of_a_handle_is_asked_nothing() {
    let world = World::new();
    let (exporter, mut importer, handle) = pair(&world);
    importer.does("close 0");
    let number = std::process::id();
    let name = SocketAddr::from_abstract_name(format!("lowtide-{number:08x}")).expect("a name");
    let listener = UnixListener::bind_addr(&name).expect("a socket");
    let number = number.to_ne_bytes().map(|byte| format!("{byte:02x}")).concat();
    importer.does(&open(&format!("{}{number}", &handle[..120])));
    importer.does("seed 0 5; check 0");
    stays_awake_for(&exporter, &importer.pid());
    let (mut client, _) = listener.accept().expect("it connected");
    assert_eq!(client.read(&mut [0; 9]).expect("it has ended"), 0, "nothing was asked");
}

#[test]
fn memory_that_is_closed_in_a_capture_and_opened_again_stays() {
    let world = World::new();
    let (mut exporter, mut importer, handle) = pair(&world);
    importer.does("capture 1; close 0");
    importer.does(&open(&handle));
    importer.does("end-capture; seed 0 5; check 0");
    stays_awake_for(&exporter, &importer.pid());
    exporter.does("write 0 6");
    importer.does("seed 0 6; check 0; close 0");
    is_free(&exporter);
}

#[test]
fn one_that_has_memory_open_sleeps_and_keeps_it() {
    let world = World::new();
    let (mut exporter, mut importer, _) = pair(&world);
    slept(&importer);
    exporter.does("write 0 8");
    importer.does("seed 0 8; check 0; check 1");
    let staying = importer.status().staying;
    let of = format!("memory of process {} (cuIpcOpenMemHandle)", exporter.pid());
    assert_eq!((&staying[0].what, staying[0].bytes), (&of, Bytes(BYTES)), "{staying:?}");
    slept(&importer);
    importer.does("close 0");
    assert!(importer.status().staying.is_empty() && importer.status().is_asleep);
}

#[test]
fn the_bytes_outlive_a_free_and_the_process_that_had_them() {
    for dies in [false, true] {
        let world = World::new();
        let (mut exporter, mut importer, handle) = pair(&world);
        let before = importer.number("info");
        if dies {
            exporter.kill();
            // The socket of the other process ends a little later.
            importer.does("check 0");
            importer.does(&open(&handle));
            importer.does("close 0; check 0; close 0");
            assert_eq!(importer.text(&open(&handle)), "error 400");
            continue;
        }
        exporter.does("free 0");
        assert!(exporter.status().obstacles.is_empty());
        exporter.does("alloc 0 6291456; write 0 11");
        assert_ne!(exporter.text("handle 0 0"), handle);
        importer.does("check 0; close 0");
        assert_eq!(importer.text(&open(&handle)), "error 1");
        exporter.does("check 0");
        assert_eq!(importer.number("info"), before);
    }
}

#[test]
fn a_process_that_dies_closes_what_it_had_open_also_beside_its_child() {
    let world = World::new();
    let (mut exporter, mut importer, _) = pair(&world);
    let child = importer.text("leave-child");
    stays_awake_for(&exporter, &importer.pid());
    importer.kill();
    is_free(&exporter);
    slept(&exporter);
    exporter.does("check 0");
    signal("-9", &child);
}

/// Sends a signal to a process.
pub(crate) fn signal(name: &str, pid: &str) {
    let sent = Command::new("kill").args([name, pid]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{name} {pid}");
}

/// So long that nothing waits for its end in a test.
const PATIENT: (&str, &str) = ("LOWTIDE_WAKE_TIMEOUT", "1h");

#[test]
fn a_close_does_not_wait_for_a_process_that_is_stopped() {
    let world = World::new();
    let mut exporter = world.start(Route::Dlsym);
    exporter.does("alloc 0 6291456; write 0 5; alloc 1 6291456; write 1 6");
    let handles = [exporter.text("handle 0 0"), exporter.text("handle 1 0")];
    let mut importer = world.start_with(Route::Address, &[PATIENT]);
    importer.does(&open(&handles[0]));
    signal("-STOP", &exporter.pid());
    importer.does(&format!("open-later 2 {BYTES} 1 {}", handles[1]));
    importer.does("close 0");
    signal("-CONT", &exporter.pid());
    importer.does("opened 2; seed 2 6; check 2; close 2");
    is_free(&exporter);
    slept(&exporter);
}

#[test]
fn nobody_waits_for_a_process_that_has_died_beside_its_child() {
    for is_connected in [false, true] {
        let world = World::new();
        let mut exporter = world.start(Route::Dlsym);
        exporter.does("alloc 0 6291456; write 0 5; alloc 1 6291456");
        let handles = [exporter.text("handle 0 0"), exporter.text("handle 1 0")];
        let mut importer = world.start_with(Route::Address, &[PATIENT]);
        if is_connected {
            importer.does(&open(&handles[0]));
        }
        // It has the socket of the agent, and what is connected.
        let child = exporter.text("leave-child");
        exporter.kill();
        let answer = importer.text(&format!("open 1 {BYTES} 1 {}", handles[1]));
        assert_eq!(answer, "error 400", "{is_connected}");
        if is_connected {
            importer.does("seed 0 5; check 0; close 0");
        }
        signal("-9", &child);
    }
}

#[test]
fn connections_leave_the_program_its_files() {
    let world = World::new();
    let mut command = world.command("sh".as_ref());
    let client = client(Route::Dlsym).display().to_string();
    command.args(["-c", "ulimit -n 40; exec \"$0\" dlsym", &client]).env("LD_PRELOAD", agent());
    let mut exporter = world.spawn(&mut command);
    exporter.does("start; alloc 0 6291456; write 0 5");
    let handle = exporter.text("handle 0 0");
    let mut importers: Vec<Program> = (0..12).map(|_| world.start(Route::Dlsym)).collect();
    let opened = importers.iter_mut().map(|importer| importer.text(&open(&handle)));
    let opened: Vec<String> = opened.collect();
    let (some, others) = opened.iter().partition::<Vec<_>, _>(|answer| *answer == "ok");
    assert!(some.len() >= 3 && others.len() >= 3, "{opened:?}");
    assert!(others.iter().all(|answer| *answer == "error 400"), "{opened:?}");
    assert!(world.said().contains("for its limit of files"), "{}", world.said());
    exporter.does("files 8; check 0");
    // One that has closed all it had open takes no file.
    for (importer, answer) in importers.iter_mut().zip(&opened) {
        if answer == "ok" {
            importer.does("close 0");
        }
    }
    is_free(&exporter);
    for importer in &mut importers {
        for _ in 0..20 {
            importer.does(&open(&handle));
            importer.does("seed 0 5; check 0; close 0");
        }
    }
    exporter.does("files 18");
}

#[test]
fn wrong_use_gets_the_codes_of_the_driver() {
    let world = World::new();
    let (mut exporter, mut importer, handle) = pair(&world);
    for offset in [1, 4096, BYTES - 1] {
        assert_eq!(exporter.text(&format!("handle 0 {offset}")), handle);
    }
    assert_eq!(exporter.text(&open(&handle)), "error 201", "in the process that has it");
    assert_eq!(exporter.text("close 0"), "error 1", "what is its own");
    assert_eq!(importer.text("handle 0 0"), "error 1", "of memory that is open");
    assert_eq!(importer.text("free 0"), "error 1");
    assert_eq!(importer.text("close 0 4096"), "error 1");
    for line in ["unmap 0", "grant 0 3", "unreserve 0"] {
        assert_eq!(importer.text(line), "error 1", "{line}");
    }
    assert_eq!(importer.text(&format!("open 2 {BYTES} 0 {handle}")), "error 1", "without its flag");
    assert_eq!(importer.number("range 0 77"), 1);
    assert_eq!(importer.number("attribute 0 10"), 0, "shares again");
    assert_eq!(importer.number("attribute 1 10"), 1);
    importer.does("second 0");
    assert_eq!(
        importer.text(&format!("open 2 {BYTES} 1 {handle}")),
        "error 400",
        "in two contexts"
    );
    importer.does("close 0");
    assert_eq!(importer.text("close 0"), "error 1", "twice");
    importer.does("no-second");
}

#[test]
fn few_files_are_enough_for_many_chunks() {
    let world = World::new();
    let mut exporter = world.start_with(Route::Dlsym, &[("LOWTIDE_DOUBLE", "total=16GiB")]);
    // Chunks are of 512 MiB at most.
    exporter.does("alloc 0 5368709120; alloc 1 2097152");
    let handle = exporter.text("handle 0 0");
    let mut command = world.command("sh".as_ref());
    let client = client(Route::Dlsym).display().to_string();
    command.args(["-c", "ulimit -n 28; exec \"$0\" dlsym", &client]).env("LD_PRELOAD", agent());
    let mut importer = world.spawn(&mut command);
    importer.does("start");
    importer.does(&format!("open 0 5368709120 1 {handle}"));
    assert_eq!(importer.number("range 0 5368709119"), 1);
    importer.does("close 0");
}

#[test]
fn a_capture_survives_an_open_and_a_close() {
    let world = World::new();
    let (_exporter, mut importer, handle) = pair(&world);
    importer.does("capture 1; close 0");
    importer.does(&open(&handle));
    importer.does("check 0; end-capture; replay 1; close 0");
}

#[test]
fn a_process_with_memory_of_another_one_sleeps_where_it_would_be_suspended() {
    let world = World::new();
    let (exporter, _, handle) = pair(&world);
    let settings = format!("idle_ms=3000,locks={}", world.folder().display());
    let helper = helper();
    let variables = [
        ("LOWTIDE_HELPER_PROGRAM", helper.to_str().expect("a path of letters")),
        ("LOWTIDE_HELPER", settings.as_str()),
    ];
    let mut importer = world.start_with(Route::Dlsym, &variables);
    importer.does("alloc 1 4194304; write 1 9");
    importer.does(&open(&handle));
    let Answer::Refused { reason } = importer.ask(Ask::Suspend) else { panic!("it would be lost") };
    let why = format!("stays asleep: memory of process {} (cuIpc", exporter.pid());
    assert!(reason.contains(&why), "{reason}");
    assert!(importer.status().is_asleep && !importer.status().is_suspended);
    importer.does("seed 0 5; check 0; check 1; close 0");
    let answer = importer.ask(Ask::Suspend);
    assert!(matches!(answer, Answer::Suspended { .. }), "{answer:?}");
    importer.does("check 1");
}

#[test]
fn memory_that_a_program_gives_away_by_descriptors_is_the_same_in_both_after_sleeps() {
    let world = World::new();
    let (mut exporter, mut importer) = (world.start(Route::Dlsym), world.start(Route::Dlsym));
    importer.does("alloc 9 4194304; write 9 3");
    for block in 0..4 {
        exporter.makes_shared(block, 2 << 20);
        exporter.does(&format!("write {block} {block}"));
    }
    slept(&exporter);
    exporter.does("check 0");
    for block in 0..4 {
        let descriptor = exporter.number(&format!("export {block}"));
        importer.does(&format!("import {block} {} {descriptor}", exporter.pid()));
        importer.does(&format!("reserve {block} 2097152; map {block} {block}; grant {block} 3"));
        importer.does(&format!("seed {block} {block}; check {block}"));
    }
    for turn in 1..4 {
        for block in 0..4 {
            let seed = 10 * turn + block;
            exporter.does(&format!("write {block} {seed}"));
            importer.does(&format!("seed {block} {seed}; check {block}"));
            importer.does(&format!("write {block} {}", seed + 100));
            exporter.does(&format!("seed {block} {}; check {block}", seed + 100));
            assert!(matches!(exporter.ask(Ask::Sleep), Answer::Refused { .. }));
        }
        slept(&importer);
        importer.does("check 9");
    }
}
