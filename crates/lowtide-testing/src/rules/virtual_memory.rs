//! Reserving, creating, mapping.

use super::fixture::{
    Fixture, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, PAGE, Rule, SUCCESS, made,
};
use crate::raw::{Access, Properties};

pub(super) const RULES: &[Rule] = &[
    ("a_chunk_is_mapped_whole_and_from_its_start", whole_and_from_its_start),
    ("nothing_is_mapped_over_a_mapping", nothing_over_a_mapping),
    ("a_mapping_is_not_unmapped_in_part", not_unmapped_in_part),
    ("one_unmap_may_span_mappings_and_holes", one_unmap_may_span),
    ("access_is_set_for_whole_mappings_without_a_hole", access_for_whole_mappings),
    ("access_is_lost_with_the_mapping", access_is_lost_with_the_mapping),
    ("a_reservation_goes_whole_and_empty", a_reservation_goes_whole_and_empty),
    ("memory_lives_while_a_mapping_or_a_handle_does", memory_lives),
    ("a_handle_is_released_once", a_handle_is_released_once),
    ("a_handle_lives_until_its_retains_are_released", retains_are_released),
    ("a_handle_knows_what_it_was_made_with", knows_its_properties),
    ("plain_memory_and_bare_addresses_have_no_handle", no_handle),
    ("access_can_be_asked_for", access_can_be_asked_for),
    ("sizes_are_whole_pages", sizes_are_whole_pages),
    ("virtual_memory_is_not_freed_as_plain_memory", not_freed_as_plain),
    ("virtual_memory_has_no_legacy_ipc", no_legacy_ipc),
    ("a_reservation_is_aligned_as_asked", aligned_as_asked),
    ("a_reservation_goes_once", a_reservation_goes_once),
    ("an_unmap_of_nothing_succeeds", an_unmap_of_nothing),
    ("memory_is_made_on_a_device_that_exists", on_a_device_that_exists),
    ("plain_memory_is_freed_by_its_base", freed_by_its_base),
    ("plain_memory_is_freed_once", freed_once),
];

fn whole_and_from_its_start(gpu: &Fixture) {
    let (at, handle) = (gpu.reserve(4), gpu.create(2));
    assert_eq!(gpu.raw.cuMemMap(at, PAGE, PAGE, handle, 0), NOT_SUPPORTED, "an offset");
    assert_eq!(gpu.raw.cuMemMap(at, PAGE, 0, handle, 0), NOT_SUPPORTED, "a part");
    assert_eq!(gpu.raw.cuMemMap(at + 4096, 2 * PAGE, 0, handle, 0), INVALID_VALUE, "not on a page");
    assert_eq!(gpu.map(at, 2, handle), SUCCESS);
}

fn nothing_over_a_mapping(gpu: &Fixture) {
    let (at, handle) = (gpu.reserve(4), gpu.create(2));
    assert_eq!(gpu.map(at, 2, handle), SUCCESS);
    assert_eq!(gpu.map(at + PAGE, 2, gpu.create(2)), INVALID_VALUE);
    assert_eq!(gpu.map(at + 2 * PAGE, 2, handle), SUCCESS, "one handle may lie in two places");
}

fn not_unmapped_in_part(gpu: &Fixture) {
    let (at, _) = gpu.ready(4);
    assert_eq!(gpu.unmap(at, 2), INVALID_VALUE);
    assert_eq!(gpu.unmap(at + 2 * PAGE, 2), INVALID_VALUE);
    assert_eq!(gpu.unmap(at, 4), SUCCESS);
}

fn one_unmap_may_span(gpu: &Fixture) {
    let at = gpu.reserve(6);
    for page in [0, 1, 4] {
        assert_eq!(gpu.map(at + page * PAGE, 1, gpu.create(1)), SUCCESS);
    }
    assert_eq!(gpu.unmap(at, 6), SUCCESS);
    assert_eq!(gpu.map(at + PAGE, 4, gpu.create(4)), SUCCESS, "all of it was unmapped");
}

