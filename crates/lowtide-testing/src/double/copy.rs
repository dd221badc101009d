//! Work: what a stream does, and the copies and fills that put it there.
//!
//! Addresses are checked twice, as on the GPU. At the call, a device range that is
//! not wholly mapped with access is an invalid value. When the work runs, memory
//! that went away in between loses the process its contexts: 719 for copies and fills,
//! 700 for kernels, and every later use or retain of one says so.

use std::sync::Arc;
use std::time::Duration;

use super::code::{INVALID_VALUE, LAUNCH_FAILED};
use super::entry::{Outcome, entry};
use super::kernel::Launch;
use super::state::{self, READ, READ_WRITE, View, to_usize};
use super::{capture, faults, memory, stream};

/// What moves at once, through a buffer: a copy may cross several extents.
const CHUNK_BYTES: usize = 1 << 20;

/// One operation of a stream.
#[derive(Clone)]
pub(super) enum Work {
    Copy {
        to: Place,
        from: Place,
        bytes: u64,
    },
    Fill {
        at: u64,
        byte: u8,
        bytes: u64,
    },
    Launch(Arc<Launch>),
    Graph(Arc<[Work]>),
    /// To be waited for.
    Nothing,
}

/// One end of a copy.
#[derive(Clone)]
pub(super) enum Place {
    Device(u64),
    /// The caller's memory; if the driver knew it at the call it must when the work runs.
    Host {
        at: usize,
        is_known: bool,
    },
    /// Pageable memory as it was at the call.
    Staged(Arc<[u8]>),
}

/// A place while work runs on it.
pub(super) enum Opened {
    Device { device: usize, at: u64, bytes: u64, access: u32, view: View },
    Host(usize),
    Staged(Arc<[u8]>),
}

impl Opened {
    /// Device memory, if the device may use all of it so.
    pub(super) fn device(device: usize, at: u64, bytes: u64, access: u32) -> Option<Opened> {
        let view = state::lock().view(device, at, bytes, access).ok()?;
        Some(Opened::Device { device, at, bytes, access, view })
    }

    /// Memory that a kernel may use: the device's, or host memory that the driver
    /// knows, which has the same address there.
    pub(super) fn by_kernel(device: usize, at: u64, bytes: u64, access: u32) -> Option<Opened> {
        let host = Place::Host { at: to_usize(at), is_known: true };
        Opened::device(device, at, bytes, access)
            .or_else(|| Opened::new(&host, device, bytes, access))
    }

    fn new(place: &Place, device: usize, bytes: u64, access: u32) -> Option<Opened> {
        match place {
            Place::Device(at) => Opened::device(device, *at, bytes, access),
            Place::Host { at, is_known } => {
                let known = || state::lock().is_known_host(*at, to_usize(bytes)) == Ok(true);
                (!is_known || known()).then_some(Opened::Host(*at))
            }
            Place::Staged(content) => Some(Opened::Staged(Arc::clone(content))),
        }
    }

    /// Whether it is what it was when it was opened. Host memory does not go under work.
    pub(super) fn is_still_there(&self) -> bool {
        match self {
            Opened::Device { device, at, bytes, access, view } => {
                let now = state::lock().view(*device, *at, *bytes, *access);
                now.is_ok_and(|now| now.is_same(view))
            }
            Opened::Host(_) | Opened::Staged(_) => true,
        }
    }

    /// Copies out of it; false where it cannot be read.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        match self {
            Opened::Device { view, .. } => view.read(offset, into),
            Opened::Host(at) => return memory::read_host(at + offset, into),
            Opened::Staged(content) => into.copy_from_slice(&content[offset..][..into.len()]),
        }
        true
    }

    /// Copies into it; false where it cannot be written.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> bool {
        match self {
            Opened::Device { view, .. } => view.write(offset, from),
            Opened::Host(at) => return memory::write_host(at + offset, from),
            Opened::Staged(_) => return false,
        }
        true
    }
}

