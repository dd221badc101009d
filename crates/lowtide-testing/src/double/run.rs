//! The execution of work: copies, fills and graphs.
//!
//! Addresses are checked twice, as on the GPU. At the call, a device range that is not wholly mapped
//! with access is an invalid value. When the work runs, memory that went away in between loses the
//! process its contexts: 719 for copies and fills, 700 for kernels, and every later use or retain of
//! one says so.

use std::sync::Arc;
use std::time::Duration;

use super::code::LAUNCH_FAILED;
use super::objects::{CopyEnd, READ, READ_WRITE, Work};
use super::pointers::CallResult;
use super::tables::{self, View, to_usize};
use super::{faults, memory};

/// The bytes that move at once, through a buffer: a copy may cross several extents. They stay in the
/// processor's cache, so that a copy takes little longer than one without a buffer.
const CHUNK_BYTES: usize = 64 << 10;

/// An end of a copy, or memory of a kernel, while work runs on it.
pub(super) enum Opened {
    Device { device: usize, at: u64, bytes: u64, access: u32, view: View },
    Host(usize),
    Staged(Arc<[u8]>),
}

impl Opened {
    /// Opens device memory, if the device has this access to all of it.
    pub(super) fn device(device: usize, at: u64, bytes: u64, access: u32) -> Option<Opened> {
        let view = tables::lock().view(device, at, bytes, access).ok()?;
        Some(Opened::Device { device, at, bytes, access, view })
    }

    /// Opens memory that a kernel may use: the device's, or host memory that the driver knows, which
    /// has the same address there.
    pub(super) fn by_kernel(device: usize, at: u64, bytes: u64, access: u32) -> Option<Opened> {
        let host = CopyEnd::Host { at: to_usize(at), is_known: true };
        Opened::device(device, at, bytes, access)
            .or_else(|| Opened::new(&host, device, bytes, access))
    }

    fn new(end: &CopyEnd, device: usize, bytes: u64, access: u32) -> Option<Opened> {
        match end {
            CopyEnd::Device(at) => Opened::device(device, *at, bytes, access),
            CopyEnd::Host { at, is_known } => {
                let known = || tables::lock().is_known_host(*at, to_usize(bytes)) == Ok(true);
                (!is_known || known()).then_some(Opened::Host(*at))
            }
            CopyEnd::Staged(content) => Some(Opened::Staged(Arc::clone(content))),
        }
    }

    /// Returns whether it is the memory that was opened. Host memory does not go under work.
    pub(super) fn is_still_there(&self) -> bool {
        match self {
            Opened::Device { device, at, bytes, access, view } => {
                let now = tables::lock().view(*device, *at, *bytes, *access);
                now.is_ok_and(|now| now.is_same(view))
            }
            Opened::Host(_) | Opened::Staged(_) => true,
        }
    }

    /// Returns whether it is memory of the device that was filled with zeros and not written since.
    pub(super) fn is_blank(&self) -> bool {
        matches!(self, Opened::Device { view, .. } if view.is_blank())
    }

    /// Copies bytes out of it; false if it cannot be read.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        match self {
            Opened::Device { view, .. } => view.read(offset, into),
            Opened::Host(at) => return memory::read_host(at + offset, into),
            Opened::Staged(content) => into.copy_from_slice(&content[offset..][..into.len()]),
        }
        true
    }

    /// Copies bytes into it; false if it cannot be written.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> bool {
        match self {
            Opened::Device { view, .. } => view.write(offset, from),
            Opened::Host(at) => return memory::write_host(at + offset, from),
            Opened::Staged(_) => return false,
        }
        true
    }

    /// Copies bytes into it out of `from`; false if one of them cannot be used.
    pub(super) fn copy_from(&self, from: &Opened, bytes: usize) -> bool {
        let mut buffer = vec![0; bytes.min(CHUNK_BYTES)];
        (0..bytes).step_by(CHUNK_BYTES).all(|offset| {
            let chunk = &mut buffer[..(bytes - offset).min(CHUNK_BYTES)];
            from.read(offset, chunk) && self.write(offset, chunk)
        })
    }
}

impl Work {
    /// Runs the work. An error is one that the process does not recover from.
    pub(super) fn run(&self, device: usize) -> CallResult {
        let done = match self {
            Work::Copy { to, from, bytes } => run_copy(device, to, from, *bytes),
            Work::Fill { at, byte, bytes } => run_fill(device, *at, *byte, *bytes),
            Work::Launch(launch) => return launch.run(device),
            Work::Graph(works) => return works.iter().try_for_each(|work| work.run(device)),
            Work::Call { function, data } => {
                memory::call_host(*function, *data);
                Some(())
            }
            Work::Nothing => Some(()),
        };
        done.ok_or(LAUNCH_FAILED)
    }
}

fn run_copy(device: usize, to: &CopyEnd, from: &CopyEnd, bytes: u64) -> Option<()> {
    let from = Opened::new(from, device, bytes, READ)?;
    let to = Opened::new(to, device, bytes, READ_WRITE)?;
    to.copy_from(&from, to_usize(bytes)).then_some(())?;
    std::thread::sleep(Duration::from_micros(faults::settings().copy_us));
    (from.is_still_there() && to.is_still_there()).then_some(())
}

fn run_fill(device: usize, at: u64, byte: u8, bytes: u64) -> Option<()> {
    let to = Opened::device(device, at, bytes, READ_WRITE)?;
    if let (0, Opened::Device { view, .. }) = (byte, &to) {
        view.clear();
        return to.is_still_there().then_some(());
    }
    let bytes = to_usize(bytes);
    let buffer = vec![byte; bytes.min(CHUNK_BYTES)];
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        to.write(offset, &buffer[..(bytes - offset).min(CHUNK_BYTES)]).then_some(())?;
    }
    to.is_still_there().then_some(())
}
