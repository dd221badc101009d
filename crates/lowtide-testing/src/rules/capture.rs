//! Captures: which calls are unsafe while a graph is captured, and what they cost.

use super::fixture::{
    CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, Fixture,
    ILLEGAL_STATE, PAGE, Rule, SUCCESS, made, pages_of_this_process,
};
use crate::raw::Properties;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;
const CAPTURING: u32 = 1;
const INVALIDATED: u32 = 2;

// What a call answered, what the capture is then, and what its end answered.
const REFUSED: (i32, u32, i32) = (CAPTURE_UNSUPPORTED, INVALIDATED, CAPTURE_INVALIDATED);
const ALLOWED: (i32, u32, i32) = (SUCCESS, CAPTURING, SUCCESS);

pub(super) const RULES: &[Rule] = &[
    ("unsafe_calls_invalidate_a_global_capture", unsafe_calls_invalidate),
    ("virtual_memory_calls_leave_a_capture_valid", virtual_memory_is_safe),
    ("a_capturing_stream_is_not_asked_or_waited_for", not_asked_or_waited_for),
    ("a_relaxed_thread_may_call_what_is_unsafe", a_relaxed_thread_may),
    ("a_captured_copy_runs_when_it_is_launched", runs_when_launched),
    ("a_graph_is_launched_after_its_source_is_gone", launched_after_its_source),
    ("freeing_pinned_memory_invalidates_a_capture", freeing_pinned_invalidates),
    ("unloading_a_module_invalidates_a_capture", unloading_invalidates),
    ("unsafe_calls_leave_a_relaxed_capture_valid", relaxed_stays_valid),
    ("work_on_another_stream_leaves_a_capture_valid", another_stream_is_safe),
    ("a_plain_copy_leaves_a_capture_valid", a_plain_copy_is_safe),
    ("work_on_an_invalidated_capture_is_refused", refused_once_invalidated),
    ("work_on_the_legacy_stream_is_refused_while_a_blocking_stream_captures", legacy_is_refused),
    ("work_on_the_legacy_stream_invalidates_the_capture_of_a_blocking_stream", legacy_invalidates),
    ("a_relaxed_capture_refuses_work_on_the_legacy_stream_too", relaxed_refuses_legacy),
    ("the_legacy_stream_is_not_captured", legacy_is_not_captured),
    ("a_capturing_stream_begins_no_other_capture", begins_no_other),
    ("a_capture_survives_the_beginning_of_another", survives_a_beginning),
    ("a_stream_that_does_not_capture_has_no_capture_to_end", nothing_to_end),
    ("a_capture_is_not_ended_by_another_thread", not_ended_by_another),
    ("a_capture_that_another_thread_tried_to_end_is_not_there_to_end", not_there_to_end),
    ("a_relaxed_capture_is_ended_by_any_thread", relaxed_is_ended_by_any),
    ("an_unsafe_call_of_another_thread_invalidates_a_global_capture", another_thread_invalidates),
    ("a_relaxed_thread_leaves_the_captures_of_others_valid", relaxed_thread_beside),
    ("a_thread_local_thread_leaves_the_captures_of_others_valid", thread_local_thread_beside),
    ("an_unsafe_call_of_another_thread_leaves_a_thread_local_capture_valid", local_stays_valid),
    ("an_unsafe_call_of_its_own_thread_invalidates_a_thread_local_capture", local_is_invalidated),
];

type Call<'a> = (&'static str, Box<dyn Fn(u64) -> i32 + 'a>);

// Begins a capture, makes a call, and says what became of both.
fn during(gpu: &Fixture, mode: u32, call: impl FnOnce(u64) -> i32) -> (i32, u32, i32) {
    during_on(gpu, gpu.stream(), mode, call)
}

fn during_on(
    gpu: &Fixture,
    stream: u64,
    mode: u32,
    call: impl FnOnce(u64) -> i32,
) -> (i32, u32, i32) {
    begin(gpu, stream, mode);
    let code = call(stream);
    let status = made(|status| gpu.raw.cuStreamIsCapturing(stream, status));
    (code, status, end(gpu, stream))
}

fn begin(gpu: &Fixture, stream: u64, mode: u32) {
    assert_eq!(gpu.raw.cuStreamBeginCapture_v2(stream, mode), SUCCESS);
}