impl Work {
    /// Does it. An error is one that the process does not recover from.
    pub(super) fn run(&self, device: usize) -> Outcome {
        let done = match self {
            Work::Copy { to, from, bytes } => run_copy(device, to, from, *bytes),
            Work::Fill { at, byte, bytes } => run_fill(device, *at, *byte, *bytes),
            Work::Launch(launch) => return launch.run(device),
            Work::Graph(works) => return works.iter().try_for_each(|work| work.run(device)),
            Work::Nothing => Some(()),
        };
        done.ok_or(LAUNCH_FAILED)
    }
}

fn run_copy(device: usize, to: &Place, from: &Place, bytes: u64) -> Option<()> {
    let from = Opened::new(from, device, bytes, READ)?;
    let to = Opened::new(to, device, bytes, READ_WRITE)?;
    let bytes = to_usize(bytes);
    let mut buffer = vec![0; bytes.min(CHUNK_BYTES)];
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        let chunk = &mut buffer[..(bytes - offset).min(CHUNK_BYTES)];
        (from.read(offset, chunk) && to.write(offset, chunk)).then_some(())?;
    }
    std::thread::sleep(Duration::from_micros(faults::settings().copy_us));
    (from.is_still_there() && to.is_still_there()).then_some(())
}

fn run_fill(device: usize, at: u64, byte: u8, bytes: u64) -> Option<()> {
    let to = Opened::device(device, at, bytes, READ_WRITE)?;
    let bytes = to_usize(bytes);
    let buffer = vec![byte; bytes.min(CHUNK_BYTES)];
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        to.write(offset, &buffer[..(bytes - offset).min(CHUNK_BYTES)]).then_some(())?;
    }
    to.is_still_there().then_some(())
}

/// Puts a copy on a stream. It waits for it if `waits`, or if the caller's memory
/// is pageable and to be written; pageable memory to be read is read at once.
fn copy(to: Place, from: Place, bytes: u64, handle: u64, waits: bool) -> Outcome {
    let (mut to, mut from, mut waits) = (to, from, waits);
    let mut state = state::lock();
    let device = state.healthy()?;
    if bytes == 0 {
        return Ok(());
    }
    for (place, access) in [(&mut to, READ_WRITE), (&mut from, READ)] {
        match place {
            Place::Device(at) => drop(state.view(device, *at, bytes, access)?),
            Place::Host { at, is_known } => {
                *is_known = state.is_known_host(*at, to_usize(bytes))?;
            }
            Place::Staged(_) => {}
        }
    }
    if [&to, &from].iter().any(|place| matches!(place, Place::Host { is_known: false, .. })) {
        capture::forbid_own(&mut state, device, handle)?;
    }
    waits |= matches!(to, Place::Host { is_known: false, .. });
    if let Place::Host { at, is_known: false } = &from {
        drop(state);
        let mut content = vec![0; to_usize(bytes)];
        if !memory::read_host(*at, &mut content) {
            return Err(INVALID_VALUE);
        }
        from = Place::Staged(content.into());
        state = state::lock();
    }
    let op = state.submit(device, handle, Work::Copy { to, from, bytes })?;
    if waits { stream::settle(state, op.as_slice()).healthy().map(drop) } else { Ok(()) }
}

fn host(at: usize) -> Place {
    Place::Host { at, is_known: false }
}

entry! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: u64, stream: u64) {
        copy(Place::Device(to), host(from), bytes, stream, false)
    }
    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: u64, stream: u64) {
        copy(host(to), Place::Device(from), bytes, stream, false)
    }
    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: u64) {
        copy(Place::Device(to), host(from), bytes, 0, true)
    }
    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: u64) {
        copy(host(to), Place::Device(from), bytes, 0, true)
    }
    fn cuMemsetD8Async(at: u64, byte: u8, bytes: u64, stream: u64) {
        let mut state = state::lock();
        let device = state.healthy()?;
        if bytes == 0 {
            return Ok(());
        }
        state.view(device, at, bytes, READ_WRITE)?;
        state.submit(device, stream, Work::Fill { at, byte, bytes }).map(drop)
    }
}
