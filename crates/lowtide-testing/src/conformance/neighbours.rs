//! Living beside other CUDA code in the process: its context stays current, its captures stay
//! valid, and what the driver says agrees with what NVML says.

use lowtide_device::nvml::Nvml;
use lowtide_device::{Bytes, Error};

use super::fixture::{NamedCase, PAGE, START, device, host_memory, only, pages, ready};
use crate::keys;
use crate::raw::Raw;
use crate::suite::Target;

pub(super) const CASES: &[NamedCase] = &[
    ("the_callers_context_is_restored", the_callers_context_is_restored),
    ("a_capture_stays_valid_beside_our_work", a_capture_stays_valid_beside_our_work),
    ("a_device_waits_for_the_work_of_others", a_device_waits_for_the_work_of_others),
    ("a_device_does_not_wait_during_a_capture", a_device_does_not_wait_during_a_capture),
    ("nvml_names_this_process", nvml_names_this_process),
];

// Everything a device does beside a capture, once: all but waiting for the whole context.
fn everything(target: Target) {
    let device = device(target);
    let (reservation, memory) = (ready(&device, pages(2)), host_memory(&device, pages(2)));
    drop(device.host_memory_here(PAGE).unwrap());
    let stream = device.stream().unwrap();
    stream.fill((&reservation, START), 1, pages(2)).unwrap();
    stream.copy_out((&reservation, START), (&memory, START), pages(2)).unwrap();
    let mark = stream.mark().unwrap();
    stream.copy_in((&memory, START), (&reservation, START), pages(2)).unwrap();
    stream.wait(&mark).unwrap();
    stream.has_passed().unwrap();
    stream.digest((&reservation, START), pages(2), keys::fixed()).unwrap().wait().unwrap();
    only(reservation.unmap(START, pages(2)).unwrap());
    device.usage().unwrap();
}

fn the_callers_context_is_restored(target: Target) {
    let raw = Raw::load();
    let current = || {
        let mut context = 0;
        assert_eq!(raw.cuCtxGetCurrent(&mut context), 0);
        context
    };
    assert_eq!(current(), 0, "a fresh thread has no context");
    everything(target);
    assert_eq!(current(), 0, "and has none afterwards");
    let mut own = 0;
    assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut own, 0), 0);
    assert_eq!(raw.cuCtxPushCurrent_v2(own), 0);
    everything(target);
    assert_eq!(current(), own);
    let mut popped = 0;
    assert_eq!(raw.cuCtxPopCurrent_v2(&mut popped), 0);
    assert_eq!(raw.cuCtxPopCurrent_v2(&mut popped), 201, "nothing of ours is left on the stack");
    assert_eq!(raw.cuDevicePrimaryCtxRelease_v2(0), 0);
}

// Does something while somebody else has a stream in the primary context, which is current.
fn beside_a_stream(work: impl FnOnce(&Raw, u64)) {
    let raw = Raw::load();
    let (mut context, mut stream) = (0, 0);
    assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
    assert_eq!(raw.cuCtxPushCurrent_v2(context), 0);
    assert_eq!(raw.cuStreamCreate(&mut stream, 1), 0);
    work(&raw, stream);
    assert_eq!(raw.cuStreamDestroy_v2(stream), 0);
    assert_eq!(raw.cuCtxPopCurrent_v2(&mut context), 0);
    assert_eq!(raw.cuDevicePrimaryCtxRelease_v2(0), 0);
}

// A global capture forbids other threads what most of our calls do; relaxed threads are exempt.
fn a_capture_stays_valid_beside_our_work(target: Target) {
    const GLOBAL: u32 = 0;
    beside_a_stream(|raw, stream| {
        assert_eq!(raw.cuStreamBeginCapture_v2(stream, GLOBAL), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| everything(target)).join().expect("our work beside a capture");
        });
        everything(target);
        let mut mode = GLOBAL;
        assert_eq!(raw.cuThreadExchangeStreamCaptureMode(&mut mode), 0);
        assert_eq!(mode, GLOBAL, "the thread's own mode is restored");
        let (mut status, mut graph) = (0, 0);
        assert_eq!(raw.cuStreamIsCapturing(stream, &mut status), 0);
        assert_eq!(status, 1, "still capturing");
        assert_eq!(raw.cuStreamEndCapture(stream, &mut graph), 0, "and valid");
        assert_eq!(raw.cuGraphDestroy(graph), 0);
    });
}

fn a_device_waits_for_the_work_of_others(target: Target) {
    let device = device(target);
    let (reservation, bytes) = (ready(&device, pages(64)), pages(64).0);
    beside_a_stream(|raw, stream| {
        for byte in 0..8 {
            assert_eq!(raw.cuMemsetD8Async(reservation.address().0, byte, bytes, stream), 0);
        }
        device.synchronize().unwrap();
        assert_eq!(raw.cuStreamQuery(stream), 0, "a stream of somebody else in the same context");
    });
}

// Unlike all else that we call, this wait is refused in every capture mode, and costs the capture.
fn a_device_does_not_wait_during_a_capture(target: Target) {
    const RELAXED: u32 = 2;
    let device = device(target);
    beside_a_stream(|raw, stream| {
        assert_eq!(raw.cuStreamBeginCapture_v2(stream, RELAXED), 0);
        let refused = device.synchronize().unwrap_err();
        assert!(
            matches!(refused, Error::Driver { call: "cuCtxSynchronize", code: 900, .. }),
            "{refused}"
        );
        let mut graph = 0;
        assert_eq!(raw.cuStreamEndCapture(stream, &mut graph), 901, "the capture is lost");
        device.synchronize().expect("the capture has ended");
    });
}

fn nvml_names_this_process(target: Target) {
    let device = device(target);
    let uuid = device.info().uuid.clone().unwrap();
    let _chunk = device.create(pages(32)).unwrap();
    let processes = Nvml::load().unwrap().processes(&uuid).unwrap();
    let own = processes.iter().find(|process| process.pid == std::process::id());
    let held = own.expect("this process is listed").used.unwrap_or(Bytes::ZERO);
    assert!(held >= pages(32), "{held} told, {} created", pages(32));
    assert!(device.info().page == PAGE);
}
