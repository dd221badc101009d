//! Copies and fills.

use super::code::INVALID_VALUE;
use super::entry::entry;
use super::objects::{CopyEnd, READ, READ_WRITE, Work};
use super::pointers::CallResult;
use super::tables::{self, to_usize};
use super::{capture_rules, memory, queue};

/// Puts a copy on a stream. It waits for it if `waits`, or if the caller's memory
/// is pageable and to be written; pageable memory to be read is read at once.
fn copy(to: CopyEnd, from: CopyEnd, bytes: u64, handle: u64, waits: bool) -> CallResult {
    let (mut to, mut from, mut waits) = (to, from, waits);
    let mut state = tables::lock();
    let current = state.healthy()?;
    if bytes == 0 {
        return Ok(());
    }
    for (end, access) in [(&mut to, READ_WRITE), (&mut from, READ)] {
        match end {
            CopyEnd::Device(at) => drop(state.view(current.device, *at, bytes, access)?),
            CopyEnd::Host { at, is_known } => {
                *is_known = state.is_known_host(*at, to_usize(bytes))?;
            }
            CopyEnd::Staged(_) => {}
        }
    }
    if [&to, &from].iter().any(|end| matches!(end, CopyEnd::Host { is_known: false, .. })) {
        capture_rules::forbid_own(&mut state, current.context, handle)?;
    }
    waits |= matches!(to, CopyEnd::Host { is_known: false, .. });
    if let CopyEnd::Host { at, is_known: false } = &from {
        drop(state);
        let mut content = vec![0; to_usize(bytes)];
        if !memory::read_host(*at, &mut content) {
            return Err(INVALID_VALUE);
        }
        from = CopyEnd::Staged(content.into());
        state = tables::lock();
    }
    let op = state.submit(current, handle, Work::Copy { to, from, bytes })?;
    if waits { queue::settle(state, op.as_slice()).healthy().map(drop) } else { Ok(()) }
}

fn host(at: usize) -> CopyEnd {
    CopyEnd::Host { at, is_known: false }
}

entry! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: u64, stream: u64) {
        copy(CopyEnd::Device(to), host(from), bytes, stream, false)
    }
    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: u64, stream: u64) {
        copy(host(to), CopyEnd::Device(from), bytes, stream, false)
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: u64, stream: u64) {
        copy(CopyEnd::Device(to), CopyEnd::Device(from), bytes, stream, false)
    }
    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: u64) {
        copy(CopyEnd::Device(to), host(from), bytes, 0, true)
    }
    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: u64) {
        copy(host(to), CopyEnd::Device(from), bytes, 0, true)
    }
    fn cuMemsetD8Async(at: u64, byte: u8, bytes: u64, stream: u64) {
        let mut state = tables::lock();
        let current = state.healthy()?;
        if bytes == 0 {
            return Ok(());
        }
        state.view(current.device, at, bytes, READ_WRITE)?;
        state.submit(current, stream, Work::Fill { at, byte, bytes }).map(drop)
    }
    fn cuLaunchHostFunc(stream: u64, function: usize, data: usize) {
        let mut state = tables::lock();
        let current = state.healthy()?;
        state.submit(current, stream, Work::Call { function, data }).map(drop)
    }
}
