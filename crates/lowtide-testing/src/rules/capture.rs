//! Captures: which calls are unsafe while a graph is captured, and what they cost.

use super::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, PAGE, Rule, SUCCESS, World, pages_of_this_process,
};
use crate::raw::Properties;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;
const CAPTURING: u32 = 1;
const INVALIDATED: u32 = 2;

pub(super) const RULES: &[Rule] = &[
    ("unsafe_calls_invalidate_a_global_capture", unsafe_calls_invalidate),
    ("virtual_memory_calls_leave_a_capture_valid", virtual_memory_is_safe),
    ("a_capturing_stream_is_not_asked_or_waited_for", not_asked_or_waited_for),
    ("a_relaxed_thread_may_call_what_is_unsafe", a_relaxed_thread_may),
    ("a_captured_copy_runs_when_it_is_launched", runs_when_launched),
];

type Call<'a> = (&'static str, Box<dyn Fn(u64) -> i32 + 'a>);

// Begins a capture, makes a call, and says what became of both.
fn during(world: &World, mode: u32, call: &Call) -> (i32, u32, i32) {
    let stream = world.stream();
    assert_eq!(world.raw.cuStreamBeginCapture_v2(stream, mode), SUCCESS);
    let code = call.1(stream);
    let (mut status, mut graph) = (0, 0);
    assert_eq!(world.raw.cuStreamIsCapturing(stream, &mut status), SUCCESS);
    (code, status, world.raw.cuStreamEndCapture(stream, &mut graph))
}

fn unsafe_calls(world: &World) -> Vec<Call<'_>> {
    let raw = &world.raw;
    let (plain, other, event) = (world.plain(PAGE), world.stream(), world.event());
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

fn unsafe_calls_invalidate(world: &World) {
    for call in &unsafe_calls(world) {
        let expected = (CAPTURE_UNSUPPORTED, INVALIDATED, CAPTURE_INVALIDATED);
        assert_eq!(during(world, GLOBAL, call), expected, "{}", call.0);
    }
}

fn virtual_memory_is_safe(world: &World) {
    let raw = &world.raw;
    let (at, handle) = (world.reserve(4), world.create(1));
    let calls: Vec<Call> = vec![
        ("cuMemAddressReserve", Box::new(|_| raw.cuMemAddressReserve(&mut 0, PAGE, 0, 0, 0))),
        ("cuMemCreate", Box::new(|_| raw.cuMemCreate(&mut 0, PAGE, &Properties::default(), 0))),
        ("cuMemMap", Box::new(move |_| world.map(at, 1, handle))),
        ("cuMemSetAccess", Box::new(move |_| world.open(at, 1))),
        ("cuMemUnmap", Box::new(move |_| world.unmap(at, 1))),
        ("cuMemRelease", Box::new(move |_| raw.cuMemRelease(handle))),
        ("cuMemGetInfo", Box::new(|_| raw.cuMemGetInfo_v2(&mut 0, &mut 0))),
        ("cuStreamCreate", Box::new(|_| raw.cuStreamCreate(&mut 0, 1))),
        ("cuEventCreate", Box::new(|_| raw.cuEventCreate(&mut 0, 0))),
    ];
    for call in &calls {
        for mode in [GLOBAL, RELAXED] {
            let (code, status, end) = during(world, mode, call);
            assert_eq!((status, end), (CAPTURING, SUCCESS), "{}", call.0);
            if mode == GLOBAL {
                assert_eq!(code, SUCCESS, "{}", call.0);
            }
        }
    }
}

fn not_asked_or_waited_for(world: &World) {
    let raw = &world.raw;
    let calls: Vec<Call> = vec![
        ("cuStreamSynchronize", Box::new(|stream| raw.cuStreamSynchronize(stream))),
        ("cuStreamQuery", Box::new(|stream| raw.cuStreamQuery(stream))),
        ("cuStreamGetId", Box::new(|stream| raw.cuStreamGetId(stream, &mut 0))),
        ("cuCtxSynchronize", Box::new(|_| raw.cuCtxSynchronize())),
    ];
    for call in &calls {
        for mode in [GLOBAL, RELAXED] {
            let expected = (CAPTURE_UNSUPPORTED, INVALIDATED, CAPTURE_INVALIDATED);
            assert_eq!(during(world, mode, call), expected, "{}", call.0);
        }
    }
}

// Both ways: the thread that captures, and another one.
fn a_relaxed_thread_may(world: &World) {
    let exchange = |mode: u32| {
        let mut mode = mode;
        assert_eq!(world.raw.cuThreadExchangeStreamCaptureMode(&mut mode), SUCCESS);
        mode
    };
    for (name, call) in
        unsafe_calls(world).into_iter().filter(|(name, _)| *name != "cuCtxSynchronize")
    {
        let relaxed: Call = (
            name,
            Box::new(|stream| {
                assert_eq!(exchange(RELAXED), GLOBAL, "every thread begins so");
                let code = call(stream);
                assert_eq!(exchange(GLOBAL), RELAXED);
                code
            }),
        );
        assert_eq!(during(world, GLOBAL, &relaxed), (SUCCESS, CAPTURING, SUCCESS), "{name}");
    }
}

fn runs_when_launched(world: &World) {
    let ((at, _), host, stream) = (world.ready(1), world.pinned(PAGE), world.stream());
    let read = || {
        assert_eq!(world.raw.cuMemcpyDtoH_v2(host, at, 1), SUCCESS);
        let byte = std::ptr::with_exposed_provenance::<u8>(host as usize);
        #[allow(unsafe_code, reason = "reads the pinned memory of this rule")]
        // SAFETY: pinned memory of this process, and the copy into it is done.
        unsafe {
            byte.read_volatile()
        }
    };
    assert_eq!(world.raw.cuMemsetD8Async(at, 1, PAGE, stream), SUCCESS);
    assert_eq!(world.raw.cuStreamSynchronize(stream), SUCCESS);
    assert_eq!(world.raw.cuStreamBeginCapture_v2(stream, RELAXED), SUCCESS);
    assert_eq!(world.raw.cuMemsetD8Async(at, 2, PAGE, stream), SUCCESS);
    let (mut graph, mut exec) = (0, 0);
    assert_eq!(world.raw.cuStreamEndCapture(stream, &mut graph), SUCCESS);
    assert_eq!(read(), 1, "captured, not run");
    assert_eq!(world.raw.cuGraphInstantiateWithFlags(&mut exec, graph, 0), SUCCESS);
    assert_eq!(world.raw.cuGraphLaunch(exec, stream), SUCCESS);
    assert_eq!(world.raw.cuStreamSynchronize(stream), SUCCESS);
    assert_eq!(read(), 2);
    assert_eq!(world.raw.cuGraphExecDestroy(exec), SUCCESS);
    assert_eq!(world.raw.cuGraphDestroy(graph), SUCCESS);
}
