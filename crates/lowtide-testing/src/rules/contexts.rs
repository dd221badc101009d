//! Contexts: a stack per thread, and which calls need one.

use super::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, PAGE, Rule, SUCCESS, World};
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
];

fn the_threads_own(world: &World) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut context = 1;
            assert_eq!(world.raw.cuCtxGetCurrent(&mut context), SUCCESS);
            assert_eq!(context, 0, "a new thread has none");
            assert_eq!(world.raw.cuCtxPopCurrent_v2(&mut context), INVALID_CONTEXT);
        });
    });
    let mut context = 0;
    assert_eq!(world.raw.cuCtxGetCurrent(&mut context), SUCCESS);
    assert_eq!(context, world.context);
}

fn needs_no_context(world: &World) {
    let mut popped = 0;
    assert_eq!(world.raw.cuCtxPopCurrent_v2(&mut popped), SUCCESS);
    let (mut at, mut handle, mut stream, mut other) = (0, 0, 0, 0);
    assert_eq!(world.raw.cuMemAddressReserve(&mut at, PAGE, 0, 0, 0), SUCCESS);
    assert_eq!(world.raw.cuMemCreate(&mut handle, PAGE, &Properties::default(), 0), SUCCESS);
    assert_eq!(world.raw.cuMemMap(at, PAGE, 0, handle, 0), SUCCESS);
    assert_eq!(world.raw.cuMemSetAccess(at, PAGE, &Access::READ_WRITE, 1), SUCCESS);
    assert_eq!(world.raw.cuMemUnmap(at, PAGE), SUCCESS);
    assert_eq!(world.raw.cuMemRelease(handle), SUCCESS);
    assert_eq!(world.raw.cuMemAddressFree(at, PAGE), SUCCESS);
    assert_eq!(world.raw.cuMemAlloc_v2(&mut at, PAGE), INVALID_CONTEXT);
    assert_eq!(world.raw.cuStreamCreate(&mut stream, 1), INVALID_CONTEXT);
    assert_eq!(world.raw.cuMemGetInfo_v2(&mut at, &mut other), INVALID_CONTEXT);
    assert_eq!(world.raw.cuMemHostAlloc(&mut at, PAGE, 0), INVALID_CONTEXT);
    assert_eq!(world.raw.cuCtxSynchronize(), INVALID_CONTEXT);
}

fn the_primary_context_is_counted(world: &World) {
    let (mut context, mut flags, mut active) = (0, 0, 0);
    assert_eq!(world.raw.cuDevicePrimaryCtxRetain(&mut context, 0), SUCCESS);
    assert_eq!(context, world.context, "one for all");
    assert_eq!(world.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
    assert_eq!(world.raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), SUCCESS);
    assert_eq!(active, 1, "the first retain still counts");
    assert_eq!(world.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
    assert_eq!(world.raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), SUCCESS);
    assert_eq!(active, 0);
    assert_eq!(world.raw.cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
}

fn setting_replaces_the_top(world: &World) {
    assert_eq!(world.raw.cuCtxSetCurrent(world.context), SUCCESS);
    assert_eq!(world.raw.cuCtxPopCurrent_v2(&mut 0), SUCCESS);
    assert_eq!(world.raw.cuCtxPopCurrent_v2(&mut 0), INVALID_CONTEXT, "there was one only");
}

fn setting_none_takes_the_top_off(world: &World) {
    assert_eq!(world.raw.cuCtxSetCurrent(0), SUCCESS);
    assert_eq!(world.raw.cuCtxPopCurrent_v2(&mut 0), INVALID_CONTEXT);
}

fn release(world: &World) {
    assert_eq!(world.raw.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
}

fn told_that_it_is_destroyed(world: &World) {
    release(world);
    assert_eq!(world.raw.cuMemGetInfo_v2(&mut 0, &mut 0), CONTEXT_IS_DESTROYED);
}

fn can_still_be_pushed(world: &World) {
    release(world);
    assert_eq!(world.raw.cuCtxPushCurrent_v2(world.context), SUCCESS);
}

fn virtual_memory_outlives(world: &World) {
    let (at, handle) = world.ready(1);
    release(world);
    assert_eq!(world.unmap(at, 1), SUCCESS);
    assert_eq!(world.raw.cuMemRelease(handle), SUCCESS);
    assert_eq!(world.raw.cuMemAddressFree(at, PAGE), SUCCESS);
}

fn plain_memory_goes(world: &World) {
    const SIZE: u64 = 256 << 20;
    let before = world.free_bytes();
    world.plain(SIZE);
    release(world);
    let again = World::new();
    assert!(again.free_bytes() > before - SIZE / 2, "a new context does not cost this much more");
}