fn end(gpu: &Fixture, stream: u64) -> i32 {
    gpu.raw.cuStreamEndCapture(stream, &mut 0)
}

// The mode that the thread had.
fn exchange(gpu: &Fixture, mut mode: u32) -> u32 {
    assert_eq!(gpu.raw.cuThreadExchangeStreamCaptureMode(&mut mode), SUCCESS);
    mode
}

fn unsafe_calls(gpu: &Fixture) -> Vec<Call<'_>> {
    let raw = &gpu.raw;
    let (plain, other, event) = (gpu.plain(PAGE), gpu.stream(), gpu.event());
    let host = pages_of_this_process(PAGE as usize);
    let registered = pages_of_this_process(PAGE as usize);
    assert_eq!(raw.cuMemHostRegister_v2(registered, PAGE, 1), SUCCESS);
    vec![
        ("cuMemAlloc", Box::new(|_| raw.cuMemAlloc_v2(&mut 0, PAGE))),
        ("cuMemFree", Box::new(move |_| raw.cuMemFree_v2(plain))),
        ("cuCtxSynchronize", Box::new(|_| raw.cuCtxSynchronize())),
        ("cuStreamSynchronize of another", Box::new(move |_| raw.cuStreamSynchronize(other))),
        ("cuStreamQuery of another", Box::new(move |_| raw.cuStreamQuery(other))),
        ("cuEventQuery", Box::new(move |_| raw.cuEventQuery(event))),
        ("cuEventSynchronize", Box::new(move |_| raw.cuEventSynchronize(event))),
        ("cuMemHostAlloc", Box::new(|_| raw.cuMemHostAlloc(&mut 0, PAGE, 0))),
        ("cuMemHostRegister", Box::new(move |_| raw.cuMemHostRegister_v2(host, PAGE, 1))),
        ("cuMemHostUnregister", Box::new(move |_| raw.cuMemHostUnregister(registered))),
    ]
}

fn unsafe_calls_invalidate(gpu: &Fixture) {
    for (name, call) in unsafe_calls(gpu) {
        assert_eq!(during(gpu, GLOBAL, call), REFUSED, "{name}");
    }
}

fn virtual_memory_is_safe(gpu: &Fixture) {
    let raw = &gpu.raw;
    let (at, handle) = (gpu.reserve(4), gpu.create(1));
    let calls: Vec<Call> = vec![
        ("cuMemAddressReserve", Box::new(|_| raw.cuMemAddressReserve(&mut 0, PAGE, 0, 0, 0))),
        ("cuMemCreate", Box::new(|_| raw.cuMemCreate(&mut 0, PAGE, &Properties::default(), 0))),
        ("cuMemMap", Box::new(move |_| gpu.map(at, 1, handle))),
        ("cuMemSetAccess", Box::new(move |_| gpu.open(at, 1))),
        ("cuMemUnmap", Box::new(move |_| gpu.unmap(at, 1))),
        ("cuMemRelease", Box::new(move |_| raw.cuMemRelease(handle))),
        ("cuMemGetInfo", Box::new(|_| raw.cuMemGetInfo_v2(&mut 0, &mut 0))),
        ("cuStreamCreate", Box::new(|_| raw.cuStreamCreate(&mut 0, 1))),
        ("cuEventCreate", Box::new(|_| raw.cuEventCreate(&mut 0, 0))),
    ];
    for (name, call) in &calls {
        for mode in [GLOBAL, RELAXED] {
            let (code, status, end) = during(gpu, mode, call);
            assert_eq!((status, end), (CAPTURING, SUCCESS), "{name}");
            if mode == GLOBAL {
                assert_eq!(code, SUCCESS, "{name}");
            }
        }
    }
}

fn not_asked_or_waited_for(gpu: &Fixture) {
    let raw = &gpu.raw;
    let calls: Vec<Call> = vec![
        ("cuStreamSynchronize", Box::new(|stream| raw.cuStreamSynchronize(stream))),
        ("cuStreamQuery", Box::new(|stream| raw.cuStreamQuery(stream))),
        ("cuStreamGetId", Box::new(|stream| raw.cuStreamGetId(stream, &mut 0))),
        ("cuCtxSynchronize", Box::new(|_| raw.cuCtxSynchronize())),
    ];
    for (name, call) in &calls {
        for mode in [GLOBAL, RELAXED] {
            assert_eq!(during(gpu, mode, call), REFUSED, "{name}");
        }
    }
}

