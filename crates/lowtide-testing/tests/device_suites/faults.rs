//! Every driver call that lowtide makes, made to fail once: the error names it, nothing is leaked,
//! and the next try succeeds.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use lowtide_device::cuda::{BorrowedContext, Context, Driver, ENTRY_POINTS, EntryGroup};
use lowtide_device::digest::Keys;
use lowtide_device::nvml::Nvml;
use lowtide_device::{Bytes, Device, Error, Result, Source, processes};
use lowtide_testing::double::{Double, Live};
use lowtide_testing::raw::Raw;
use lowtide_testing::suite::{Case, Target};

const UNKNOWN: i32 = 999;
const OUT_OF_MEMORY: i32 = 2;
const NVML_UNKNOWN: i32 = 999;
const PAGE: Bytes = Bytes::mib(2);
const START: Bytes = Bytes::ZERO;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("the_scenario_makes_every_driver_call", the_scenario_makes_every_driver_call),
        Case::new("a_call_that_fails_leaks_nothing", |_| leaks_nothing(UNKNOWN)),
        Case::new("a_call_without_memory_leaks_nothing", |_| leaks_nothing(OUT_OF_MEMORY)),
        Case::new("what_is_not_taken_back_is_tried_again", what_is_not_taken_back_is_tried_again),
        Case::new("an_unmap_that_fails_midway_is_undone", an_unmap_that_fails_midway_is_undone),
        Case::new("a_driver_that_takes_nothing_back_is_survived", a_driver_that_takes_nothing_back),
        Case::new("nvml_that_fails_is_an_error_or_the_driver_is_asked", nvml_that_fails),
        Case::new("memory_that_runs_out_midway_is_given_back", memory_that_runs_out_midway),
        Case::new("work_that_is_not_done_is_no_error", work_that_is_not_done_is_no_error),
        Case::new("calls_are_counted_as_the_driver_counts_them", calls_are_counted),
        Case::new("only_synchronize_waits_for_the_whole_context", only_synchronize_waits),
        // Last, because the process has no context afterwards.
        Case::new("a_lost_context_is_survived_without_trying_again", a_lost_context_is_survived),
    ]
}

/// Does everything that a device can do, from opening to dropping it.
fn scenario() -> Result<()> {
    let device = Device::cuda(0)?;
    device.usage()?;
    let reservation = device.reserve(Bytes(PAGE.0 * 6))?;
    for (page, size) in [(0, 2), (2, 1), (4, 2)] {
        reservation.map(Bytes(PAGE.0 * page), device.create(Bytes(PAGE.0 * size))?)?;
    }
    reservation.open(START, Bytes(PAGE.0 * 3))?;
    let (memory, stream) = (device.host_memory(PAGE)?, device.stream()?);
    drop(device.host_memory_here(PAGE)?);
    stream.fill((&reservation, START), 7, PAGE)?;
    let digests = stream.digest((&reservation, START), PAGE, &Keys::from_seed(1))?;
    digests.wait()?;
    let ranges = [PAGE.0..PAGE.0 * 3, 0..PAGE.0];
    let digests = stream.digest_ranges(&reservation, &ranges, &Keys::from_seed(1))?;
    stream.has_passed()?;
    assert_eq!(digests.wait()?.len(), 3);
    stream.copy_out((&reservation, START), (&memory, START), PAGE)?;
    let mark = stream.mark()?;
    stream.copy_in((&memory, START), (&reservation, PAGE), PAGE)?;
    stream.wait(&mark)?;
    stream.copy_within((&reservation, START), (&reservation, PAGE), PAGE)?;
    stream.copy_in_by_kernel((&memory, START), (&reservation, PAGE), PAGE)?;
    let look = stream.look_ranges(&reservation, &[0..PAGE.0])?.wait()?[0];
    stream.pack((&reservation, START), (&memory, START), &[look.base])?;
    device.synchronize()?;
    stream.synchronize()?;
    let chunks = reservation.unmap(START, Bytes(PAGE.0 * 6))?;
    assert_eq!(chunks.len(), 3);
    for (offset, chunk) in chunks {
        reservation.map(offset, chunk)?;
    }
    drop(in_own_context()?.create(PAGE)?);
    Ok(())
}

