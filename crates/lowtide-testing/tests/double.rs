//! What only the driver double has: faults, counts, settings, lateness, and machines that
//! processes share. What it has in common with the driver is in the rules.
//!
//! Tests take turns with the double, and each ends by checking that it left nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lowtide_device::nvml::Nvml;
use lowtide_testing::double::{Double, DoubleGuard, Live};
use lowtide_testing::raw::{Access, LegacyHandle, Properties, Raw, first};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;
/// Longer than any test takes: what is this late has not run.
const LATE: &str = "late_us=600000000";
const PATIENCE: Duration = Duration::from_secs(300);

const OK: i32 = 0;
const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const NOT_INITIALIZED: i32 = 3;
const INVALID_DEVICE_FUNCTION: i32 = 98;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_STATE: i32 = 401;
const NOT_READY: i32 = 600;
const LAUNCH_FAILED: i32 = 719;
const CAPTURE_UNSUPPORTED: i32 = 900;
const CAPTURE_INVALIDATED: i32 = 901;
const UNKNOWN: i32 = 999;

/// Returns what a call wrote to its first argument; it must be a success.
fn get(call: impl FnOnce(&mut u64) -> i32) -> u64 {
    let mut value = 0;
    assert_eq!(call(&mut value), OK);
    value
}

/// A test's exclusive use of the double, with a context current.
struct Gpu {
    raw: Raw,
    /// Not all zeros only where a test before this one failed.
    before: Live,
    double: DoubleGuard,
}

impl Gpu {
    fn new(settings: &str) -> Gpu {
        let double = Double::take();
        double.configure(settings);
        let raw = double.raw();
        assert_eq!(raw.cuInit(0), OK);
        let before = double.live();
        let context = get(|context| raw.cuDevicePrimaryCtxRetain(context, 0));
        assert_eq!(raw.cuCtxPushCurrent_v2(context), OK);
        Gpu { raw, before, double }
    }

    fn create(&self, pages: u64) -> u64 {
        get(|handle| self.raw.cuMemCreate(handle, pages * PAGE, &Properties::default(), 0))
    }

    fn create_code(&self, bytes: u64) -> i32 {
        self.raw.cuMemCreate(&mut 0, bytes, &Properties::default(), 0)
    }

    fn reserve(&self, pages: u64) -> u64 {
        get(|at| self.raw.cuMemAddressReserve(at, pages * PAGE, 0, 0, 0))
    }

    /// Maps and opens a page; returns its address and its handle.
    fn mapped(&self) -> (u64, u64) {
        let (at, handle) = (self.reserve(1), self.create(1));
        assert_eq!(self.raw.cuMemMap(at, PAGE, 0, handle, 0), OK);
        assert_eq!(self.raw.cuMemSetAccess(at, PAGE, &Access::READ_WRITE, 1), OK);
        (at, handle)
    }

    /// Takes a page of [`Gpu::mapped`] away again.
    fn unmapped(&self, (at, handle): (u64, u64)) {
        assert_eq!(self.raw.cuMemUnmap(at, PAGE), OK);
        assert_eq!(self.raw.cuMemRelease(handle), OK);
        assert_eq!(self.raw.cuMemAddressFree(at, PAGE), OK);
    }

    /// Creates a stream that is not ordered with the legacy one.
    fn stream(&self) -> u64 {
        get(|stream| self.raw.cuStreamCreate(stream, 1))
    }

    fn pinned(&self) -> u64 {
        get(|at| self.raw.cuMemHostAlloc(at, PAGE, 0))
    }

    fn module(&self) -> u64 {
        let text = first(c".visible .entry lowtide_digest( .visible .entry other(");
        get(|module| self.raw.cuModuleLoadData(module, text))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.double.clear_faults();
        while self.raw.cuCtxPopCurrent_v2(&mut 0) == OK {}
        while self.raw.cuDevicePrimaryCtxRelease_v2(0) == OK {}
        if !std::thread::panicking() {
            assert_eq!(self.double.live(), self.before, "the test left something");
        }
    }
}