fn unsafe_unless_relaxed(gpu: &Fixture) -> impl Iterator<Item = Call<'_>> {
    unsafe_calls(gpu).into_iter().filter(|(name, _)| *name != "cuCtxSynchronize")
}

fn a_relaxed_thread_may(gpu: &Fixture) {
    for (name, call) in unsafe_unless_relaxed(gpu) {
        let relaxed = |stream| {
            assert_eq!(exchange(gpu, RELAXED), GLOBAL, "every thread begins so");
            let code = call(stream);
            assert_eq!(exchange(gpu, GLOBAL), RELAXED);
            code
        };
        assert_eq!(during(gpu, GLOBAL, relaxed), ALLOWED, "{name}");
    }
}

fn relaxed_stays_valid(gpu: &Fixture) {
    for (name, call) in unsafe_unless_relaxed(gpu) {
        assert_eq!(during(gpu, RELAXED, call), ALLOWED, "{name}");
    }
}

// A graph that fills a page with twos, as it was captured.
fn captured_fill(gpu: &Fixture, at: u64, stream: u64) -> u64 {
    let mut graph = 0;
    begin(gpu, stream, RELAXED);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 2, PAGE, stream), SUCCESS);
    assert_eq!(gpu.raw.cuStreamEndCapture(stream, &mut graph), SUCCESS);
    graph
}

fn instantiated(gpu: &Fixture, graph: u64) -> u64 {
    made(|exec| gpu.raw.cuGraphInstantiateWithFlags(exec, graph, 0))
}

fn launch(gpu: &Fixture, exec: u64, stream: u64) {
    assert_eq!(gpu.raw.cuGraphLaunch(exec, stream), SUCCESS);
    assert_eq!(gpu.raw.cuStreamSynchronize(stream), SUCCESS);
}

fn runs_when_launched(gpu: &Fixture) {
    let ((at, _), stream) = (gpu.ready(1), gpu.stream());
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, PAGE, stream), SUCCESS);
    assert_eq!(gpu.raw.cuStreamSynchronize(stream), SUCCESS);
    let graph = captured_fill(gpu, at, stream);
    assert_eq!(gpu.byte(at), 1, "captured, not run");
    let exec = instantiated(gpu, graph);
    launch(gpu, exec, stream);
    assert_eq!(gpu.byte(at), 2);
    assert_eq!(gpu.raw.cuGraphExecDestroy(exec), SUCCESS);
    assert_eq!(gpu.raw.cuGraphDestroy(graph), SUCCESS);
}

fn launched_after_its_source(gpu: &Fixture) {
    let ((at, _), stream) = (gpu.ready(1), gpu.stream());
    let graph = captured_fill(gpu, at, stream);
    let exec = instantiated(gpu, graph);
    assert_eq!(gpu.raw.cuGraphDestroy(graph), SUCCESS);
    launch(gpu, exec, stream);
    assert_eq!(gpu.byte(at), 2);
}

fn freeing_pinned_invalidates(gpu: &Fixture) {
    let pinned = gpu.pinned(PAGE);
    assert_eq!(during(gpu, GLOBAL, |_| gpu.raw.cuMemFreeHost(pinned)), REFUSED);
}

fn unloading_invalidates(gpu: &Fixture) {
    let module = gpu.module();
    assert_eq!(during(gpu, GLOBAL, |_| gpu.raw.cuModuleUnload(module)), REFUSED);
}

fn another_stream_is_safe(gpu: &Fixture) {
    let ((at, _), other, event) = (gpu.ready(1), gpu.stream(), gpu.event());
    let fill = |_| gpu.raw.cuMemsetD8Async(at, 1, PAGE, other);
    assert_eq!(during(gpu, GLOBAL, fill), ALLOWED, "a fill");
    assert_eq!(during(gpu, GLOBAL, |_| gpu.raw.cuEventRecord(event, other)), ALLOWED, "an event");
}

fn a_plain_copy_is_safe(gpu: &Fixture) {
    let ((at, _), pinned) = (gpu.ready(1), gpu.pinned(PAGE));
    assert_eq!(during(gpu, GLOBAL, |_| gpu.raw.cuMemcpyDtoH_v2(pinned, at, PAGE)), ALLOWED);
}