/// Opens a device in a context that this test created, and keeps.
#[allow(unsafe_code, reason = "borrows the context")]
fn in_own_context() -> Result<Device> {
    static OWN: OnceLock<u64> = OnceLock::new();
    let context = *OWN.get_or_init(|| {
        let (raw, mut context) = (Raw::load(), 0);
        assert_eq!(raw.cuCtxCreate_v2(&mut context, 0, 0), 0);
        assert_eq!(raw.cuCtxPopCurrent_v2(&mut 0), 0);
        context
    });
    let context = std::ptr::with_exposed_provenance_mut(context as usize);
    let context = NonNull::new(context).expect("a context is not null");
    // SAFETY: it is never destroyed.
    let context = unsafe { BorrowedContext::new(context) };
    Device::cuda_with(Arc::new(Driver::load()?), Context::Borrowed(context))
}

fn calls_of(double: Double, run: impl FnOnce()) -> BTreeMap<String, u64> {
    double.reset_calls();
    run();
    double.calls().into_iter().collect()
}

/// Counts the calls of everything: with NVML, and without it, when the driver itself is asked.
fn calls_of_everything(double: Double) -> BTreeMap<String, u64> {
    let mut calls = calls_of(double, || scenario().expect("nothing is made to fail"));
    double.fail_always("nvmlDeviceGetMemoryInfo_v2", NVML_UNKNOWN);
    calls.extend(calls_of(double, || scenario().expect("the driver is asked instead")));
    double.clear_faults();
    // Names an error; called only where there is one.
    double.fail_nth("cuMemCreate", 1, UNKNOWN);
    calls.extend(calls_of(double, || drop(scenario().expect_err("made to fail"))));
    calls
}

fn assert_nothing_is_left(double: Double, after: &str) {
    // The context of `in_own_context` stays.
    let live = Live { contexts_created: 0, ..double.live() };
    assert_eq!(live, Live::default(), "after {after}");
}

fn the_scenario_makes_every_driver_call(_: Target) {
    let double = Double::take();
    let calls = calls_of_everything(*double);
    // A device makes no calls of the other groups.
    let groups = [EntryGroup::Core, EntryGroup::PrimaryContext, EntryGroup::Kernels];
    let made = ENTRY_POINTS.iter().filter(|entry| groups.contains(&entry.group));
    let missed: Vec<_> = made.filter(|entry| !calls.contains_key(entry.name)).collect();
    assert!(missed.is_empty(), "never called, so never made to fail: {missed:?}");
    assert_nothing_is_left(*double, "everything succeeded");
}

// Whether a failure may pass without an error: where something is given back there is nobody to
// tell, and it is tried again.
fn may_pass(name: &str) -> bool {
    let gives_back = [
        "cuMemRelease",
        "cuMemUnmap",
        "cuMemAddressFree",
        "cuMemHostUnregister",
        "cuMemFreeHost",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuModuleUnload",
        "cuDevicePrimaryCtxRelease_v2",
        // These surround every call, those that give back too.
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuThreadExchangeStreamCaptureMode",
        // A dropped stream waits for its work; a failed reading is replaced by another.
        "cuStreamSynchronize",
        "cuMemGetInfo_v2",
        "cuGetErrorName",
    ];
    name.starts_with("nvml") || gives_back.contains(&name)
}

