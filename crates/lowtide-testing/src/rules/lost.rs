//! What costs a context, and what a lost one still does.

use super::{
    BUSY_BYTES, ILLEGAL_ADDRESS, LAUNCH_FAILED, PAGE, Rule, SUCCESS, World, pages_of_this_process,
};

pub(super) const RULES: &[Rule] = &[
    ("an_unmap_does_not_wait_for_work_and_costs_the_context", unmap_does_not_wait),
    ("a_kernel_that_touches_what_is_not_mapped_costs_the_context", kernel_costs_the_context),
    ("a_lost_context_frees_no_plain_memory", frees_no_plain),
    ("a_lost_context_frees_no_pinned_memory", frees_no_pinned),
    ("a_lost_context_unregisters_no_host_memory", unregisters_nothing),
    ("a_lost_context_destroys_no_stream", destroys_no_stream),
    ("a_lost_context_destroys_no_event", destroys_no_event),
    ("a_lost_context_unloads_no_module", unloads_no_module),
    ("after_a_lost_context_there_is_no_other", there_is_no_other),
];

// The cheapest way to lose one: memory that goes under a copy. Gives the memory's handle.
fn lose(world: &World) -> u64 {
    const PAGES: u64 = BUSY_BYTES / PAGE;
    let ((at, handle), stream, host) =
        (world.ready(PAGES), world.stream(), world.pinned(BUSY_BYTES));
    world.copy_for_long(host, at, stream);
    assert_eq!(world.unmap(at, PAGES), SUCCESS);
    assert_eq!(world.raw.cuStreamSynchronize(stream), LAUNCH_FAILED);
    handle
}

fn unmap_does_not_wait(world: &World) {
    let handle = lose(world);
    lost(world, LAUNCH_FAILED);
    assert_eq!(world.raw.cuMemRelease(handle), SUCCESS, "memory can still be given back");
}

fn kernel_costs_the_context(world: &World) {
    let ((at, handle), bare) = (world.ready(1), world.reserve(1));
    // The one page listed is not mapped.
    assert_eq!(world.raw.cuMemcpyHtoD_v2(at, (&raw const bare).addr() as u64, 8), SUCCESS);
    assert_eq!(world.launch_digest(world.digest(), at, 1), SUCCESS, "only the GPU can tell");
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

fn frees_no_plain(world: &World) {
    let plain = world.plain(PAGE);
    lose(world);
    assert_eq!(world.raw.cuMemFree_v2(plain), LAUNCH_FAILED);
}

fn frees_no_pinned(world: &World) {
    let pinned = world.pinned(PAGE);
    lose(world);
    assert_eq!(world.raw.cuMemFreeHost(pinned), LAUNCH_FAILED);
}

fn unregisters_nothing(world: &World) {
    let host = pages_of_this_process(PAGE as usize);
    assert_eq!(world.raw.cuMemHostRegister_v2(host, PAGE, 1), SUCCESS);
    lose(world);
    assert_eq!(world.raw.cuMemHostUnregister(host), LAUNCH_FAILED);
}

fn destroys_no_stream(world: &World) {
    let stream = world.stream();
    lose(world);
    assert_eq!(world.raw.cuStreamDestroy_v2(stream), LAUNCH_FAILED);
}

fn destroys_no_event(world: &World) {
    let event = world.event();
    lose(world);
    assert_eq!(world.raw.cuEventDestroy_v2(event), LAUNCH_FAILED);
}

fn unloads_no_module(world: &World) {
    let module = world.module();
    lose(world);
    assert_eq!(world.raw.cuModuleUnload(module), LAUNCH_FAILED);
}

fn there_is_no_other(world: &World) {
    lose(world);
    assert_eq!(world.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
    assert_eq!(world.raw.cuDevicePrimaryCtxRetain(&mut 0, 0), LAUNCH_FAILED);
}
