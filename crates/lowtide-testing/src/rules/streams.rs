//! Copies, streams, events: what is refused, and what comes after what.

use super::{INVALID_VALUE, NOT_FOUND, NOT_READY, PAGE, Rule, SUCCESS, World};
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

fn refused_at_once(world: &World) {
    let (at, stream, host) = (world.reserve(2), world.stream(), world.pinned(4096));
    let refused = || {
        assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, 64, stream), INVALID_VALUE);
        assert_eq!(world.raw.cuMemcpyHtoDAsync_v2(at, host, 64, stream), INVALID_VALUE);
        assert_eq!(world.raw.cuMemcpyDtoH_v2(host, at, 64), INVALID_VALUE);
        assert_eq!(world.raw.cuMemsetD8Async(at, 1, 64, stream), INVALID_VALUE);
    };
    refused();
    assert_eq!(world.map(at, 1, world.create(1)), SUCCESS);
    refused();
    assert_eq!(world.raw.cuStreamSynchronize(stream), SUCCESS, "the context lives");
    assert!(world.free_bytes() > 0);
}

fn may_cross_mappings(world: &World) {
    let (at, stream, host) = (world.reserve(3), world.stream(), world.pinned(3 * PAGE));
    for page in [0, 1] {
        assert_eq!(world.map(at + page * PAGE, 1, world.create(1)), SUCCESS);
    }
    assert_eq!(world.open(at, 2), SUCCESS);
    assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, 2 * PAGE, stream), SUCCESS);
    assert_eq!(world.raw.cuMemsetD8Async(at, 1, 2 * PAGE, stream), SUCCESS);
    assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, 3 * PAGE, stream), INVALID_VALUE);
    assert_eq!(world.raw.cuStreamSynchronize(stream), SUCCESS);
}

fn handles_are_recycled(world: &World) {
    let mut seen = std::collections::HashMap::new();
    let mut ids = std::collections::HashSet::new();
    for _ in 0..64 {
        let (stream, mut id) = (world.stream(), 0);
        assert_eq!(world.raw.cuStreamGetId(stream, &mut id), SUCCESS);
        assert!(ids.insert(id), "an id came back");
        *seen.entry(stream).or_insert(0) += 1;
        assert_eq!(world.raw.cuStreamDestroy_v2(stream), SUCCESS);
    }
    assert!(seen.len() < 64, "no handle came back");
}

fn a_copy_of_nothing(world: &World) {
    let (at, host) = (world.reserve(1), world.pinned(PAGE));
    assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, 0, world.stream()), SUCCESS);
}

fn finishes_its_work(world: &World) {
    let ((at, _), stream) = (world.ready(1), world.stream());
    world.keep_busy(stream);
    assert_eq!(world.raw.cuMemsetD8Async(at, 5, PAGE, stream), SUCCESS);
    assert_eq!(world.raw.cuStreamDestroy_v2(stream), SUCCESS);
    assert_eq!(world.raw.cuCtxSynchronize(), SUCCESS);
    assert_eq!(world.byte(at), 5);
}

const LEGACY: u64 = 0;

// What the first stream says when a short work on the second is done.
fn beside(world: &World, first: u64, second: u64) -> i32 {
    let (at, _) = world.ready(1);
    world.keep_busy(first);
    assert_eq!(world.raw.cuMemsetD8Async(at, 1, 64, second), SUCCESS);
    assert_eq!(world.raw.cuStreamSynchronize(second), SUCCESS);
    world.raw.cuStreamQuery(first)
}

fn legacy_waits(world: &World) {
    assert_eq!(beside(world, world.blocking_stream(), LEGACY), SUCCESS);
}

fn blocking_waits(world: &World) {
    assert_eq!(beside(world, LEGACY, world.blocking_stream()), SUCCESS);
}

fn legacy_does_not_wait(world: &World) {
    assert_eq!(beside(world, world.stream(), LEGACY), NOT_READY);
}

fn non_blocking_does_not_wait(world: &World) {
    assert_eq!(beside(world, LEGACY, world.stream()), NOT_READY);
}

fn not_recorded_is_done(world: &World) {
    assert_eq!(world.raw.cuEventQuery(world.event()), SUCCESS);
}

fn done_with_the_work_before(world: &World) {
    let (stream, event) = (world.stream(), world.event());
    world.keep_busy(stream);
    assert_eq!(world.raw.cuEventRecord(event, stream), SUCCESS);
    assert_eq!(world.raw.cuEventQuery(event), NOT_READY);
    assert_eq!(world.raw.cuEventSynchronize(event), SUCCESS);
    assert_eq!(world.raw.cuStreamQuery(stream), SUCCESS);
}

fn not_in_the_module(world: &World) {
    let name = first(c"lowtide_absent");
    assert_eq!(world.raw.cuModuleGetFunction(&mut 0, world.module(), name), NOT_FOUND);
}