fn leaks_nothing(code: i32) {
    let double = Double::take();
    let calls = calls_of(*double, || scenario().expect("nothing is made to fail"));
    let mut failures = 0;
    for (name, count) in calls.iter().filter(|(name, _)| name.starts_with("cu")) {
        for nth in 1..=*count {
            let what = format!("call {nth} of {count} of {name} answered {code}");
            double.fail_nth(name, nth, code);
            match scenario() {
                Ok(()) => assert!(may_pass(name), "{what} and nobody said so"),
                Err(Error::OutOfMemory { .. }) => {
                    assert_eq!((name.as_str(), code), ("cuMemCreate", OUT_OF_MEMORY));
                }
                Err(Error::Driver { call, code: said, .. }) => {
                    assert_eq!((call, said), (name.as_str(), code), "{what}");
                }
                Err(other) => panic!("{what}: {other}"),
            }
            double.clear_faults();
            assert_nothing_is_left(*double, &what);
            failures += 1;
        }
    }
    scenario().expect("the next try succeeds");
    assert!(failures > 200, "only {failures} failures were made");
    println!("{failures} failures, code {code}");
}

fn what_is_not_taken_back_is_tried_again(_: Target) {
    let double = Double::take();
    let device = Device::cuda(0).unwrap();
    let before = device.usage().unwrap().in_use();
    double.fail_nth("cuMemRelease", 1, UNKNOWN);
    drop(device.create(PAGE).unwrap());
    assert_eq!(device.leftovers(), 1);
    assert_eq!(device.usage().unwrap().in_use(), before + PAGE, "the driver still has it");
    let reservation = device.reserve(PAGE).unwrap();
    assert_eq!(device.leftovers(), 0, "the next call swept it up");
    assert_eq!(device.usage().unwrap().in_use(), before);
    double.fail_nth("cuMemUnmap", 1, UNKNOWN);
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    let refused = reservation.unmap(START, PAGE).unwrap_err();
    assert!(refused.to_string().contains("cuMemUnmap"), "{refused}");
    assert_eq!(reservation.mapped(), PAGE, "a refused unmap changes nothing");
    drop((reservation, device));
    assert_nothing_is_left(*double, "everything was dropped");
}

fn an_unmap_that_fails_midway_is_undone(_: Target) {
    let double = Double::take();
    let device = Device::cuda(0).unwrap();
    let (reservation, stream) =
        (device.reserve(Bytes(PAGE.0 * 5)).unwrap(), device.stream().unwrap());
    let places = [0, 2, 4].map(|page| Bytes(PAGE.0 * page));
    for offset in places {
        reservation.map(offset, device.create(PAGE).unwrap()).unwrap();
    }
    for (offset, byte) in places[..2].iter().zip([1, 2]) {
        reservation.open(*offset, PAGE).unwrap();
        stream.fill((&reservation, *offset), byte, PAGE).unwrap();
    }
    stream.synchronize().unwrap();
    double.fail_nth("cuMemUnmap", 3, UNKNOWN);
    reservation.unmap(START, Bytes(PAGE.0 * 5)).unwrap_err();
    assert_eq!(reservation.mapped(), Bytes(PAGE.0 * 3));
    let memory = device.host_memory(PAGE).unwrap();
    for (offset, byte) in places[..2].iter().zip([1, 2]) {
        stream.copy_out((&reservation, *offset), (&memory, START), PAGE).unwrap();
        stream.synchronize().unwrap();
        let mut read = [0];
        memory.read(Bytes(12345), &mut read).unwrap();
        assert_eq!(read, [byte], "at {offset:?}");
    }
    // Where what was taken away cannot be mapped again, the error hands it back; where it cannot be
    // opened again, it is closed. Nothing is lost either way.
    double.fail_nth("cuMemUnmap", 2, UNKNOWN);
    double.fail_nth("cuMemMap", 1, UNKNOWN);
    let mut refused = reservation.unmap(START, Bytes(PAGE.0 * 5)).unwrap_err();
    let (offset, chunk) = refused.taken.pop().expect("the first was taken away");
    assert_eq!((offset, refused.taken.len()), (START, 0));
    reservation.map(offset, chunk).unwrap();
    reservation.open(offset, PAGE).unwrap();
    double.fail_nth("cuMemUnmap", 2, UNKNOWN);
    double.fail_nth("cuMemSetAccess", 1, UNKNOWN);
    assert!(reservation.unmap(START, Bytes(PAGE.0 * 5)).unwrap_err().taken.is_empty());
    assert!(stream.fill((&reservation, START), 3, PAGE).is_err(), "closed");
    reservation.open(START, PAGE).unwrap();
    stream.fill((&reservation, START), 1, PAGE).unwrap();
    stream.synchronize().unwrap();
    let closed = stream.fill((&reservation, places[2]), 3, PAGE);
    assert!(closed.is_err(), "what was closed is closed still");
    assert_eq!(
        reservation.unmap(START, Bytes(PAGE.0 * 5)).unwrap().len(),
        3,
        "the next try succeeds"
    );
    drop((reservation, stream, memory, device));
    assert_nothing_is_left(*double, "an unmap that was undone");
}

