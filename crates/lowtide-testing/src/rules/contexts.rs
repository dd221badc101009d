//! Contexts: a stack per thread, and which calls need one.

use super::fixture::{CONTEXT_IS_DESTROYED, Fixture, INVALID_CONTEXT, PAGE, Rule, SUCCESS, made};
use crate::raw::{Access, Properties};

pub(super) const RULES: &[Rule] = &[
    ("the_stack_of_contexts_is_the_threads_own", the_threads_own),
    ("virtual_memory_needs_no_context_and_the_rest_does", needs_no_context),
    ("the_primary_context_is_counted", the_primary_context_is_counted),
    ("setting_a_context_replaces_the_top_of_the_stack", setting_replaces_the_top),
    ("setting_no_context_takes_the_top_off_the_stack", setting_none_takes_the_top_off),
    ("who_has_a_released_context_is_told_that_it_is_destroyed", told_that_it_is_destroyed),
    ("a_released_context_can_still_be_pushed", can_still_be_pushed),
    ("virtual_memory_outlives_the_context", virtual_memory_outlives),
    ("plain_memory_goes_with_the_context", plain_memory_goes),
    ("a_created_context_is_current_and_not_the_primary_one", a_created_context_is_current),
    ("a_context_names_its_device", a_context_names_its_device),
    ("a_destroyed_context_is_taken_off_the_stack", a_destroyed_context_is_taken_off),
    ("a_created_context_leaves_the_primary_one_as_it_is", leaves_the_primary_one),
];

fn the_threads_own(gpu: &Fixture) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut context = 1;
            assert_eq!(gpu.raw.cuCtxGetCurrent(&mut context), SUCCESS);
            assert_eq!(context, 0, "a new thread has none");
            assert_eq!(gpu.raw.cuCtxPopCurrent_v2(&mut context), INVALID_CONTEXT);
        });
    });
    let context = made(|context| gpu.raw.cuCtxGetCurrent(context));
    assert_eq!(context, gpu.context);
}

fn needs_no_context(gpu: &Fixture) {
    let (mut at, mut handle, mut stream, mut other) = (0, 0, 0, 0);
    assert_eq!(gpu.raw.cuMemAlloc_v2(&mut at, PAGE), SUCCESS);
    assert_eq!(gpu.raw.cuCtxPopCurrent_v2(&mut 0), SUCCESS);
    assert_eq!(gpu.raw.cuMemGetAddressRange_v2(&mut 0, &mut 0, at), INVALID_CONTEXT);
    assert_eq!(gpu.raw.cuMemFree_v2(at), SUCCESS, "the driver knows whose it is");
    assert_eq!(gpu.raw.cuMemAddressReserve(&mut at, PAGE, 0, 0, 0), SUCCESS);
    assert_eq!(gpu.raw.cuMemCreate(&mut handle, PAGE, &Properties::default(), 0), SUCCESS);
    assert_eq!(gpu.raw.cuMemMap(at, PAGE, 0, handle, 0), SUCCESS);
    assert_eq!(gpu.raw.cuMemSetAccess(at, PAGE, &Access::READ_WRITE, 1), SUCCESS);
    assert_eq!(gpu.raw.cuMemUnmap(at, PAGE), SUCCESS);
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS);
    assert_eq!(gpu.raw.cuMemAddressFree(at, PAGE), SUCCESS);
    assert_eq!(gpu.raw.cuMemAlloc_v2(&mut at, PAGE), INVALID_CONTEXT);
    assert_eq!(gpu.raw.cuStreamCreate(&mut stream, 1), INVALID_CONTEXT);
    assert_eq!(gpu.raw.cuMemGetInfo_v2(&mut at, &mut other), INVALID_CONTEXT);
    assert_eq!(gpu.raw.cuMemHostAlloc(&mut at, PAGE, 0), INVALID_CONTEXT);
    assert_eq!(gpu.raw.cuCtxSynchronize(), INVALID_CONTEXT);
}

