//! Copies, streams, events: refusals and order.

use super::fixture::{Fixture, INVALID_VALUE, NOT_FOUND, NOT_READY, PAGE, Rule, SUCCESS};
use crate::raw::first;

pub(super) const RULES: &[Rule] = &[
    ("a_copy_of_what_is_not_mapped_is_refused_at_once", refused_at_once),
    ("a_copy_may_cross_mappings_but_no_hole", may_cross_mappings),
    ("a_copy_of_nothing_succeeds", a_copy_of_nothing),
    ("stream_handles_are_recycled_and_ids_are_not", handles_are_recycled),
    ("a_destroyed_stream_finishes_its_work", finishes_its_work),
    ("the_legacy_stream_waits_for_blocking_streams", legacy_waits),
    ("blocking_streams_wait_for_the_legacy_stream", blocking_waits),
    ("the_legacy_stream_does_not_wait_for_non_blocking_streams", legacy_does_not_wait),
    ("non_blocking_streams_do_not_wait_for_the_legacy_stream", non_blocking_does_not_wait),
    ("an_event_that_was_not_recorded_is_done", not_recorded_is_done),
    ("an_event_is_done_when_the_work_before_it_is", done_with_the_work_before),
    ("a_function_that_is_not_in_the_module_is_not_found", not_in_the_module),
];

fn refused_at_once(gpu: &Fixture) {
    let (at, stream, host) = (gpu.reserve(2), gpu.stream(), gpu.pinned(4096));
    let refused = || {
        assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(host, at, 64, stream), INVALID_VALUE);
        assert_eq!(gpu.raw.cuMemcpyHtoDAsync_v2(at, host, 64, stream), INVALID_VALUE);
        assert_eq!(gpu.raw.cuMemcpyDtoH_v2(host, at, 64), INVALID_VALUE);
        assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, 64, stream), INVALID_VALUE);
    };
    refused();
    assert_eq!(gpu.map(at, 1, gpu.create(1)), SUCCESS);
    refused();
    assert_eq!(gpu.raw.cuStreamSynchronize(stream), SUCCESS, "the context lives");
    assert!(gpu.free_bytes() > 0);
}

fn may_cross_mappings(gpu: &Fixture) {
    let (at, stream, host) = (gpu.reserve(3), gpu.stream(), gpu.pinned(3 * PAGE));
    for page in [0, 1] {
        assert_eq!(gpu.map(at + page * PAGE, 1, gpu.create(1)), SUCCESS);
    }
    assert_eq!(gpu.open(at, 2), SUCCESS);
    assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(host, at, 2 * PAGE, stream), SUCCESS);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, 2 * PAGE, stream), SUCCESS);
    assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(host, at, 3 * PAGE, stream), INVALID_VALUE);
    assert_eq!(gpu.raw.cuStreamSynchronize(stream), SUCCESS);
}

fn handles_are_recycled(gpu: &Fixture) {
    let mut seen = std::collections::HashMap::new();
    let mut ids = std::collections::HashSet::new();
    for _ in 0..64 {
        let (stream, mut id) = (gpu.stream(), 0);
        assert_eq!(gpu.raw.cuStreamGetId(stream, &mut id), SUCCESS);
        assert!(ids.insert(id), "an id came back");
        *seen.entry(stream).or_insert(0) += 1;
        assert_eq!(gpu.raw.cuStreamDestroy_v2(stream), SUCCESS);
    }
    assert!(seen.len() < 64, "no handle came back");
}

fn a_copy_of_nothing(gpu: &Fixture) {
    let (at, host) = (gpu.reserve(1), gpu.pinned(PAGE));
    assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(host, at, 0, gpu.stream()), SUCCESS);
}

fn finishes_its_work(gpu: &Fixture) {
    let ((at, _), stream) = (gpu.ready(1), gpu.stream());
    gpu.keep_busy(stream);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 5, PAGE, stream), SUCCESS);
    assert_eq!(gpu.raw.cuStreamDestroy_v2(stream), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSynchronize(), SUCCESS);
    assert_eq!(gpu.byte(at), 5);
}

const LEGACY: u64 = 0;

// What the first stream says when a short work on the second is done.
fn beside(gpu: &Fixture, first: u64, second: u64) -> i32 {
    let (at, _) = gpu.ready(1);
    gpu.keep_busy(first);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, 64, second), SUCCESS);
    assert_eq!(gpu.raw.cuStreamSynchronize(second), SUCCESS);
    gpu.raw.cuStreamQuery(first)
}

fn legacy_waits(gpu: &Fixture) {
    assert_eq!(beside(gpu, gpu.blocking_stream(), LEGACY), SUCCESS);
}

fn blocking_waits(gpu: &Fixture) {
    assert_eq!(beside(gpu, LEGACY, gpu.blocking_stream()), SUCCESS);
}

fn legacy_does_not_wait(gpu: &Fixture) {
    assert_eq!(beside(gpu, gpu.stream(), LEGACY), NOT_READY);
}

fn non_blocking_does_not_wait(gpu: &Fixture) {
    assert_eq!(beside(gpu, LEGACY, gpu.stream()), NOT_READY);
}

fn not_recorded_is_done(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuEventQuery(gpu.event()), SUCCESS);
}

fn done_with_the_work_before(gpu: &Fixture) {
    let (stream, event) = (gpu.stream(), gpu.event());
    gpu.keep_busy(stream);
    assert_eq!(gpu.raw.cuEventRecord(event, stream), SUCCESS);
    assert_eq!(gpu.raw.cuEventQuery(event), NOT_READY);
    assert_eq!(gpu.raw.cuEventSynchronize(event), SUCCESS);
    assert_eq!(gpu.raw.cuStreamQuery(stream), SUCCESS);
}

fn not_in_the_module(gpu: &Fixture) {
    let name = first(c"lowtide_absent");
    assert_eq!(gpu.raw.cuModuleGetFunction(&mut 0, gpu.module(), name), NOT_FOUND);
}
