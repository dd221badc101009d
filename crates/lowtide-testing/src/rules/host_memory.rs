//! Host memory: registered, pinned or neither, and copies that use it.

use super::fixture::{
    ALREADY_REGISTERED, Fixture, INVALID_VALUE, NOT_REGISTERED, PAGE, Rule, SUCCESS, fill_host,
    host_byte, pages_of_this_process,
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

fn registered(gpu: &Fixture, size: u64) -> u64 {
    let host = pages_of_this_process(size as usize);
    assert_eq!(gpu.raw.cuMemHostRegister_v2(host, size, 1), SUCCESS);
    host
}

fn does_not_cross_registrations(gpu: &Fixture) {
    let (host, (at, _), stream) =
        (pages_of_this_process(4 * PAGE as usize), gpu.ready(2), gpu.stream());
    for part in [host, host + 2 * PAGE] {
        assert_eq!(gpu.raw.cuMemHostRegister_v2(part, 2 * PAGE, 1), SUCCESS);
    }
    let border = host + PAGE;
    assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(border, at, 2 * PAGE, stream), INVALID_VALUE);
    assert_eq!(gpu.raw.cuMemcpyHtoDAsync_v2(at, border, 2 * PAGE, stream), INVALID_VALUE);
    assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(host, at, 2 * PAGE, stream), SUCCESS);
    assert_eq!(gpu.raw.cuStreamSynchronize(stream), SUCCESS);
}

fn registered_once(gpu: &Fixture) {
    let host = pages_of_this_process(4 * PAGE as usize);
    assert_eq!(gpu.raw.cuMemHostRegister_v2(host, 2 * PAGE, 1), SUCCESS);
    assert_eq!(gpu.raw.cuMemHostRegister_v2(host, 2 * PAGE, 1), ALREADY_REGISTERED);
    assert_eq!(gpu.raw.cuMemHostRegister_v2(host + PAGE, 2 * PAGE, 1), ALREADY_REGISTERED);
    assert_eq!(gpu.raw.cuMemHostUnregister(host + 2 * PAGE), NOT_REGISTERED);
    assert_eq!(gpu.raw.cuMemHostUnregister(host), SUCCESS);
    assert_eq!(gpu.raw.cuMemHostUnregister(host), NOT_REGISTERED);
}

fn not_mapped_not_registered(gpu: &Fixture) {
    // The first pages of an address space are never mapped.
    assert_eq!(gpu.raw.cuMemHostRegister_v2(4096, 4096, 1), INVALID_VALUE);
}

fn registered_is_not_freed(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuMemFreeHost(registered(gpu, PAGE)), INVALID_VALUE);
}

fn pinned_is_not_unregistered(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuMemHostUnregister(gpu.pinned(PAGE)), INVALID_VALUE);
}

fn does_not_run_out(gpu: &Fixture) {
    let (host, (at, _), stream) =
        (pages_of_this_process(2 * PAGE as usize), gpu.ready(2), gpu.stream());
    assert_eq!(gpu.raw.cuMemHostRegister_v2(host, PAGE, 1), SUCCESS);
    assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(host, at, 2 * PAGE, stream), INVALID_VALUE);
}

fn freeing_pinned_waits(gpu: &Fixture) {
    let (stream, idle) = (gpu.stream(), gpu.pinned(PAGE));
    gpu.keep_busy(stream);
    assert_eq!(gpu.raw.cuMemFreeHost(idle), SUCCESS);
    assert_eq!(gpu.raw.cuStreamQuery(stream), SUCCESS);
}

fn freeing_plain_waits(gpu: &Fixture) {
    let (stream, idle) = (gpu.stream(), gpu.plain(PAGE));
    gpu.keep_busy(stream);
    assert_eq!(gpu.raw.cuMemFree_v2(idle), SUCCESS);
    assert_eq!(gpu.raw.cuStreamQuery(stream), SUCCESS);
}

fn unregistering_waits(gpu: &Fixture) {
    let (stream, idle) = (gpu.stream(), registered(gpu, PAGE));
    gpu.keep_busy(stream);
    assert_eq!(gpu.raw.cuMemHostUnregister(idle), SUCCESS);
    assert_eq!(gpu.raw.cuStreamQuery(stream), SUCCESS);
}

fn pageable_out_is_done(gpu: &Fixture) {
    let ((at, _), host, stream) =
        (gpu.ready(1), pages_of_this_process(PAGE as usize), gpu.stream());
    gpu.keep_busy(stream);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 7, PAGE, stream), SUCCESS);
    assert_eq!(gpu.raw.cuMemcpyDtoHAsync_v2(host, at, PAGE, stream), SUCCESS);
    assert_eq!([host_byte(host), host_byte(host + PAGE - 1)], [7, 7]);
}

fn pageable_in_has_read(gpu: &Fixture) {
    let ((at, _), host, stream) =
        (gpu.ready(1), pages_of_this_process(PAGE as usize), gpu.stream());
    fill_host(host, 7, PAGE);
    gpu.keep_busy(stream);
    assert_eq!(gpu.raw.cuMemcpyHtoDAsync_v2(at, host, PAGE, stream), SUCCESS);
    fill_host(host, 8, PAGE);
    assert_eq!(gpu.raw.cuStreamSynchronize(stream), SUCCESS);
    assert_eq!([gpu.byte(at), gpu.byte(at + PAGE - 1)], [7, 7]);
}