fn access_for_whole_mappings(gpu: &Fixture) {
    let at = gpu.reserve(6);
    assert_eq!(gpu.map(at, 2, gpu.create(2)), SUCCESS);
    assert_eq!(gpu.map(at + 2 * PAGE, 1, gpu.create(1)), SUCCESS);
    assert_eq!(gpu.open(at, 1), INVALID_VALUE, "half a mapping");
    assert_eq!(gpu.open(at, 6), INVALID_VALUE, "a hole");
    assert_eq!(gpu.open(at + 4 * PAGE, 1), INVALID_VALUE, "nothing");
    assert_eq!(gpu.open(at, 3), SUCCESS, "two whole mappings");
}

fn access_is_lost_with_the_mapping(gpu: &Fixture) {
    let (at, handle) = gpu.ready(1);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, PAGE, 0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSynchronize(), SUCCESS);
    assert_eq!(gpu.unmap(at, 1), SUCCESS);
    assert_eq!(gpu.map(at, 1, handle), SUCCESS);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, PAGE, 0), INVALID_VALUE);
    assert_eq!(gpu.raw.cuMemSetAccess(at, PAGE, &Access::READ, 1), SUCCESS);
    assert_eq!(gpu.raw.cuMemsetD8Async(at, 1, PAGE, 0), INVALID_VALUE, "read-only");
}

fn a_reservation_goes_whole_and_empty(gpu: &Fixture) {
    let (at, _) = gpu.ready(2);
    assert_eq!(gpu.raw.cuMemAddressFree(at, 2 * PAGE), INVALID_VALUE, "something is mapped");
    assert_eq!(gpu.unmap(at, 2), SUCCESS);
    assert_eq!(gpu.raw.cuMemAddressFree(at, PAGE), INVALID_VALUE, "half of it");
    assert_eq!(gpu.raw.cuMemAddressFree(at + PAGE, PAGE), INVALID_VALUE, "the other half");
    assert_eq!(gpu.raw.cuMemAddressFree(at, 2 * PAGE), SUCCESS);
}

fn memory_lives(gpu: &Fixture) {
    const PAGES: u64 = 64;
    // What the driver takes for itself the first time is not the question.
    let _first = gpu.ready(PAGES);
    let before = gpu.free_bytes();
    let (at, handle) = gpu.ready(PAGES);
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS);
    assert_eq!(gpu.free_bytes(), before - PAGES * PAGE, "the mapping still has it");
    assert_eq!(gpu.unmap(at, PAGES), SUCCESS);
    assert_eq!(gpu.free_bytes(), before);
    let (at, handle) = gpu.ready(PAGES);
    assert_eq!(gpu.unmap(at, PAGES), SUCCESS);
    assert_eq!(gpu.free_bytes(), before - PAGES * PAGE, "the handle still has it");
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS);
    assert_eq!(gpu.free_bytes(), before);
}

fn a_handle_is_released_once(gpu: &Fixture) {
    let handle = gpu.create(1);
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS);
    assert_eq!(gpu.raw.cuMemRelease(handle), INVALID_VALUE);
}

fn retains_are_released(gpu: &Fixture) {
    const PAGES: u64 = 64;
    // What the driver takes for itself the first time is not the question.
    let _first = gpu.ready(PAGES);
    let before = gpu.free_bytes();
    let (at, handle) = gpu.ready(PAGES);
    assert_eq!(gpu.raw.cuMemRelease(handle), SUCCESS);
    let retained = made(|retained| gpu.raw.cuMemRetainAllocationHandle(retained, at + PAGE + 5));
    assert_eq!(gpu.unmap(at, PAGES), SUCCESS);
    assert_eq!(gpu.free_bytes(), before - PAGES * PAGE, "the retain still has it");
    assert_eq!(gpu.map(at, PAGES, retained), SUCCESS, "and it can be mapped");
    assert_eq!(gpu.unmap(at, PAGES), SUCCESS);
    assert_eq!(gpu.raw.cuMemRelease(retained), SUCCESS);
    assert_eq!(gpu.free_bytes(), before);
}