fn the_primary_context_is_counted(gpu: &Fixture) {
    let (mut context, mut flags, mut active) = (0, 0, 0);
    assert_eq!(gpu.raw.cuDevicePrimaryCtxRetain(&mut context, 0), SUCCESS);
    assert_eq!(context, gpu.context, "one for all");
    assert_eq!(gpu.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
    assert_eq!(gpu.raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), SUCCESS);
    assert_eq!(active, 1, "the first retain still counts");
    assert_eq!(gpu.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
    assert_eq!(gpu.raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), SUCCESS);
    assert_eq!(active, 0);
    assert_eq!(gpu.raw.cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
}

fn setting_replaces_the_top(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuCtxSetCurrent(gpu.context), SUCCESS);
    assert_eq!(gpu.raw.cuCtxPopCurrent_v2(&mut 0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxPopCurrent_v2(&mut 0), INVALID_CONTEXT, "there was one only");
}

fn setting_none_takes_the_top_off(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuCtxSetCurrent(0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxPopCurrent_v2(&mut 0), INVALID_CONTEXT);
}

fn release(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
}

fn told_that_it_is_destroyed(gpu: &Fixture) {
    release(gpu);
    assert_eq!(gpu.raw.cuMemGetInfo_v2(&mut 0, &mut 0), CONTEXT_IS_DESTROYED);
}

fn can_still_be_pushed(gpu: &Fixture) {
    release(gpu);
    assert_eq!(gpu.raw.cuCtxPushCurrent_v2(gpu.context), SUCCESS);
}

fn virtual_memory_outlives(gpu: &Fixture) {
    let (at, handle) = gpu.ready(1);
    release(gpu);
    assert_eq!(gpu.unmap(at, 1), SUCCESS);
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS);
    assert_eq!(gpu.raw.cuMemAddressFree(at, PAGE), SUCCESS);
}

fn plain_memory_goes(gpu: &Fixture) {
    const SIZE: u64 = 256 << 20;
    let before = gpu.free_bytes();
    gpu.plain(SIZE);
    release(gpu);
    let again = Fixture::new();
    assert!(again.free_bytes() > before - SIZE / 2, "a new context does not cost this much more");
}

// A context of this process's own, current.
fn created(gpu: &Fixture) -> u64 {
    made(|context| gpu.raw.cuCtxCreate_v2(context, 0, 0))
}

fn current(gpu: &Fixture) -> u64 {
    made(|context| gpu.raw.cuCtxGetCurrent(context))
}

fn a_created_context_is_current(gpu: &Fixture) {
    let own = created(gpu);
    assert_eq!(current(gpu), own);
    assert_ne!(own, gpu.context);
}

fn a_context_names_its_device(gpu: &Fixture) {
    let mut device = -1;
    assert_eq!(gpu.raw.cuCtxGetDevice(&mut device), SUCCESS);
    assert_eq!(device, 0);
    created(gpu);
    device = -1;
    assert_eq!(gpu.raw.cuCtxGetDevice(&mut device), SUCCESS);
    assert_eq!(device, 0);
    while gpu.raw.cuCtxPopCurrent_v2(&mut 0) == SUCCESS {}
    assert_eq!(gpu.raw.cuCtxGetDevice(&mut device), INVALID_CONTEXT);
}

fn a_destroyed_context_is_taken_off(gpu: &Fixture) {
    let own = created(gpu);
    assert_eq!(gpu.raw.cuCtxDestroy_v2(own), SUCCESS);
    assert_eq!(current(gpu), gpu.context);
}

fn leaves_the_primary_one(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuCtxPopCurrent_v2(&mut 0), SUCCESS);
    release(gpu);
    let (mut flags, mut active) = (0, 1);
    created(gpu);
    assert_eq!(gpu.raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), SUCCESS);
    assert_eq!(active, 0);
}
