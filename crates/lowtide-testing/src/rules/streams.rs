//! Copies, streams, kernels, and what becomes of work whose memory goes.

use super::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, ILLEGAL_ADDRESS, INVALID_VALUE,
    LAUNCH_FAILED, PAGE, Rule, SUCCESS, World, pages_of_this_process,
};
use crate::raw::first;

pub(super) const RULES: &[Rule] = &[
    ("a_copy_of_what_is_not_mapped_is_refused_at_once", refused_at_once),
    ("a_copy_may_cross_mappings_but_no_hole", may_cross_mappings),
    ("an_unmap_does_not_wait_for_work_and_costs_the_context", unmap_does_not_wait),
    ("a_kernel_that_touches_what_is_not_mapped_costs_the_context", kernel_costs_the_context),
    ("a_copy_does_not_cross_registrations", does_not_cross_registrations),
    ("host_memory_is_registered_once_and_by_its_base", registered_once),
    ("stream_handles_are_recycled_and_ids_are_not", handles_are_recycled),
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

fn unmap_does_not_wait(world: &World) {
    const PAGES: u64 = 16;
    let ((at, handle), stream, host) =
        (world.ready(PAGES), world.stream(), world.pinned(PAGES * PAGE));
    for _ in 0..64 {
        assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, PAGES * PAGE, stream), SUCCESS);
    }
    assert_eq!(world.unmap(at, PAGES), SUCCESS);
    assert_eq!(world.raw.cuStreamSynchronize(stream), LAUNCH_FAILED);
    lost(world, LAUNCH_FAILED);
    assert_eq!(world.raw.cuMemRelease(handle), SUCCESS, "memory can still be given back");
}

fn kernel_costs_the_context(world: &World) {
    let image = concat!(include_str!("../../../lowtide-device/kernels/digest.ptx"), "\0");
    let (mut module, mut function) = (0, 0);
    assert_eq!(world.raw.cuModuleLoadData(&mut module, &image.as_bytes()[0]), SUCCESS);
    assert_eq!(
        world.raw.cuModuleGetFunction(&mut function, module, first(c"lowtide_digest")),
        SUCCESS
    );
    let ((at, handle), bare) = (world.ready(1), world.reserve(1));
    // The list of pages and the digests lie on the device; the one page listed is not mapped.
    assert_eq!(world.raw.cuMemcpyHtoD_v2(at, (&raw const bare).addr() as u64, 8), SUCCESS);
    let (list, out, count, keys) = (at, at + 4096, 1u64, *crate::keys());
    let mut parameters = [
        (&raw const list).addr(),
        (&raw const out).addr(),
        (&raw const count).addr(),
        (&raw const keys).addr(),
    ]
    .map(|pointer| pointer as u64);
    let launched = world.raw.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, 0, &mut parameters, 0);
    assert_eq!(launched, SUCCESS, "only the GPU can tell");
    assert_eq!(world.raw.cuCtxSynchronize(), ILLEGAL_ADDRESS);
    lost(world, ILLEGAL_ADDRESS);
    assert_eq!(world.unmap(at, 1), SUCCESS);
    assert_eq!(world.raw.cuMemRelease(handle), SUCCESS, "memory can still be given back");
}

// A lost context answers everything with what it was lost to.
fn lost(world: &World, code: i32) {
    let (mut free, mut total, mut stream) = (0, 0, 0);
    assert_eq!(world.raw.cuMemGetInfo_v2(&mut free, &mut total), code);
    assert_eq!(world.raw.cuStreamCreate(&mut stream, 1), code);
    assert_eq!(world.raw.cuCtxSynchronize(), code);
    assert_eq!(world.raw.cuCtxPushCurrent_v2(world.context), SUCCESS);
}

fn does_not_cross_registrations(world: &World) {
    let (host, (at, _), stream) =
        (pages_of_this_process(4 * PAGE as usize), world.ready(2), world.stream());
    for part in [host, host + 2 * PAGE] {
        assert_eq!(world.raw.cuMemHostRegister_v2(part, 2 * PAGE, 1), SUCCESS);
    }
    let border = host + PAGE;
    assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(border, at, 2 * PAGE, stream), INVALID_VALUE);
    assert_eq!(world.raw.cuMemcpyHtoDAsync_v2(at, border, 2 * PAGE, stream), INVALID_VALUE);
    assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, 2 * PAGE, stream), SUCCESS);
    assert_eq!(world.raw.cuStreamSynchronize(stream), SUCCESS);
}

fn registered_once(world: &World) {
    let host = pages_of_this_process(4 * PAGE as usize);
    assert_eq!(world.raw.cuMemHostRegister_v2(host, 2 * PAGE, 1), SUCCESS);
    assert_eq!(world.raw.cuMemHostRegister_v2(host, 2 * PAGE, 1), HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(
        world.raw.cuMemHostRegister_v2(host + PAGE, 2 * PAGE, 1),
        HOST_MEMORY_ALREADY_REGISTERED
    );
    assert_eq!(world.raw.cuMemHostUnregister(host + 2 * PAGE), HOST_MEMORY_NOT_REGISTERED);
    assert_eq!(world.raw.cuMemHostUnregister(host), SUCCESS);
    assert_eq!(world.raw.cuMemHostUnregister(host), HOST_MEMORY_NOT_REGISTERED);
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
