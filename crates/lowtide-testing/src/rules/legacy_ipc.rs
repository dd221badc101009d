//! Plain memory that another process opens by a legacy handle.

use super::exporter::{PLAIN_BYTES, exporter, fill, legacy_handle as handle};
use super::fixture::{
    Fixture, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, OtherProcess, PAGE, Rule,
    SUCCESS, made,
};
use crate::raw::LegacyHandle;

pub(super) const RULES: &[Rule] = &[
    ("every_address_of_an_allocation_gives_the_same_legacy_handle", the_same_handle),
    ("only_plain_memory_has_a_legacy_handle", only_plain_memory),
    ("an_opened_legacy_handle_is_the_same_memory", the_same_memory),
    ("what_the_driver_says_of_opened_memory", attributes),
    ("a_list_of_attributes_has_zeros_where_there_is_nothing", list_of_attributes),
    ("opens_of_a_legacy_handle_are_counted_in_one_context", counted),
    ("a_legacy_handle_is_opened_with_its_flag_and_as_it_was_given", flags_and_garbage),
    ("opened_memory_is_closed_by_its_base_and_not_freed", closed_by_its_base),
    ("legacy_ipc_leaves_a_capture_valid", leaves_a_capture_valid),
    ("opened_memory_outlives_its_free_and_counts_once", outlives_its_free),
    ("opened_memory_outlives_its_exporter", outlives_its_exporter),
];

const LAZY_PEER_ACCESS: u32 = 1;

/// Starts a process with plain memory that is filled with 7; returns a handle of that.
fn with_plain_memory() -> (OtherProcess, LegacyHandle) {
    let mut other = exporter();
    assert_eq!(other.ask("allocate"), SUCCESS);
    let handle: Vec<u8> = serde_json::from_str(&other.0.ask("handle")).expect("numbers");
    (other, LegacyHandle(handle.try_into().expect("64 bytes")))
}

fn open(gpu: &Fixture, handle: LegacyHandle) -> Result<u64, i32> {
    let mut at = 0;
    let code = gpu.raw.cuIpcOpenMemHandle_v2(&mut at, handle, LAZY_PEER_ACCESS);
    if code == SUCCESS { Ok(at) } else { Err(code) }
}

/// Opens the memory of another process; returns the process, the handle and the address.
fn opened(gpu: &Fixture) -> (OtherProcess, LegacyHandle, u64) {
    let (other, handle) = with_plain_memory();
    let at = open(gpu, handle).expect("it is opened");
    (other, handle, at)
}

/// Closes memory that was opened twice, and once more.
fn closed_twice(gpu: &Fixture, at: u64) {
    let close = || gpu.raw.cuIpcCloseMemHandle(at);
    assert_eq!([close(), close(), close()], [SUCCESS, SUCCESS, INVALID_VALUE]);
}

fn in_another_context<T>(gpu: &Fixture, work: impl FnOnce() -> T) -> T {
    let context = made(|context| gpu.raw.cuCtxCreate_v2(context, 0, 0));
    let result = work();
    assert_eq!(gpu.raw.cuCtxDestroy_v2(context), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSetCurrent(gpu.context), SUCCESS);
    result
}

fn without_a_context<T>(gpu: &Fixture, work: impl FnOnce() -> T) -> T {
    assert_eq!(gpu.raw.cuCtxSetCurrent(0), SUCCESS);
    let result = work();
    assert_eq!(gpu.raw.cuCtxSetCurrent(gpu.context), SUCCESS);
    result
}

fn the_same_handle(gpu: &Fixture) {
    let (plain, small, next) = (gpu.plain(PAGE), gpu.plain(512), gpu.plain(512));
    let base = handle(gpu, plain).0;
    for inside in [0, 12345, PAGE - 1] {
        assert_eq!(handle(gpu, plain + inside).0, base, "{inside}");
    }
    assert_ne!(handle(gpu, small).0, handle(gpu, next).0);
    assert_ne!(in_another_context(gpu, || handle(gpu, plain).0), base);
    assert_eq!(gpu.raw.cuMemFree_v2(plain), SUCCESS);
    assert_ne!(handle(gpu, gpu.plain(PAGE)).0, base, "most probably at the same address");
}