fn knows_its_properties(gpu: &Fixture) {
    let mut properties = [-1; 8];
    let handle = gpu.create(1);
    assert_eq!(gpu.raw.cuMemGetAllocationPropertiesFromHandle(&mut properties, handle), SUCCESS);
    // Pinned, no type of handle that others can open, on device 0.
    assert_eq!(properties[..4], [1, 0, 1, 0]);
}

fn no_handle(gpu: &Fixture) {
    for at in [gpu.plain(PAGE), gpu.reserve(1)] {
        assert_eq!(gpu.raw.cuMemRetainAllocationHandle(&mut 0, at), INVALID_VALUE);
    }
}

fn access_can_be_asked_for(gpu: &Fixture) {
    let (at, mut flags) = (gpu.ready(2).0, 0);
    assert_eq!(gpu.raw.cuMemGetAccess(&mut flags, &[1, 0], at + PAGE), SUCCESS);
    assert_eq!(flags, 3, "reading and writing");
    assert_eq!(gpu.raw.cuMemSetAccess(at, 2 * PAGE, &Access::READ, 1), SUCCESS);
    assert_eq!(gpu.raw.cuMemGetAccess(&mut flags, &[1, 0], at), SUCCESS);
    assert_eq!(flags, 1, "reading");
}

fn sizes_are_whole_pages(gpu: &Fixture) {
    let (mut at, mut handle) = (0, 0);
    for size in [0, 4096, PAGE + 4096] {
        assert_eq!(gpu.raw.cuMemAddressReserve(&mut at, size, 0, 0, 0), INVALID_VALUE, "{size}");
        assert_eq!(
            gpu.raw.cuMemCreate(&mut handle, size, &Properties::default(), 0),
            INVALID_VALUE,
            "{size}"
        );
    }
    assert_eq!(gpu.raw.cuMemCreate(&mut handle, 1 << 40, &Properties::default(), 0), OUT_OF_MEMORY);
    assert_eq!(gpu.raw.cuMemAddressReserve(&mut at, 1 << 60, 0, 0, 0), OUT_OF_MEMORY);
}

fn not_freed_as_plain(gpu: &Fixture) {
    let (at, _) = gpu.ready(1);
    assert_eq!(gpu.raw.cuMemFree_v2(at), INVALID_VALUE);
    assert_eq!(gpu.raw.cuMemFree_v2(gpu.plain(PAGE)), SUCCESS);
}

fn no_legacy_ipc(gpu: &Fixture) {
    let (at, _) = gpu.ready(1);
    let mut handle = [0; 64];
    assert_eq!(gpu.raw.cuIpcGetMemHandle(&mut handle, at), INVALID_VALUE);
    assert_eq!(gpu.raw.cuIpcGetMemHandle(&mut handle, gpu.plain(PAGE)), SUCCESS);
}

fn aligned_as_asked(gpu: &Fixture) {
    let at = made(|at| gpu.raw.cuMemAddressReserve(at, PAGE, 1 << 30, 0, 0));
    assert!(at.is_multiple_of(1 << 30), "{at:#x}");
}

fn a_reservation_goes_once(gpu: &Fixture) {
    let at = gpu.reserve(1);
    assert_eq!(gpu.raw.cuMemAddressFree(at, PAGE), SUCCESS);
    assert_eq!(gpu.raw.cuMemAddressFree(at, PAGE), INVALID_VALUE);
}

fn an_unmap_of_nothing(gpu: &Fixture) {
    assert_eq!(gpu.unmap(gpu.reserve(2), 2), SUCCESS);
}

fn on_a_device_that_exists(gpu: &Fixture) {
    let absent = Properties::on(100);
    assert_eq!(gpu.raw.cuMemCreate(&mut 0, PAGE, &absent, 0), INVALID_DEVICE);
}

fn freed_by_its_base(gpu: &Fixture) {
    assert_eq!(gpu.raw.cuMemFree_v2(gpu.plain(PAGE) + 4096), INVALID_VALUE);
}

fn freed_once(gpu: &Fixture) {
    let plain = gpu.plain(PAGE);
    assert_eq!(gpu.raw.cuMemFree_v2(plain), SUCCESS);
    assert_eq!(gpu.raw.cuMemFree_v2(plain), INVALID_VALUE);
}