fn a_driver_that_takes_nothing_back(_: Target) {
    let double = Double::take();
    for name in [
        "cuMemRelease",
        "cuMemUnmap",
        "cuMemAddressFree",
        "cuStreamDestroy_v2",
        "cuMemHostUnregister",
    ] {
        double.fail_always(name, UNKNOWN);
    }
    let device = Device::cuda(0).unwrap();
    let reservation = device.reserve(PAGE).unwrap();
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    drop((
        reservation,
        device.create(PAGE).unwrap(),
        device.stream().unwrap(),
        device.host_memory(PAGE).unwrap(),
    ));
    assert_eq!(
        device.leftovers(),
        4,
        "a reservation with its chunk, a chunk, a stream, host memory"
    );
    double.clear_faults();
    drop(device);
    assert_nothing_is_left(*double, "the device swept up when it went");
}

fn nvml_that_fails(_: Target) {
    let double = Double::take();
    let device = Device::cuda(0).unwrap();
    assert_eq!(device.usage().unwrap().source, Source::Nvml);
    double.fail_always("nvmlDeviceGetMemoryInfo_v2", NVML_UNKNOWN);
    let usage = device.usage().unwrap();
    assert_eq!(usage.source, Source::Driver, "the driver is asked where NVML fails");
    double.fail_always("cuMemGetInfo_v2", UNKNOWN);
    let error = device.usage().unwrap_err();
    assert!(error.to_string().contains("cuMemGetInfo_v2"), "{error}");
    double.clear_faults();
    let uuid = device.info().uuid.clone().unwrap();
    for name in ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses_v3"] {
        double.fail_always(name, NVML_UNKNOWN);
        let error = Nvml::load().unwrap().processes(&uuid).unwrap_err();
        assert!(matches!(error, Error::Nvml { .. }), "{error}");
        let error = processes::of(&device).unwrap_err();
        assert!(matches!(error, Error::Nvml { .. }), "{error}");
        double.clear_faults();
    }
    double.fail_always("nvmlInit_v2", NVML_UNKNOWN);
    let error = Nvml::load().map(drop).unwrap_err();
    assert!(matches!(error, Error::NoLibrary { .. }), "{error}");
}

fn memory_that_runs_out_midway(_: Target) {
    let double = Double::take();
    double.configure("oom_at=8MiB");
    let device = Device::cuda(0).unwrap();
    drop(device.create(Bytes::mib(6)).unwrap());
    let error = device.create(Bytes::mib(8)).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let text = error.to_string();
    assert!(text.contains("8.0 MiB requested") && text.contains("lowtide ps"), "{text}");
    drop(device);
    assert_nothing_is_left(*double, "out of memory");
}