fn only_plain_memory(gpu: &Fixture) {
    let (plain, freed, mut pooled) = (gpu.plain(PAGE), gpu.plain(PAGE), 0);
    assert_eq!(gpu.raw.cuMemFree_v2(freed), SUCCESS);
    assert_eq!(gpu.raw.cuMemAllocAsync(&mut pooled, PAGE, 0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSynchronize(), SUCCESS);
    let get = |at| gpu.raw.cuIpcGetMemHandle(&mut [0; 64], at);
    let host = (&raw const plain).addr() as u64;
    let others = [0, host, plain + (1 << 45), gpu.pinned(PAGE), gpu.ready(1).0, freed, pooled];
    for (index, at) in others.into_iter().enumerate() {
        assert_eq!(get(at), INVALID_VALUE, "{index}");
    }
    assert_eq!(without_a_context(gpu, || get(plain)), INVALID_CONTEXT);
    let own = handle(gpu, plain);
    assert_eq!(open(gpu, own), Err(INVALID_CONTEXT));
    assert_eq!(in_another_context(gpu, || open(gpu, own)), Err(INVALID_CONTEXT));
    assert_eq!(gpu.raw.cuIpcCloseMemHandle(plain), INVALID_VALUE);
}

fn the_same_memory(gpu: &Fixture) {
    let (mut other, handle, at) = opened(gpu);
    assert_eq!(gpu.byte(at), 7);
    fill(gpu, at, 9);
    assert_eq!(other.ask("plain_byte"), 9);
    assert_eq!(gpu.raw.cuIpcCloseMemHandle(at), SUCCESS);
    assert_eq!(gpu.raw.cuMemcpyDtoH_v2(gpu.pinned(1), at, 1), INVALID_VALUE);
    assert_eq!(open(gpu, handle).map(|at| gpu.byte(at)), Ok(9));
}

fn attributes(gpu: &Fixture) {
    let ((_other, _, imported), plain) = (opened(gpu), gpu.plain(PLAIN_BYTES));
    let get = |attribute, at| {
        let mut value = 0;
        (gpu.raw.cuPointerGetAttribute(&mut value, attribute, at), value)
    };
    for (at, is_capable) in [(plain, 1), (imported, 0)] {
        // Memory type, synchronous operations, device, mapped, types of handles; legacy IPC, start, size.
        let always = [(2, 2), (6, 0), (9, 0), (13, 1), (14, 0)];
        let its_own = [(10, is_capable), (11, at), (12, PLAIN_BYTES)];
        for (attribute, value) in always.into_iter().chain(its_own) {
            assert_eq!(get(attribute, at + 4096), (SUCCESS, value), "{attribute}");
        }
        let (mut base, mut size) = (0, 0);
        assert_eq!(gpu.raw.cuMemGetAddressRange_v2(&mut base, &mut size, at + 4096), SUCCESS);
        assert_eq!((base, size), (at, PLAIN_BYTES));
    }
    assert_ne!(get(7, plain).1, get(7, imported).1, "numbers of buffers");
    assert_eq!(gpu.raw.cuIpcGetMemHandle(&mut [0; 64], imported), INVALID_VALUE);
    assert_eq!(gpu.raw.cuIpcCloseMemHandle(imported), SUCCESS);
    assert_eq!(get(2, imported).0, INVALID_VALUE);
    assert_eq!(gpu.raw.cuMemGetAddressRange_v2(&mut 0, &mut 0, imported), NOT_FOUND);
}

fn list_of_attributes(gpu: &Fixture) {
    let (plain, on_the_host) = (gpu.plain(PLAIN_BYTES), Box::new(0_u64));
    let freed = gpu.plain(PLAIN_BYTES);
    assert_eq!(gpu.raw.cuMemFree_v2(freed), SUCCESS);
    // Memory type, start, size.
    let kinds = [2, 11, 12];
    for (at, expected) in [
        (plain + 8, [2, plain, PLAIN_BYTES]),
        (std::ptr::from_ref(&*on_the_host).expose_provenance() as u64, [0; 3]),
        (freed, [0; 3]),
    ] {
        let mut found = [0_u64; 3];
        let places = [0, 1, 2].map(|place| (&raw mut found[place]).expose_provenance() as u64);
        assert_eq!(gpu.raw.cuPointerGetAttributes(3, &kinds, &places, at), SUCCESS);
        assert_eq!(found, expected, "{at:#x}");
    }
}

fn counted(gpu: &Fixture) {
    let (_other, handle, at) = opened(gpu);
    assert_eq!((open(gpu, handle), open(gpu, handle)), (Ok(at), Ok(at)));
    let close = || gpu.raw.cuIpcCloseMemHandle(at);
    let elsewhere = in_another_context(gpu, || (open(gpu, handle), close()));
    assert_eq!(elsewhere, (Err(INVALID_HANDLE), SUCCESS));
    let nowhere = without_a_context(gpu, || (open(gpu, handle), close()));
    assert_eq!(nowhere, (Err(INVALID_CONTEXT), INVALID_CONTEXT));
    assert_eq!([close(), close(), close()], [SUCCESS, SUCCESS, INVALID_VALUE]);
}

fn flags_and_garbage(gpu: &Fixture) {
    let (_other, handle) = with_plain_memory();
    for (flags, code) in [(0, INVALID_VALUE), (1, SUCCESS), (7, SUCCESS)] {
        assert_eq!(gpu.raw.cuIpcOpenMemHandle_v2(&mut 0, handle, flags), code, "{flags}");
    }
    for byte in [0, 0x5a] {
        assert_eq!(open(gpu, LegacyHandle([byte; 64])), Err(INVALID_VALUE), "{byte}");
    }
}

fn closed_by_its_base(gpu: &Fixture) {
    let (_other, _, at) = opened(gpu);
    for wrong in [0, at + 512, gpu.plain(PAGE)] {
        assert_eq!(gpu.raw.cuIpcCloseMemHandle(wrong), INVALID_VALUE);
    }
    assert_eq!(gpu.raw.cuMemFree_v2(at), INVALID_VALUE);
    assert_eq!(gpu.byte(at), 7);
}

fn leaves_a_capture_valid(gpu: &Fixture) {
    const GLOBAL: u32 = 0;
    let (_other, foreign) = with_plain_memory();
    let (plain, stream) = (gpu.plain(PAGE), gpu.stream());
    assert_eq!(gpu.raw.cuStreamBeginCapture_v2(stream, GLOBAL), SUCCESS);
    handle(gpu, plain);
    let at = open(gpu, foreign).expect("it is opened");
    assert_eq!(gpu.raw.cuIpcCloseMemHandle(at), SUCCESS);
    assert_eq!(gpu.raw.cuStreamEndCapture(stream, &mut 0), SUCCESS);
}

fn outlives_its_free(gpu: &Fixture) {
    let (mut other, handle) = with_plain_memory();
    let before = gpu.free_bytes();
    let at = open(gpu, handle).expect("it is opened");
    let counts_once = || gpu.free_bytes().abs_diff(before) < PLAIN_BYTES / 2;
    assert!(counts_once());
    assert_eq!(other.ask("free"), SUCCESS);
    assert_eq!(gpu.byte(at), 7);
    assert!(counts_once());
    assert_eq!(open(gpu, handle), Ok(at));
    closed_twice(gpu, at);
    assert_eq!(open(gpu, handle), Err(INVALID_VALUE));
}

fn outlives_its_exporter(gpu: &Fixture) {
    let (other, handle, at) = opened(gpu);
    drop(other);
    assert_eq!(gpu.byte(at), 7);
    assert_eq!(open(gpu, handle), Ok(at));
    closed_twice(gpu, at);
    assert_eq!(open(gpu, handle), Err(INVALID_HANDLE));
}
