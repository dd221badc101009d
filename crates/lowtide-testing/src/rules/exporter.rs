//! A process that shares its memory: the other side of the rules about shared memory.
//!
//! The rule's own process imports; the process that it starts exports, because a process may take
//! descriptors of the processes that it started.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::fixture::{Fixture, OtherProcess, PAGE, SUCCESS, made};
use crate::raw::{LegacyHandle, Properties};
use crate::role;

/// The role of the other process.
pub(super) const EXPORTER: &str = "exporter";
/// The size of its plain memory: more than a device's free memory moves by itself.
pub(super) const PLAIN_BYTES: u64 = 32 * PAGE;

pub(super) const FILE_DESCRIPTOR: u32 = 1;

fn exportable(gpu: &Fixture) -> u64 {
    made(|handle| gpu.raw.cuMemCreate(handle, PAGE, &Properties::exportable(), 0))
}

fn export(gpu: &Fixture, handle: u64) -> i32 {
    made(|shared| gpu.raw.cuMemExportToShareableHandle(shared, handle, FILE_DESCRIPTOR, 0))
}

pub(super) fn import(gpu: &Fixture, descriptor: i32) -> u64 {
    let shared = u64::from(descriptor.cast_unsigned());
    made(|handle| gpu.raw.cuMemImportFromShareableHandle(handle, shared, FILE_DESCRIPTOR))
}

/// Maps a page of a handle, with access.
pub(super) fn mapped(gpu: &Fixture, handle: u64) -> u64 {
    let at = gpu.reserve(1);
    assert_eq!((gpu.map(at, 1, handle), gpu.open(at, 1)), (SUCCESS, SUCCESS));
    at
}

pub(super) fn fill(gpu: &Fixture, at: u64, byte: u8) {
    assert_eq!(gpu.raw.cuMemsetD8Async(at, byte, PAGE, 0), SUCCESS);
    assert_eq!(gpu.raw.cuCtxSynchronize(), SUCCESS);
}

pub(super) fn exporter() -> OtherProcess {
    OtherProcess::start(EXPORTER, "")
}

/// Takes the descriptor that the exporter makes of its memory.
pub(super) fn exported(other: &mut OtherProcess) -> OwnedFd {
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
    let (mut imported, mut plain) = (0, 0);
    for word in std::io::stdin().lines().map_while(Result::ok) {
        let answer = match word.as_str() {
            "export" => export(&gpu, handle),
            "import" => {
                imported = import(&gpu, export(&gpu, handle));
                SUCCESS
            }
            "let_go" => gpu.raw.cuMemRelease(imported),
            "byte" => gpu.byte(at).into(),
            "release" => gpu.unmap(at, 1).max(gpu.raw.cuMemRelease(handle)),
            "allocate" => {
                plain = gpu.plain(PLAIN_BYTES);
                fill(&gpu, plain, 7);
                SUCCESS
            }
            "plain_byte" => gpu.byte(plain).into(),
            "free" => gpu.raw.cuMemFree_v2(plain),
            "handle" => {
                role::answer(&format!("{:?}", legacy_handle(&gpu, plain).0));
                continue;
            }
            _ => return ExitCode::from(2),
        };
        role::answer(&answer.to_string());
    }
    ExitCode::SUCCESS
}

/// Gets the handle of plain memory.
pub(super) fn legacy_handle(gpu: &Fixture, at: u64) -> LegacyHandle {
    let mut handle = [0; 64];
    assert_eq!(gpu.raw.cuIpcGetMemHandle(&mut handle, at), SUCCESS);
    LegacyHandle(handle)
}