/// Allocates memory of this process that the driver does not know.
fn pageable() -> u64 {
    vec![1u8; 64].leak().as_ptr().expose_provenance() as u64
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < limit, "it did not come to pass within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

mod counts {
    use super::*;

    #[test]
    fn what_a_process_holds_is_counted_and_a_context_takes_what_is_its_own() {
        let gpu = Gpu::new(LATE);
        let (mapped, stream) = (gpu.mapped(), gpu.stream());
        assert_eq!(gpu.raw.cuMemHostRegister_v2(pageable(), 64, 1), OK);
        get(|at| gpu.raw.cuMemAlloc_v2(at, PAGE));
        get(|event| gpu.raw.cuEventCreate(event, 0));
        gpu.pinned();
        gpu.module();
        assert_eq!(gpu.raw.cuMemsetD8Async(mapped.0, 1, PAGE, gpu.stream()), OK);
        assert_eq!(gpu.raw.cuStreamBeginCapture_v2(stream, 0), OK);
        get(|graph| gpu.raw.cuStreamEndCapture(stream, graph));
        assert_eq!(gpu.raw.cuStreamBeginCapture_v2(stream, 0), OK);
        let of_the_process = Live {
            reservations: 1,
            handles: 1,
            unreleased_handles: 1,
            mappings: 1,
            stack_depth: 1,
            ..Live::default()
        };
        let all = Live {
            plain_allocations: 1,
            host_allocations: 1,
            registrations: 1,
            streams: 2,
            events: 1,
            modules: 1,
            graphs: 1,
            captures: 1,
            contexts_retained: 1,
            operations: 1,
            ..of_the_process
        };
        assert_eq!(gpu.double.live(), all);
        assert_eq!(gpu.raw.cuDevicePrimaryCtxRelease_v2(0), OK);
        assert_eq!(gpu.double.live(), of_the_process);
        assert_eq!(gpu.raw.cuMemRelease(mapped.1), OK);
        assert_eq!(gpu.double.live(), Live { unreleased_handles: 0, ..of_the_process });
        assert_eq!(gpu.raw.cuMemUnmap(mapped.0, PAGE), OK);
        assert_eq!(gpu.raw.cuMemAddressFree(mapped.0, PAGE), OK);
    }

    #[test]
    fn calls_are_counted_in_order_of_first_use() {
        let gpu = Gpu::new("");
        gpu.double.reset_calls();
        let handle = gpu.create(1);
        assert_eq!(gpu.create_code(4096), INVALID_VALUE, "failed calls count too");
        assert_eq!(gpu.raw.cuMemRelease(handle), OK);
        let counted = [("cuMemCreate", 2), ("cuMemRelease", 1)];
        assert_eq!(gpu.double.calls(), counted.map(|(name, count)| (name.to_owned(), count)));
        gpu.double.reset_calls();
        assert_eq!(gpu.double.calls(), []);
    }
}

mod faults {
    use super::*;

    #[test]
    fn the_nth_call_fails_once_or_every_call() {
        let gpu = Gpu::new("");
        gpu.double.fail_nth("cuMemCreate", 2, OUT_OF_MEMORY);
        let first = gpu.create(1);
        assert_eq!(gpu.create_code(PAGE), OUT_OF_MEMORY);
        let third = gpu.create(1);
        assert_eq!(gpu.double.live().handles, 2, "the call that failed made nothing");
        assert_eq!([first, third].map(|handle| gpu.raw.cuMemRelease(handle)), [OK; 2]);
        gpu.double.fail_always("cuMemCreate", UNKNOWN);
        assert_eq!([(); 3].map(|()| gpu.create_code(PAGE)), [UNKNOWN; 3]);
        gpu.double.clear_faults();
        assert_eq!(gpu.raw.cuMemRelease(gpu.create(1)), OK);
    }

    #[test]
    fn a_size_is_out_of_memory_by_request() {
        let gpu = Gpu::new("oom_at=4MiB");
        assert_eq!(gpu.create_code(2 * PAGE), OUT_OF_MEMORY);
        assert_eq!(gpu.raw.cuMemAlloc_v2(&mut 0, 3 * MIB), OUT_OF_MEMORY, "counted in pages");
        assert_eq!(gpu.raw.cuMemRelease(gpu.create(1)), OK);
    }

    #[test]
    #[should_panic(expected = "has no cuMemCrate")]
    fn a_fault_for_a_name_that_is_not_there_is_a_mistake() {
        Double::take().fail_nth("cuMemCrate", 1, OUT_OF_MEMORY);
    }

    #[test]
    fn a_turn_leaves_the_next_one_as_it_was() {
        Double::take().configure("total=1GiB,oom_at=2MiB,fail=cuMemCreate:2,foreign=5:1MiB");
        let gpu = Gpu::new("");
        let free = get(|free| gpu.raw.cuMemGetInfo_v2(free, &mut 0));
        assert_eq!(free, (4096 - 32 - 64) * MIB, "what is not reserved and not the context's");
        assert_eq!(gpu.raw.cuMemRelease(gpu.create(1)), OK);
    }

    #[test]
    fn there_are_as_many_devices_as_asked_for() {
        let gpu = Gpu::new("devices=2,total=1GiB");
        let mut count = 0;
        assert_eq!(gpu.raw.cuDeviceGetCount(&mut count), OK);
        assert_eq!(count, 2);
        let handle = get(|handle| gpu.raw.cuMemCreate(handle, PAGE, &Properties::on(1), 0));
        let free = get(|free| gpu.raw.cuMemGetInfo_v2(free, &mut 0));
        assert_eq!(free, (1024 - 32 - 64) * MIB, "what is on the other device is not on this one");
        assert_eq!(gpu.raw.cuMemRelease(handle), OK);
    }
}

mod lateness {
    use super::*;

    #[test]
    fn work_waits_until_somebody_waits_for_it() {
        let gpu = Gpu::new(LATE);
        let (mapped, stream, other) = (gpu.mapped(), gpu.stream(), gpu.stream());
        for stream in [stream, stream, other] {
            assert_eq!(gpu.raw.cuMemsetD8Async(mapped.0, 1, PAGE, stream), OK);
        }
        assert_eq!(gpu.raw.cuStreamQuery(stream), NOT_READY);
        assert_eq!(gpu.double.live().operations, 3);
        assert_eq!(gpu.raw.cuStreamSynchronize(stream), OK);
        assert_eq!(gpu.double.live().operations, 1, "nobody waits for the other stream");
        assert_eq!(gpu.raw.cuStreamSynchronize(other), OK);
        gpu.unmapped(mapped);
    }

    #[test]
    fn work_starts_by_itself_in_the_end() {
        let gpu = Gpu::new("late_us=1000");
        let (mapped, stream) = (gpu.mapped(), gpu.stream());
        assert_eq!(gpu.raw.cuMemsetD8Async(mapped.0, 1, PAGE, stream), OK);
        wait_until(|| gpu.raw.cuStreamQuery(stream) == OK);
        gpu.unmapped(mapped);
    }
}

/// Tests of where the double refuses what a driver may let pass.
mod strictness {
    use super::*;

    #[test]
    fn nothing_reaches_beyond_its_reservation() {
        let gpu = Gpu::new("");
        let (at, handle) = (gpu.reserve(2), gpu.create(2));
        assert_eq!(gpu.raw.cuMemMap(at + PAGE, 2 * PAGE, 0, handle, 0), INVALID_VALUE);
        assert_eq!(gpu.raw.cuMemMap(at, 2 * PAGE, 0, handle, 0), OK);
        assert_eq!(gpu.raw.cuMemUnmap(at, 3 * PAGE), INVALID_VALUE);
        let open = gpu.raw.cuMemSetAccess(at, 3 * PAGE, &Access::READ_WRITE, 1);
        assert_eq!(open, INVALID_VALUE);
        assert_eq!(gpu.raw.cuMemUnmap(at, 2 * PAGE), OK);
        assert_eq!(gpu.raw.cuMemRelease(handle), OK);
        assert_eq!(gpu.raw.cuMemAddressFree(at, 2 * PAGE), OK);
    }

    #[test]
    fn plain_memory_ends_where_the_caller_said() {
        let gpu = Gpu::new("");
        let plain = get(|at| gpu.raw.cuMemAlloc_v2(at, 1000));
        assert_eq!(gpu.raw.cuMemsetD8Async(plain, 0, 1001, 0), INVALID_VALUE);
        assert_eq!(gpu.raw.cuMemsetD8Async(plain, 0, 1000, 0), OK);
        assert_eq!(gpu.raw.cuMemFree_v2(plain), OK);
    }

    #[test]
    fn a_device_address_is_no_host_memory() {
        let gpu = Gpu::new("");
        let mapped = gpu.mapped();
        assert_eq!(gpu.raw.cuMemHostRegister_v2(mapped.0, PAGE, 1), INVALID_VALUE);
        assert_eq!(gpu.raw.cuMemcpyHtoD_v2(mapped.0, mapped.0, 64), INVALID_VALUE);
        gpu.unmapped(mapped);
    }

    #[test]
    fn events_and_pageable_memory_are_not_captured() {
        let gpu = Gpu::new("");
        let (mapped, stream) = (gpu.mapped(), gpu.stream());
        let event = get(|event| gpu.raw.cuEventCreate(event, 0));
        let host = pageable();
        let calls: [&dyn Fn() -> i32; 3] = [
            &|| gpu.raw.cuEventRecord(event, stream),
            &|| gpu.raw.cuMemcpyHtoDAsync_v2(mapped.0, host, 64, stream),
            &|| gpu.raw.cuMemcpyDtoHAsync_v2(host, mapped.0, 64, stream),
        ];
        for call in calls {
            assert_eq!(gpu.raw.cuStreamBeginCapture_v2(stream, 2), OK);
            assert_eq!(call(), CAPTURE_UNSUPPORTED);
            assert_eq!(gpu.raw.cuStreamEndCapture(stream, &mut 0), CAPTURE_INVALIDATED);
        }
        gpu.unmapped(mapped);
    }

    #[test]
    fn a_handle_that_is_none_is_an_answer() {
        let gpu = Gpu::new("");
        let stream = gpu.stream();
        assert_eq!(gpu.raw.cuStreamDestroy_v2(stream), OK);
        for gone in [stream, 12345] {
            assert_eq!(gpu.raw.cuStreamDestroy_v2(gone), INVALID_HANDLE);
            assert_eq!(gpu.raw.cuStreamSynchronize(gone), INVALID_HANDLE);
            assert_eq!(gpu.raw.cuEventDestroy_v2(gone), INVALID_HANDLE);
            assert_eq!(gpu.raw.cuModuleUnload(gone), INVALID_HANDLE);
            assert_eq!(gpu.raw.cuGraphDestroy(gone), INVALID_HANDLE);
        }
    }

    #[test]
    fn no_kernel_runs_but_lowtides_own() {
        let gpu = Gpu::new("");
        let function = get(|f| gpu.raw.cuModuleGetFunction(f, gpu.module(), first(c"other")));
        let launch = gpu.raw.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, &mut [0; 4], 0);
        assert_eq!(launch, INVALID_DEVICE_FUNCTION);
    }
}

