//! The agent in programs that nobody changed, on the driver double.
//!
//! Each test starts a C program (`client.c`) with the agent preloaded and the double in the driver's
//! place, tells it what to do, and asks the agent over its socket.

mod crowd;
mod ends;
mod families;
mod faults;
mod frames;
mod idle;
mod library;
mod limits;
mod misuse;
mod model;
mod obstacles;
mod program;
mod python;
mod room;
mod sharing;
mod side_by_side;
mod soak;
mod suspend;
mod turns;
mod virtual_memory;

use std::thread;
use std::time::Instant;

use lowtide_proto::{Answer, Ask};
use lowtide_types::{Bytes, LedgerKind, Verdict};
use program::{LIMIT, Program, Route, World};

const MIB: u64 = 1 << 20;
const ROUTES: [Route; 3] = [Route::Dlsym, Route::Address, Route::Linked];

fn sleep(program: &Program) -> Answer {
    program.ask(Ask::Sleep)
}

fn slept(program: &Program) {
    let Answer::Slept { receipts } = sleep(program) else { panic!("{:?}", sleep(program)) };
    for receipt in &receipts {
        assert_eq!(receipt.verdict, Verdict::Released, "{receipt}");
    }
}

#[test]
fn a_program_sleeps_and_wakes_at_its_next_touch_by_every_route() {
    for route in ROUTES {
        let mut program = Program::start(route);
        let bare = program.number("info");
        program.does("alloc 0 8388608; alloc 1 3000000; write 0 5; write 1 6");
        let status = program.status();
        assert_eq!(status.contexts.len(), 1, "{route:?}: {status:?}");
        assert_eq!(status.contexts[0].blocks, 2, "{route:?}");
        assert_eq!(status.contexts[0].bytes, Bytes(8_388_608 + 3_000_000), "{route:?}");
        assert_eq!(program.number("info") - bare, 12 * MIB, "{route:?}");

        slept(&program);
        assert!(program.status().is_asleep, "{route:?}");
        let asleep = program.number("info") - bare;
        assert!(asleep <= 4 * MIB, "{route:?}: {asleep} bytes are left");
        assert!(program.status().is_asleep, "{route:?}: a question does not wake");

        program.does("check 0; check 1");
        assert!(!program.status().is_asleep, "{route:?}");
    }
}

#[test]
fn a_socket_wakes_it_too_and_a_second_wake_does_nothing() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 9");
    slept(&program);
    let Answer::Woken(woken) = program.ask(Ask::Wake) else { panic!() };
    assert_eq!(woken.bytes, Bytes::mib(4));
    let Answer::Woken(woken) = program.ask(Ask::Wake) else { panic!() };
    assert_eq!(woken.bytes, Bytes::ZERO);
    program.does("check 0");
}

#[test]
fn the_socket_of_a_killed_program_goes_when_the_next_one_starts() {
    let world = World::new();
    let first = world.start(Route::Dlsym);
    let socket = first.socket();
    first.kill();
    assert!(socket.exists());
    let second = world.start(Route::Dlsym);
    assert!(!socket.exists() && second.socket().exists());
}

#[test]
fn a_sleep_of_a_sleeping_process_does_nothing_and_is_no_failure() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304");
    slept(&program);
    assert_eq!(sleep(&program), Answer::Asleep);
    assert_eq!(program.ask(Ask::Release { to: None }), Answer::Asleep);
}

#[test]
fn a_release_takes_what_its_target_needs() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 8388608; write 0 9");
    let released = |program: &Program, to: Option<Bytes>| {
        let answer = program.ask(Ask::Release { to });
        let Answer::Released { receipts } = answer else { panic!("{answer:?}") };
        assert_eq!(receipts.len(), 1);
        (receipts[0].verdict, program.status().is_asleep)
    };
    let enough = Some(Bytes::mib(1000));
    assert_eq!(released(&program, enough), (Verdict::Released, false), "it was met already");
    program.does("check 0");
    assert_eq!(released(&program, None), (Verdict::Released, true));
    assert_eq!(released(&program, enough), (Verdict::Released, true), "it is met asleep");
    program.does("check 0");
    // The context alone is larger.
    assert_eq!(released(&program, Some(Bytes(1))), (Verdict::Partial, true));
    program.does("check 0");
}

