//! Memory that several processes have.
//!
//! The rule's own process imports; the process that it starts exports, because a process may take
//! descriptors of the processes that it started.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::fixture::{Fixture, INVALID_VALUE, OtherProcess, PAGE, Rule, SUCCESS};
use crate::raw::Properties;
use crate::role;

/// The second process of these rules: exports memory, and answers about it.
pub(super) const EXPORTER: &str = "exporter";

pub(super) const RULES: &[Rule] = &[
    ("exported_memory_is_the_same_memory_in_another_process", the_same_memory),
    ("imported_memory_outlives_the_exporters_release_and_its_death", outlives_the_exporter),
    ("a_descriptor_keeps_memory_that_nobody_holds", kept_by_a_descriptor),
    ("memory_is_exported_only_as_what_it_was_made_for", made_for_it),
];

const FILE_DESCRIPTOR: u32 = 1;

fn exportable(gpu: &Fixture) -> u64 {
    let mut handle = 0;
    assert_eq!(gpu.raw.cuMemCreate(&mut handle, PAGE, &Properties::exportable(), 0), SUCCESS);
    handle
}

fn export(gpu: &Fixture, handle: u64) -> i32 {
    let mut shared = -1;
    let code = gpu.raw.cuMemExportToShareableHandle(&mut shared, handle, FILE_DESCRIPTOR, 0);
    assert_eq!(code, SUCCESS);
    shared
}

fn import(gpu: &Fixture, descriptor: i32) -> u64 {
    let (mut handle, shared) = (0, u64::from(descriptor.cast_unsigned()));
    let code = gpu.raw.cuMemImportFromShareableHandle(&mut handle, shared, FILE_DESCRIPTOR);
    assert_eq!(code, SUCCESS);
    handle
}

/// Maps a page of a handle, with access.
fn mapped(gpu: &Fixture, handle: u64) -> u64 {
    let at = gpu.reserve(1);
    assert_eq!((gpu.map(at, 1, handle), gpu.open(at, 1)), (SUCCESS, SUCCESS));
    at
}

fn fill(gpu: &Fixture, at: u64, byte: u8) {
    assert_eq!(gpu.raw.cuMemsetD8Async(at, byte, PAGE, 0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSynchronize(), SUCCESS);
}

fn exporter() -> OtherProcess {
    OtherProcess::start(EXPORTER, "")
}

/// Takes the descriptor that the exporter makes of its memory.
fn exported(other: &mut OtherProcess) -> OwnedFd {
    let number = other.ask("export");
    let pid = Pid::from_child(&other.0.child);
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("a process of ours");
    pidfd_getfd(process, number, PidfdGetfdFlags::empty()).expect("a descriptor of a child")
}

/// Runs the other process: has a page that can be exported, filled with 7.
pub(super) fn export_and_answer() -> ExitCode {
    let gpu = Fixture::new();
    let handle = exportable(&gpu);
    let at = mapped(&gpu, handle);
    fill(&gpu, at, 7);
    for word in std::io::stdin().lines().map_while(Result::ok) {
        let answer = match word.as_str() {
            "export" => export(&gpu, handle),
            "byte" => gpu.byte(at).into(),
            "release" => gpu.unmap(at, 1).max(gpu.raw.cuMemRelease(handle)),
            _ => return ExitCode::from(2),
        };
        role::answer(&answer.to_string());
    }
    ExitCode::SUCCESS
}

fn the_same_memory(gpu: &Fixture) {
    let mut other = exporter();
    let handle = import(gpu, exported(&mut other).as_raw_fd());
    let mut properties = [0; 8];
    let code = gpu.raw.cuMemGetAllocationPropertiesFromHandle(&mut properties, handle);
    assert_eq!((code, properties), (SUCCESS, [1, 1, 1, 0, 0, 0, 0, 0]));
    let at = mapped(gpu, handle);
    assert_eq!(gpu.byte(at), 7);
    fill(gpu, at, 9);
    assert_eq!(other.ask("byte"), 9);
    let mut retained = 0;
    assert_eq!(gpu.raw.cuMemRetainAllocationHandle(&mut retained, at), SUCCESS);
    assert_eq!(retained, handle);
}

fn outlives_the_exporter(gpu: &Fixture) {
    for exporter_dies in [false, true] {
        let mut other = exporter();
        let at = mapped(gpu, import(gpu, exported(&mut other).as_raw_fd()));
        if exporter_dies {
            drop(other);
        } else {
            assert_eq!(other.ask("release"), SUCCESS);
        }
        assert_eq!(gpu.byte(at), 7, "{exporter_dies}");
        fill(gpu, at, 9);
        assert_eq!(gpu.byte(at + PAGE - 1), 9);
    }
}

fn kept_by_a_descriptor(gpu: &Fixture) {
    let mut other = exporter();
    let descriptor = exported(&mut other);
    assert_eq!(other.ask("release"), SUCCESS);
    drop(other);
    let at = mapped(gpu, import(gpu, descriptor.as_raw_fd()));
    assert_eq!(gpu.byte(at), 7);
}

fn made_for_it(gpu: &Fixture) {
    let code = gpu.raw.cuMemExportToShareableHandle(&mut 0, gpu.create(1), FILE_DESCRIPTOR, 0);
    assert_eq!(code, INVALID_VALUE);
}
