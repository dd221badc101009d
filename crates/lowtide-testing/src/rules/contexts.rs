//! Contexts: a stack per thread, and which calls need one.

use super::{INVALID_CONTEXT, PAGE, Rule, SUCCESS, World};
use crate::raw::{Access, Properties};

pub(super) const RULES: &[Rule] = &[
    ("the_stack_of_contexts_is_the_threads_own", the_threads_own),
    ("virtual_memory_needs_no_context_and_the_rest_does", needs_no_context),
    ("the_primary_context_is_counted", the_primary_context_is_counted),
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