fn refused_once_invalidated(gpu: &Fixture) {
    let ((at, _), stream) = (gpu.ready(1), gpu.stream());
    begin(gpu, stream, GLOBAL);
    assert_eq!(gpu.raw.cuStreamQuery(stream), CAPTURE_UNSUPPORTED);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, PAGE, stream), CAPTURE_INVALIDATED);
}

// Work on the legacy stream while a blocking stream captures.
fn legacy_during(gpu: &Fixture, mode: u32) -> (i32, u32, i32) {
    let (at, _) = gpu.ready(1);
    let fill = |_| gpu.raw.cuMemsetD8Async(at, 1, PAGE, 0);
    during_on(gpu, gpu.blocking_stream(), mode, fill)
}

fn legacy_is_refused(gpu: &Fixture) {
    assert_eq!(legacy_during(gpu, GLOBAL).0, CAPTURE_IMPLICIT);
}

fn legacy_invalidates(gpu: &Fixture) {
    let (_, status, end) = legacy_during(gpu, GLOBAL);
    assert_eq!((status, end), (INVALIDATED, CAPTURE_INVALIDATED));
}

fn relaxed_refuses_legacy(gpu: &Fixture) {
    assert_eq!(legacy_during(gpu, RELAXED).0, CAPTURE_IMPLICIT);
}

fn legacy_is_not_captured(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuStreamBeginCapture_v2(0, GLOBAL), CAPTURE_UNSUPPORTED);
}

fn begins_no_other(gpu: &Fixture) {
    let (code, ..) = during(gpu, GLOBAL, |stream| gpu.raw.cuStreamBeginCapture_v2(stream, GLOBAL));
    assert_eq!(code, ILLEGAL_STATE);
}

fn survives_a_beginning(gpu: &Fixture) {
    let (_, status, end) =
        during(gpu, GLOBAL, |stream| gpu.raw.cuStreamBeginCapture_v2(stream, GLOBAL));
    assert_eq!((status, end), (CAPTURING, SUCCESS));
}

fn nothing_to_end(gpu: &Fixture) {
    assert_eq!(end(gpu, gpu.stream()), ILLEGAL_STATE);
}

fn not_ended_by_another(gpu: &Fixture) {
    let stream = gpu.stream();
    begin(gpu, stream, GLOBAL);
    assert_eq!(gpu.elsewhere(|| end(gpu, stream)), CAPTURE_WRONG_THREAD);
}

fn not_there_to_end(gpu: &Fixture) {
    let stream = gpu.stream();
    begin(gpu, stream, GLOBAL);
    assert_eq!(gpu.elsewhere(|| end(gpu, stream)), CAPTURE_WRONG_THREAD);
    assert_eq!(end(gpu, stream), ILLEGAL_STATE);
}

fn relaxed_is_ended_by_any(gpu: &Fixture) {
    let stream = gpu.stream();
    begin(gpu, stream, RELAXED);
    assert_eq!(gpu.elsewhere(|| end(gpu, stream)), SUCCESS);
}

// An unsafe call of a thread in one mode, beside a capture of this thread in another.
fn beside(gpu: &Fixture, capture_mode: u32, thread_mode: u32) -> (i32, u32, i32) {
    let other = gpu.stream();
    let ask = || {
        exchange(gpu, thread_mode);
        gpu.raw.cuStreamQuery(other)
    };
    during(gpu, capture_mode, |_| gpu.elsewhere(ask))
}

fn another_thread_invalidates(gpu: &Fixture) {
    assert_eq!(beside(gpu, GLOBAL, GLOBAL), REFUSED);
}

fn relaxed_thread_beside(gpu: &Fixture) {
    assert_eq!(beside(gpu, GLOBAL, RELAXED), ALLOWED);
}

fn thread_local_thread_beside(gpu: &Fixture) {
    assert_eq!(beside(gpu, GLOBAL, THREAD_LOCAL), ALLOWED);
}

fn local_stays_valid(gpu: &Fixture) {
    assert_eq!(beside(gpu, THREAD_LOCAL, GLOBAL), ALLOWED);
}

fn local_is_invalidated(gpu: &Fixture) {
    let other = gpu.stream();
    assert_eq!(during(gpu, THREAD_LOCAL, |_| gpu.raw.cuStreamQuery(other)), REFUSED);
}