#[test]
fn status_counts_what_stays_and_its_ledger_adds_up() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 8388608; alloc 1 65536; alloc 2 65536");
    // Compressed memory is not made anew.
    program.does("create 3 4194304 0 1");
    let staying = |program: &Program| -> Vec<(u64, Bytes)> {
        program.status().staying.iter().map(|one| (one.count, one.bytes)).collect()
    };
    assert_eq!(staying(&program), [(2, Bytes(2 * 65536)), (1, Bytes::mib(4))]);
    let ledgers = program.status().ledgers;
    assert_eq!(ledgers.len(), 1);
    let live = ledgers[0].of(LedgerKind::Live);
    assert_eq!(live, Bytes(Bytes::mib(12).0 + 2 * 65536), "{}", ledgers[0]);
    assert_eq!(ledgers[0].sum(), i64::try_from(ledgers[0].driver_bytes.0).unwrap());
    program.does("free 1; uncreate 3");
    assert_eq!(staying(&program), [(1, Bytes(65536))]);
    program.does("release");
    assert!(staying(&program).is_empty(), "it went with its context");
}

#[test]
fn what_the_drivers_pools_keep_and_nobody_uses_goes_before_a_sleep() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 3");
    slept(&program);
    let asleep = program.number("info");
    program.does("check 0; alloc-async 1 8388608; alloc-async 2 2097152; write 2 4; free-async 1");
    let staying = program.status().staying;
    assert_eq!((staying[0].count, staying[0].bytes), (1, Bytes::mib(2)), "{staying:?}");
    slept(&program);
    assert_eq!(program.number("info") - asleep, 2 * MIB, "what is in use stays");
    program.does("check 2; check 0");
}

#[test]
fn freed_memory_is_given_back_at_once_awake_and_asleep() {
    let mut program = Program::start(Route::Dlsym);
    let bare = program.number("info");
    program.does("alloc 0 8388608; alloc 1 4194304; free 0");
    assert_eq!(program.number("info") - bare, 4 * MIB);
    program.does("write 1 3");
    slept(&program);
    program.does("free 1");
    assert!(program.status().is_asleep, "a free does not wake");
    assert_eq!(program.status().contexts[0].blocks, 0);
    program.does("alloc 0 2097152; write 0 4; check 0");
}

#[test]
fn small_memory_stays_with_the_driver() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 65536; write 0 2");
    assert!(program.status().contexts.is_empty());
    let Answer::Slept { receipts } = sleep(&program) else { panic!() };
    assert!(receipts.is_empty());
    program.does("check 0; free 0");
}

#[test]
fn a_size_that_no_device_has_is_out_of_memory() {
    let mut program = Program::start(Route::Dlsym);
    for bytes in [u64::MAX, u64::MAX - (1 << 21), 1 << 62, 1 << 47, 1 << 40] {
        assert_eq!(program.text(&format!("alloc 0 {bytes}")), "error 2", "{bytes}");
    }
    assert!(program.status().obstacles.is_empty(), "{:?}", program.status());
    program.does("alloc 0 4194304");
    slept(&program);
}

#[test]
fn addresses_are_described_as_for_plain_memory_also_asleep() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 3000000; write 0 2");
    let is_described = |program: &mut Program| {
        assert_eq!(program.number("range 0 2999999"), 1);
        assert!(program.number("attribute 0 1") != 0, "its context");
        assert_eq!(program.number("attribute 0 12"), 3_000_000, "its size");
        let at = program.number("attribute 0 11");
        assert_eq!(program.number("attribute 0 3"), at + 5, "Triton asks this of every argument");
        let [kind, is_managed, ordinal, access] =
            [2, 8, 9, 16].map(|number| program.number(&format!("attribute 0 {number}")));
        assert_eq!((kind, is_managed, ordinal, access), (2, 0, 0, 3));
        assert_eq!(program.number("attributes 0 2"), 3_000_000, "its size and kind together");
    };
    is_described(&mut program);
    slept(&program);
    is_described(&mut program);
    assert!(program.status().is_asleep, "questions do not wake");
    // What only the driver knows, it knows of memory that is there.
    assert_eq!(program.number("attribute 0 18"), 4 << 20);
    assert!(!program.status().is_asleep);
    slept(&program);
    assert_eq!(program.number("attributes 0 18"), 3_000_000);
    assert!(!program.status().is_asleep);
}

#[test]
fn a_capture_is_not_ended_and_its_graph_runs_after_a_sleep() {
    let mut program = Program::start(Route::Address);
    program.does("alloc 0 4194304; capture 0");
    let Answer::Refused { reason } = sleep(&program) else { panic!() };
    assert!(reason.contains("captured"), "{reason}");
    program.does("end-capture");
    slept(&program);
    program.does("replay 0");
    slept(&program);
    program.does("replay 0");
}