/// Tests with several processes: each is this program again, as an *actor* that does
/// what it is told on its standard input and answers on its standard output.
mod processes {
    use super::*;

    const ACTOR: &str = "LOWTIDE_DOUBLE_TEST_ACTOR";

    struct Actor {
        child: Child,
        orders: ChildStdin,
        answers: Receiver<String>,
    }

    impl Actor {
        fn new(machine: &tempfile::TempDir, settings: &str) -> Actor {
            let mut child = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "processes::actor", "--nocapture", "--test-threads=1"])
                .env(ACTOR, "1")
                .env("LOWTIDE_NVML_LIBRARY", Double::path())
                .env("LOWTIDE_DOUBLE", settings)
                .env("LOWTIDE_DOUBLE_STATE", machine.path().join("machine"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("this program runs");
            let (sender, answers) = channel();
            let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            // The test harness prints too; answers begin with a mark of ours.
            let mut answered = lines
                .map_while(Result::ok)
                .filter_map(|line| Some(line.split_once("=> ")?.1.to_owned()));
            std::thread::spawn(move || answered.try_for_each(|answer| sender.send(answer)));
            Actor { orders: child.stdin.take().expect("piped"), child, answers }
        }

        /// Starts an actor that has a context.
        fn started(machine: &tempfile::TempDir, settings: &str) -> Actor {
            let mut actor = Actor::new(machine, settings);
            actor.expect("init", OK);
            actor.expect("context", OK);
            actor
        }

        fn tell(&mut self, order: &str) {
            writeln!(self.orders, "{order}").expect("the actor listens");
        }

        fn ask(&mut self, order: &str) -> String {
            self.tell(order);
            self.answers.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("{order}: {why}"))
        }

