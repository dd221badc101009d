//! Host memory: registered, pinned or neither, and copies that use it.

use super::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, PAGE, Rule, SUCCESS,
    World, fill_host, host_byte, pages_of_this_process,
};

pub(super) const RULES: &[Rule] = &[
    ("host_memory_is_registered_once_and_by_its_base", registered_once),
    ("what_is_not_mapped_is_not_registered", not_mapped_not_registered),
    ("registered_memory_is_not_freed_as_pinned_memory", registered_is_not_freed),
    ("pinned_memory_is_not_unregistered", pinned_is_not_unregistered),
    ("a_copy_does_not_cross_registrations", does_not_cross_registrations),
    ("a_copy_does_not_run_out_of_a_registration", does_not_run_out),
    ("freeing_pinned_memory_waits_for_work", freeing_pinned_waits),
    ("freeing_plain_memory_waits_for_work", freeing_plain_waits),
    ("unregistering_host_memory_waits_for_work", unregistering_waits),
    ("a_pageable_copy_out_is_done_when_it_returns", pageable_out_is_done),
    ("a_pageable_copy_in_has_read_when_it_returns", pageable_in_has_read),
];

fn registered(world: &World, size: u64) -> u64 {
    let host = pages_of_this_process(size as usize);
    assert_eq!(world.raw.cuMemHostRegister_v2(host, size, 1), SUCCESS);
    host
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

fn not_mapped_not_registered(world: &World) {
    // The first pages of an address space are never mapped.
    assert_eq!(world.raw.cuMemHostRegister_v2(4096, 4096, 1), INVALID_VALUE);
}

fn registered_is_not_freed(world: &World) {
    assert_eq!(world.raw.cuMemFreeHost(registered(world, PAGE)), INVALID_VALUE);
}

fn pinned_is_not_unregistered(world: &World) {
    assert_eq!(world.raw.cuMemHostUnregister(world.pinned(PAGE)), INVALID_VALUE);
}

fn does_not_run_out(world: &World) {
    let (host, (at, _), stream) =
        (pages_of_this_process(2 * PAGE as usize), world.ready(2), world.stream());
    assert_eq!(world.raw.cuMemHostRegister_v2(host, PAGE, 1), SUCCESS);
    assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, 2 * PAGE, stream), INVALID_VALUE);
}

fn freeing_pinned_waits(world: &World) {
    let (stream, idle) = (world.stream(), world.pinned(PAGE));
    world.keep_busy(stream);
    assert_eq!(world.raw.cuMemFreeHost(idle), SUCCESS);
    assert_eq!(world.raw.cuStreamQuery(stream), SUCCESS);
}

fn freeing_plain_waits(world: &World) {
    let (stream, idle) = (world.stream(), world.plain(PAGE));
    world.keep_busy(stream);
    assert_eq!(world.raw.cuMemFree_v2(idle), SUCCESS);
    assert_eq!(world.raw.cuStreamQuery(stream), SUCCESS);
}

fn unregistering_waits(world: &World) {
    let (stream, idle) = (world.stream(), registered(world, PAGE));
    world.keep_busy(stream);
    assert_eq!(world.raw.cuMemHostUnregister(idle), SUCCESS);
    assert_eq!(world.raw.cuStreamQuery(stream), SUCCESS);
}

fn pageable_out_is_done(world: &World) {
    let ((at, _), host, stream) =
        (world.ready(1), pages_of_this_process(PAGE as usize), world.stream());
    world.keep_busy(stream);
    assert_eq!(world.raw.cuMemsetD8Async(at, 7, PAGE, stream), SUCCESS);
    assert_eq!(world.raw.cuMemcpyDtoHAsync_v2(host, at, PAGE, stream), SUCCESS);
    assert_eq!([host_byte(host), host_byte(host + PAGE - 1)], [7, 7]);
}

fn pageable_in_has_read(world: &World) {
    let ((at, _), host, stream) =
        (world.ready(1), pages_of_this_process(PAGE as usize), world.stream());
    fill_host(host, 7, PAGE);
    world.keep_busy(stream);
    assert_eq!(world.raw.cuMemcpyHtoDAsync_v2(at, host, PAGE, stream), SUCCESS);
    fill_host(host, 8, PAGE);
    assert_eq!(world.raw.cuStreamSynchronize(stream), SUCCESS);
    assert_eq!([world.byte(at), world.byte(at + PAGE - 1)], [7, 7]);
}