#[test]
fn a_free_during_a_capture_waits_for_its_end() {
    let mut program = Program::start(Route::Dlsym);
    let bare = program.number("info");
    program.does("alloc 0 4194304; alloc 1 4194304; capture 0; free 1; end-capture");
    assert_eq!(program.number("info") - bare, 4 * MIB);
    program.does("replay 0");
}

#[test]
fn a_function_that_is_not_in_the_table_works_and_keeps_the_process_awake() {
    let mut program = Program::start(Route::Address);
    program.does("alloc 0 4194304; write 0 1");
    slept(&program);
    let sum = (1..=8).map(|n| n * n).sum::<u64>();
    assert_eq!(program.number("unknown"), sum);
    let status = program.status();
    assert!(!status.is_asleep);
    assert_eq!(status.obstacles, ["cuLowtideDoubleOnly"]);
    let Answer::Refused { reason } = sleep(&program) else { panic!() };
    assert!(reason.contains("cuLowtideDoubleOnly"), "{reason}");
    program.does("check 0");
}

#[test]
fn threads_that_work_find_their_bytes_while_others_put_the_process_to_sleep_and_wake_it() {
    for what in ["storm 4 700", "launches 4 700", "segments 4 700"] {
        let mut program = Program::start(Route::Dlsym);
        for block in 0..4 {
            program.does(&format!("alloc {block} 2097152"));
        }
        let began = Instant::now();
        let mut sleeps = 0;
        while sleeps < 3 {
            assert!(began.elapsed() < LIMIT, "{what}: asleep {sleeps} times");
            program.tell(what);
            thread::scope(|scope| {
                let waker = scope.spawn(|| {
                    while !program.has_answered() {
                        program.ask(Ask::Wake);
                    }
                });
                while !program.has_answered() {
                    if let Answer::Slept { .. } = sleep(&program) {
                        sleeps += 1;
                    }
                }
                waker.join().expect("the waker ends");
            });
            assert_eq!(program.answer(), "ok", "{what}");
        }
        assert!(program.status().obstacles.is_empty(), "{what}: {:?}", program.status());
    }
}

#[test]
fn off_means_off_and_a_probe_finds_no_driver_where_there_is_none() {
    let world = World::new();
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_AGENT", "off")]);
    program.does("alloc 0 4194304; write 0 8; check 0; free 0");
    assert!(!world.has_socket());
    assert_eq!(program.number("probe"), 0, "the driver is loaded for this program only");
}

#[test]
fn another_function_of_such_a_name_may_be_found_before_the_driver_is_loaded() {
    let world = World::new();
    let mut command = world.command(program::client(Route::Dlsym));
    let mut program = world.spawn(command.arg("dlsym").env("LD_PRELOAD", program::agent()));
    program.does("early; start; alloc 0 4194304; write 0 5");
    slept(&program);
    program.does("check 0");
}

#[test]
fn a_forked_child_passes_through() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 8; fork; fork 1");
    slept(&program);
    program.does("fork; fork 1");
    assert!(program.status().is_asleep, "no child has woken its parent");
    program.does("check 0; fork 1");
}

#[test]
fn a_context_takes_its_memory_along() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; release");
    assert!(program.status().contexts.is_empty());
    program.does("start");
    let bare = program.number("info");
    program.does("alloc 0 4194304; write 0 3; check 0");
    assert_eq!(program.number("info") - bare, 4 * MIB);
}

#[test]
fn another_device_that_has_peer_access_uses_memory_also_after_a_sleep() {
    let world = World::new();
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_DOUBLE", "devices=2")]);
    program.does("alloc 0 4194304; write 0 5; second 1");
    assert_eq!(program.text("check 0"), "error 1", "it has none");
    program.does("peer; check 0; write 0 6; first; alloc 1 4194304; write 1 7; other; check 1");
    slept(&program);
    program.does("check 0; check 1; first; free 1; check 0");
    // Of memory that another process has, too.
    let mut exporter = world.start(Route::Dlsym);
    exporter.does("alloc 0 4194304; write 0 9");
    let handle = exporter.text("handle 0 0");
    program.does(&format!("open 2 4194304 1 {handle}"));
    program.does("other; seed 2 9; check 2; no-second 0; first; close 2");
}

#[test]
fn hostile_lines_are_answered_and_forgotten() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304");
    for line in ["\n", "{}\n", "{\"version\":9,\"ask\":\"sleep\"}\n", "[[[[[[\n", "\u{0}\n"] {
        let answer = program.say(line.as_bytes());
        assert!(answer.contains("refused"), "{line:?}: {answer}");
    }
    let answer = program.say(&vec![b'x'; 100_000]);
    assert!(answer.is_empty() || answer.contains("refused"), "{answer}");
    slept(&program);
}