        fn expect(&mut self, order: &str, code: i32) {
            assert_eq!(self.ask(order), code.to_string(), "{order}");
        }

        fn free_mib(&mut self) -> u64 {
            self.ask("free_mib").parse().expect("a number")
        }
    }

    impl Drop for Actor {
        fn drop(&mut self) {
            // It may be gone already, or blocked for good.
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
        }
    }

    /// Runs the other side of [`Actor`]; not a test.
    #[test]
    fn actor() {
        if std::env::var_os(ACTOR).is_none() {
            return;
        }
        let raw = Double::load().raw();
        for order in std::io::stdin().lines().map_while(Result::ok) {
            let (verb, number) = order.split_once(' ').unwrap_or((&order, "0"));
            if verb == "open" {
                let handle: Vec<u8> = serde_json::from_str(number).expect("a handle");
                let handle = LegacyHandle(handle.try_into().expect("64 bytes"));
                println!("=> {}", get(|at| raw.cuIpcOpenMemHandle_v2(at, handle, 1)));
                continue;
            }
            println!("=> {}", play(raw, verb, number.parse().expect("a number")));
        }
    }

    fn play(raw: Raw, verb: &str, number: i32) -> String {
        let answer = match verb {
            "init" => raw.cuInit(0),
            "context" => {
                raw.cuCtxSetCurrent(get(|context| raw.cuDevicePrimaryCtxRetain(context, 0)))
            }
            "create_mib" => {
                let bytes = u64::from(number.cast_unsigned()) * MIB;
                raw.cuMemCreate(&mut 0, bytes, &Properties::default(), 0)
            }
            "share_mib" => {
                let bytes = u64::from(number.cast_unsigned()) * MIB;
                let (at, mut handle) = (get(|at| raw.cuMemAlloc_v2(at, bytes)), [0; 64]);
                assert_eq!(raw.cuIpcGetMemHandle(&mut handle, at), OK);
                return format!("{handle:?}");
            }
            // What is shared goes with the context.
            "end" => raw.cuDevicePrimaryCtxRelease_v2(0),
            "free_mib" => return (get(|free| raw.cuMemGetInfo_v2(free, &mut 0)) / MIB).to_string(),
            "fill" => {
                let plain = get(|at| raw.cuMemAlloc_v2(at, PAGE));
                raw.cuMemsetD8Async(plain, 1, PAGE, 0)
            }
            "sync" => raw.cuCtxSynchronize(),
            // Another process may be locking it for a moment.
            "lock" => loop {
                match raw.cuCheckpointProcessLock(number, &[0; 8]) {
                    ILLEGAL_STATE => std::thread::yield_now(),
                    code => break code,
                }
            },
            "lock_for_a_moment" => raw.cuCheckpointProcessLock(number, &[1, 0, 0, 0, 0, 0, 0, 0]),
            "checkpoint" => raw.cuCheckpointProcessCheckpoint(number, 0),
            "restore" => raw.cuCheckpointProcessRestore(number, 0),
            "unlock" => raw.cuCheckpointProcessUnlock(number, 0),
            "state" => {
                let mut state = -1;
                assert_eq!(raw.cuCheckpointProcessGetState(number, &mut state), OK);
                state
            }
            "unmap_under_a_copy" => unmap_under_a_copy(),
            "copy_without_end" => copy_without_end(),
            "readings" => return readings(),
            _ => panic!("no such order: {verb}"),
        };
        answer.to_string()
    }

    /// Returns what the copy's stream answers.
    fn unmap_under_a_copy() -> i32 {
        let gpu = Gpu::new("copy_us=3000000,late_us=0");
        let (mapped, pinned, stream) = (gpu.mapped(), gpu.pinned(), gpu.stream());
        assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(pinned, mapped.0, PAGE, stream), OK);
        // It begins at once and is not done for as long as was asked.
        std::thread::sleep(Duration::from_millis(50));
        gpu.unmapped(mapped);
        gpu.raw.cuStreamSynchronize(stream)
    }

    /// Returns what the stream of a copy answers after work that was submitted later is done.
    fn copy_without_end() -> i32 {
        let gpu = Gpu::new("copy_us=3600000000,late_us=0");
        let (copied, filled, pinned) = (gpu.mapped(), gpu.mapped(), gpu.pinned());
        let (copies, fills) = (gpu.stream(), gpu.stream());
        assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(pinned, copied.0, 64, copies), OK);
        assert_eq!(gpu.raw.cuMemsetD8Async(filled.0, 1, PAGE, fills), OK);
        wait_until(|| gpu.raw.cuStreamQuery(fills) == OK);
        let answer = gpu.raw.cuStreamQuery(copies);
        // Its end would wait for the copy. The process is killed instead.
        std::mem::forget(gpu);
        answer
    }

    /// Returns NVML's numbers in MiB: total, reserved, free, then every process by PID.
    fn readings() -> String {
        let nvml = Nvml::load().expect("the double is NVML too");
        let uuid = nvml.uuids().expect("the devices").remove(0);
        let usage = nvml.usage(&uuid).expect("the usage");
        let processes = nvml.processes(&uuid).expect("the processes");
        let processes = processes.iter().map(|one| (one.pid, one.used.map(|used| used.0 / MIB)));
        said([usage.total, usage.reserved, usage.free].map(|size| size.0 / MIB), processes)
    }

    fn said(sizes: [u64; 3], processes: impl IntoIterator<Item = (u32, Option<u64>)>) -> String {
        let mut processes: Vec<_> = processes.into_iter().collect();
        processes.sort_unstable();
        format!("{sizes:?} {processes:?}")
    }

    fn machine() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn shared_memory_counts_once_until_the_last_process_that_holds_it_is_gone() {
        let (machine, settings) = (machine(), "total=1GiB,reserved=0,context=0");
        let mut witness = Actor::started(&machine, settings);
        for exporter_first in [true, false] {
            for dies in [true, false] {
                let mut exporter = Actor::started(&machine, settings);
                let handle = exporter.ask("share_mib 64");
                let mut importer = Actor::started(&machine, settings);
                importer.ask(&format!("open {handle}"));
                assert_eq!(witness.free_mib(), 960, "{exporter_first} {dies}");
                let (first, second) =
                    if exporter_first { (exporter, importer) } else { (importer, exporter) };
                for (mut one, free) in [(first, 960), (second, 1024)] {
                    if !dies {
                        one.expect("end", OK);
                        assert_eq!(witness.free_mib(), free, "{exporter_first}");
                    }
                    drop(one);
                    assert_eq!(witness.free_mib(), free, "{exporter_first} {dies}");
                }
            }
        }
    }

    #[test]
    fn nothing_works_before_init_and_settings_come_from_the_environment() {
        let settings = "total=1GiB,reserved=24MiB,context=100MiB,fail=cuMemCreate@2:2";
        let machine = machine();
        let mut actor = Actor::new(&machine, settings);
        actor.expect("create_mib 2", NOT_INITIALIZED);
        actor.expect("init", OK);
        actor.expect("context", OK);
        assert_eq!(actor.free_mib(), 1024 - 24 - 100);
        actor.expect("create_mib 2", OUT_OF_MEMORY);
        actor.expect("create_mib 2", OK);
    }

    #[test]
    fn processes_share_the_device_and_leave_it_when_they_are_killed() {
        let machine = machine();
        let mut first = Actor::started(&machine, "total=1GiB");
        let mut second = Actor::started(&machine, "");
        let empty = 1024 - 32 - 2 * 64;
        assert_eq!(first.free_mib(), empty);
        first.expect("create_mib 600", OK);
        assert_eq!(second.free_mib(), empty - 600);
        second.expect("create_mib 600", OUT_OF_MEMORY);
        let both = [(first.child.id(), Some(664)), (second.child.id(), Some(64))];
        assert_eq!(second.ask("readings"), said([1024, 32, empty - 600], both));
        first.child.kill().expect("a child of ours");
        // Not reaped yet: its memory is back all the same, once the kernel ended it.
        wait_until(|| second.free_mib() == empty + 64);
        let one = [(second.child.id(), Some(64))];
        assert_eq!(second.ask("readings"), said([1024, 32, empty + 64], one));
    }

    #[test]
    fn nvml_shows_foreign_processes_and_memory_that_is_nobodys() {
        let settings = "total=1GiB,foreign=77:100MiB,foreign=78:1MiB,unattributed=5MiB";
        let machine = machine();
        let mut actor = Actor::started(&machine, settings);
        let free = 1024 - 32 - 64 - 106;
        let all = [(77, Some(100)), (78, Some(1)), (actor.child.id(), Some(64))];
        assert_eq!(actor.ask("readings"), said([1024, 32, free], all));
        assert_eq!(actor.free_mib(), free);
    }

    #[test]
    fn nvml_may_not_be_told_what_each_uses_nor_by_which_pid() {
        let settings = "total=1GiB,accounting=off,pid_offset=-1";
        let machine = machine();
        let mut actor = Actor::started(&machine, settings);
        let shifted = [(actor.child.id() - 1, None)];
        assert_eq!(actor.ask("readings"), said([1024, 32, 1024 - 32 - 64], shifted));
    }

    // Stricter than a driver, which may have read it already.
    #[test]
    fn memory_that_goes_while_a_copy_runs_costs_the_process() {
        Actor::new(&machine(), "").expect("unmap_under_a_copy", LAUNCH_FAILED);
    }

    #[test]
    fn a_copy_takes_as_long_as_asked() {
        Actor::new(&machine(), "").expect("copy_without_end", NOT_READY);
    }

    #[test]
    fn a_process_is_lost_after_a_restore_without_room() {
        const CHECKPOINTED: i32 = 2;
        const OPERATING_SYSTEM: i32 = 304;
        let machine = machine();
        let mut target = Actor::started(&machine, "total=1GiB");
        target.expect("create_mib 600", OK);
        let (mut helper, pid) = (Actor::started(&machine, ""), target.child.id());
        helper.expect(&format!("lock {pid}"), OK);
        helper.expect(&format!("checkpoint {pid}"), OK);
        let mut other = Actor::started(&machine, "");
        other.expect("create_mib 600", OK);
        helper.expect(&format!("restore {pid}"), OUT_OF_MEMORY);
        helper.expect(&format!("state {pid}"), CHECKPOINTED);
        helper.expect(&format!("unlock {pid}"), ILLEGAL_STATE);
        // There is room again.
        drop(other);
        helper.expect(&format!("restore {pid}"), OPERATING_SYSTEM);
        helper.expect(&format!("state {pid}"), CHECKPOINTED);
    }

    #[test]
    fn a_lock_whose_waiter_dies_is_no_lock() {
        let machine = machine();
        let mut target = Actor::started(&machine, LATE);
        target.expect("fill", OK);
        let (mut helper, pid) = (Actor::started(&machine, ""), target.child.id());
        let mut witness = Actor::started(&machine, "");
        helper.tell(&format!("lock {pid}"));
        let refused = ILLEGAL_STATE.to_string();
        wait_until(|| witness.ask(&format!("lock_for_a_moment {pid}")) == refused);
        drop(helper);
        target.expect("create_mib 2", OK);
        target.expect("sync", OK);
        witness.expect(&format!("lock {pid}"), OK);
    }

    #[test]
    fn a_state_file_of_something_else_is_refused() {
        let machine = machine();
        std::fs::write(machine.path().join("machine"), [7; 4096]).expect("a file");
        Actor::new(&machine, "").expect("init", UNKNOWN);
    }
}