// What can still be given back is; what cannot be is not tried again and again.
fn a_lost_context_is_survived(_: Target) {
    const LOST: i32 = 719;
    let double = Double::take();
    let device = Device::cuda(0).unwrap();
    let (reservation, stream) = (device.reserve(PAGE).unwrap(), device.stream().unwrap());
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    reservation.open(START, PAGE).unwrap();
    let memory = device.host_memory(PAGE).unwrap();
    stream.copy_out((&reservation, START), (&memory, START), PAGE).unwrap();
    for name in ["cuStreamSynchronize", "cuStreamDestroy_v2", "cuMemHostUnregister"] {
        double.fail_always(name, LOST);
    }
    let error = stream.synchronize().unwrap_err();
    assert!(error.is_context_lost() && error.to_string().contains("end this process"), "{error}");
    drop((stream, reservation, memory));
    assert_eq!(device.leftovers(), 0, "nothing is worth another try");
    let live = double.live();
    assert_eq!((live.reservations, live.handles, live.mappings), (0, 0, 0));
}

fn work_that_is_not_done_is_no_error(_: Target) {
    let double = Double::take();
    double.configure("late_us=60000000");
    let device = Device::cuda(0).unwrap();
    let (reservation, stream) = (device.reserve(PAGE).unwrap(), device.stream().unwrap());
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    reservation.open(START, PAGE).unwrap();
    stream.fill((&reservation, START), 1, PAGE).unwrap();
    assert!(!stream.has_passed().unwrap(), "it runs late, and asking does not hasten it");
    reservation.unmap(START, PAGE).unwrap_err();
    device.synchronize().unwrap();
    reservation.unmap(START, PAGE).expect_err("the stream was not asked yet");
    double.fail_nth("cuStreamQuery", 1, UNKNOWN);
    let error = stream.has_passed().unwrap_err();
    assert!(error.to_string().contains("cuStreamQuery"), "{error}");
    reservation.unmap(START, PAGE).expect_err("an error says nothing of the work");
    assert!(stream.has_passed().unwrap());
    assert_eq!(reservation.unmap(START, PAGE).unwrap().len(), 1);
    drop((stream, reservation, device));
    assert_nothing_is_left(*double, "work that ran late");
}

// The scenario calls `Device::synchronize` once. Everything else waits for a stream or an event: a
// wait for the whole context would end any capture in it.
fn only_synchronize_waits(_: Target) {
    let double = Double::take();
    let calls = calls_of(*double, || scenario().expect("nothing is made to fail"));
    let waits = calls.iter().filter(|(name, _)| name.contains("Synchronize"));
    let waits: BTreeMap<_, _> = waits.map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(waits.get("cuCtxSynchronize"), Some(&1), "{waits:?}");
    let others: Vec<_> = waits.into_keys().filter(|name| *name != "cuCtxSynchronize").collect();
    assert_eq!(others, ["cuEventSynchronize", "cuStreamSynchronize"]);
}

// Every call but those that make our context current, whether it succeeds or not.
fn calls_are_counted(_: Target) {
    let double = Double::take();
    let device = Device::cuda(0).unwrap();
    assert_eq!(device.calls(), 0, "opening it is not counted");
    double.reset_calls();
    let reservation = device.reserve(PAGE).unwrap();
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    double.fail_nth("cuMemSetAccess", 1, UNKNOWN);
    reservation.open(START, PAGE).unwrap_err();
    reservation.open(START, PAGE).unwrap();
    let (memory, stream) = (device.host_memory(PAGE).unwrap(), device.stream().unwrap());
    stream.copy_out((&reservation, START), (&memory, START), PAGE).unwrap();
    stream.wait(&stream.mark().unwrap()).unwrap();
    stream.digest((&reservation, START), PAGE, &Keys::from_seed(1)).unwrap().wait().unwrap();
    stream.has_passed().unwrap();
    device.synchronize().unwrap();
    drop((stream, reservation, memory));
    let around = [
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuThreadExchangeStreamCaptureMode",
        "cuGetErrorName",
    ];
    let calls = double.calls().into_iter();
    let made = calls.filter(|(name, _)| !around.contains(&name.as_str())).map(|(_, count)| count);
    assert_eq!(device.calls(), made.sum::<u64>());
    drop(device);
    assert_nothing_is_left(*double, "calls were counted");
}