/// The driver does not know the agent's numbers for handles of virtual memory. A row with a handle gives the driver its
/// own, and the agent answers the rest itself; this list is what NVIDIA's header has.
#[test]
fn every_function_that_takes_a_handle_of_virtual_memory_is_known() {
    let table = include_str!("../../table/driver.tsv").lines().filter(|row| !row.starts_with('#'));
    let rows = table.map(|row| row.split('\t').collect::<Vec<_>>());
    let (takes, is_known): (Vec<_>, Vec<_>) = rows
        .filter(|row| row[1].contains('h') || row[0].starts_with("cuMemMapArrayAsync"))
        .map(|row| (row[0].to_owned(), row[1].contains('h') || row[2].ends_with(" own")))
        .unzip();
    assert_eq!(
        takes,
        [
            "cuMemExportToShareableHandle",
            "cuMemGetAllocationPropertiesFromHandle",
            "cuMemMap",
            "cuMemMapArrayAsync",
            "cuMemMapArrayAsync_ptsz",
            "cuMemRelease",
            "cuMulticastAddDevice",
            "cuMulticastBindAddr",
            "cuMulticastBindAddr_v2",
            "cuMulticastBindMem",
            "cuMulticastBindMem_v2",
            "cuMulticastUnbind",
        ]
    );
    assert!(is_known.iter().all(|known| *known), "{takes:?}: {is_known:?}");
}

/// Touches that do not wait for room, by how their names begin, with the reason. The room that is never granted is for
/// them.
const TAKES_LITTLE: [(&str, &str); 5] = [
    (
        "cuLaunch cuStream cuSignal cuWait cuMemcpy cuMemset cuMemPrefetch cuMemDiscard cuMemBatch cuFlush",
        "they submit work, which takes no memory beside the code that is loaded for it",
    ),
    (
        "cuEvent cuCtxRecord cuCtxWait cuCtxReset cuGreenCtxRecord cuGreenCtxStream cuGreenCtxWait cuTensorMap cuTex \
         cuSurf cuMemPoolCreate cuMemPoolSetAccess cuOccupancy cuPointer cuFuncGet cuFuncSet cuKernelGetAttribute \
         cuKernelSet cuModuleGet cuLibraryGetGlobal cuLibraryGetManaged cuLibraryGetUnified cuMemGetAccess \
         cuMemRangeGet cuMemAdvise",
        "an object or an attribute is small",
    ),
    (
        "cuGraphAdd cuGraphBatch cuGraphConditional cuGraphExecBatch cuGraphExecChild cuGraphExecExternal \
         cuGraphExecKernel cuGraphExecMem cuGraphExecNode cuGraphExternal cuGraphKernel cuGraphMem cuGraphNode",
        "a graph that is described takes memory when it is made executable",
    ),
    (
        "cuMemMap cuMemSetAccess cuMemExport cuMemImport cuMemRetain cuMemGetHandle cuMemPoolExport cuMemPoolImport \
         cuIpc cuImport cuExternal cuGraphics cuMulticast cuCtxEnablePeer cuArrayGet",
        "the memory is there already",
    ),
    ("cuMemAllocHost cuMemHost cuMemAllocManaged", "memory of the host, or as much as is free"),
];

#[test]
fn every_touch_waits_for_room_or_takes_little() {
    let table = include_str!("../../table/driver.tsv").lines().filter(|row| !row.starts_with('#'));
    for row in table {
        let columns: Vec<&str> = row.split('\t').collect();
        let words: Vec<&str> = columns[2].split(' ').collect();
        let mut starts = TAKES_LITTLE.iter().flat_map(|(starts, _)| starts.split(' '));
        let is_excused = starts.any(|start| !start.is_empty() && columns[0].starts_with(start));
        let (is_touch, takes) = (words[0] == "touch", words.contains(&"takes"));
        assert!(!takes || is_touch, "{row}: what takes memory passes the gate");
        assert!(!is_touch || takes != is_excused, "{row}: decide whether it waits for room");
    }
}

#[test]
fn the_table_has_every_function_that_the_device_crate_calls() {
    let table = include_str!("../../table/driver.tsv");
    for known in lowtide_device::cuda::ENTRY_POINTS {
        let has = table.lines().any(|row| row.split('\t').next() == Some(known.name));
        assert!(has, "{}", known.name);
    }
}
