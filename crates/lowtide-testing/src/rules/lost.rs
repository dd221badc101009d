//! What costs a context, and what a lost one still does.

use super::fixture::{
    BUSY_BYTES, Fixture, ILLEGAL_ADDRESS, LAUNCH_FAILED, PAGE, Rule, SUCCESS, pages_of_this_process,
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
fn lose(gpu: &Fixture) -> u64 {
    const PAGES: u64 = BUSY_BYTES / PAGE;
    let ((at, handle), stream, host) = (gpu.ready(PAGES), gpu.stream(), gpu.pinned(BUSY_BYTES));
    gpu.copy_for_long(host, at, stream);
    assert_eq!(gpu.unmap(at, PAGES), SUCCESS);
    assert_eq!(gpu.raw.cuStreamSynchronize(stream), LAUNCH_FAILED);
    handle
}

fn unmap_does_not_wait(gpu: &Fixture) {
    let handle = lose(gpu);
    lost(gpu, LAUNCH_FAILED);
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS, "memory can still be given back");
}

fn kernel_costs_the_context(gpu: &Fixture) {
    let ((at, handle), bare) = (gpu.ready(1), gpu.reserve(1));
    // The one page listed is not mapped.
    assert_eq!(gpu.raw.cuMemcpyHtoD_v2(at, (&raw const bare).addr() as u64, 8), SUCCESS);
    assert_eq!(gpu.launch_digest(gpu.digest(), at, 1), SUCCESS, "only the GPU can tell");
    assert_eq!(gpu.raw.cuCtxSynchronize(), ILLEGAL_ADDRESS);
    lost(gpu, ILLEGAL_ADDRESS);
    assert_eq!(gpu.unmap(at, 1), SUCCESS);
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS, "memory can still be given back");
}

// A lost context answers everything with what it was lost to.
fn lost(gpu: &Fixture, code: i32) {
    let (mut free, mut total, mut stream) = (0, 0, 0);
    assert_eq!(gpu.raw.cuMemGetInfo_v2(&mut free, &mut total), code);
    assert_eq!(gpu.raw.cuStreamCreate(&mut stream, 1), code);
    assert_eq!(gpu.raw.cuCtxSynchronize(), code);
    assert_eq!(gpu.raw.cuCtxPushCurrent_v2(gpu.context), SUCCESS);
}

fn frees_no_plain(gpu: &Fixture) {
    let plain = gpu.plain(PAGE);
    lose(gpu);
    assert_eq!(gpu.raw.cuMemFree_v2(plain), LAUNCH_FAILED);
}

fn frees_no_pinned(gpu: &Fixture) {
    let pinned = gpu.pinned(PAGE);
    lose(gpu);
    assert_eq!(gpu.raw.cuMemFreeHost(pinned), LAUNCH_FAILED);
}

fn unregisters_nothing(gpu: &Fixture) {
    let host = pages_of_this_process(PAGE as usize);
    assert_eq!(gpu.raw.cuMemHostRegister_v2(host, PAGE, 1), SUCCESS);
    lose(gpu);
    assert_eq!(gpu.raw.cuMemHostUnregister(host), LAUNCH_FAILED);
}

fn destroys_no_stream(gpu: &Fixture) {
    let stream = gpu.stream();
    lose(gpu);
    assert_eq!(gpu.raw.cuStreamDestroy_v2(stream), LAUNCH_FAILED);
}

fn destroys_no_event(gpu: &Fixture) {
    let event = gpu.event();
    lose(gpu);
    assert_eq!(gpu.raw.cuEventDestroy_v2(event), LAUNCH_FAILED);
}

fn unloads_no_module(gpu: &Fixture) {
    let module = gpu.module();
    lose(gpu);
    assert_eq!(gpu.raw.cuModuleUnload(module), LAUNCH_FAILED);
}

fn there_is_no_other(gpu: &Fixture) {
    lose(gpu);
    assert_eq!(gpu.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
    assert_eq!(gpu.raw.cuDevicePrimaryCtxRetain(&mut 0, 0), LAUNCH_FAILED);
}
