//! The tables of this process: everything that a handle or an address can mean.
//!
//! One lock guards all of it. Entries hold it briefly; operations run outside it
//! and look up what they need when they start and again when they are done. The
//! lock comes before the machine's turn, and nothing is waited for under it except
//! through [`CHANGED`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use super::capture::Graph;
use super::code;
use super::context::Context;
use super::entry::Outcome;
use super::kernel::{Function, Module};
use super::machine::{self, MAX_DEVICES};
use super::memory::{Extent, Reservation};
use super::stream::{Event, Op, Stream};

/// The page of device memory: every size and address of virtual memory is a multiple.
pub(super) const PAGE_BYTES: u64 = 2 << 20;

#[derive(Default)]
pub(super) struct State {
    pub(super) contexts: [Context; MAX_DEVICES],
    /// The error that lost this process its contexts.
    pub(super) lost: Option<i32>,
    pub(super) reservations: BTreeMap<u64, (Reservation, u64)>,
    pub(super) handles: BTreeMap<u64, Handle>,
    /// What device addresses mean, by first address.
    pub(super) regions: BTreeMap<u64, Region>,
    /// Host memory that the driver knows, by first address.
    pub(super) host: BTreeMap<usize, HostRange>,
    pub(super) streams: BTreeMap<u64, Stream>,
    /// Handles of destroyed streams; the driver hands them out again, so we do.
    pub(super) stream_handles: Vec<u64>,
    pub(super) events: BTreeMap<u64, Event>,
    /// Operations that are not done.
    pub(super) ops: BTreeMap<u64, Op>,
    pub(super) modules: BTreeMap<u64, Module>,
    pub(super) functions: BTreeMap<u64, Function>,
    pub(super) graphs: BTreeMap<u64, Graph>,
    last_id: u64,
}

/// One `cuMemCreate`.
pub(super) struct Handle {
    pub(super) device: usize,
    pub(super) bytes: u64,
    pub(super) extent: Arc<Extent>,
    pub(super) is_released: bool,
    pub(super) mappings: u32,
}

/// Addresses with memory behind them.
pub(super) struct Region {
    pub(super) bytes: u64,
    pub(super) extent: Arc<Extent>,
    /// What each device may do: 0 nothing, [`READ`] or [`READ_WRITE`].
    pub(super) access: [u32; MAX_DEVICES],
    pub(super) kind: RegionKind,
}

pub(super) enum RegionKind {
    /// By `cuMemMap`, of this handle.
    Mapped(u64),
    /// By `cuMemAlloc`, on this device, at addresses of its own.
    Plain(usize, #[allow(dead_code, reason = "held for its drop")] Reservation),
}

pub(super) const READ: u32 = 1;
pub(super) const READ_WRITE: u32 = 3;

/// Host memory that copies can use directly.
pub(super) struct HostRange {
    pub(super) bytes: usize,
    pub(super) device: usize,
    /// By `cuMemHostAlloc`; registered memory is the caller's.
    pub(super) allocated: Option<Extent>,
}

/// Something in the tables changed that somebody may wait for.
pub(super) static CHANGED: Condvar = Condvar::new();
static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

pub(super) type Locked = MutexGuard<'static, State>;

/// Takes the lock. A panic elsewhere was reported by its own entry.
pub(super) fn lock() -> Locked {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the lock up until something changes.
pub(super) fn wait(state: Locked) -> Locked {
    CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A number that no other thing has or had.
    pub(super) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Regions that share an address with the range.
    pub(super) fn regions_in(&self, range: Range<u64>) -> Vec<u64> {
        let before = self.regions.range(..range.start).next_back();
        let before = before.filter(|(base, region)| *base + region.bytes > range.start);
        before.into_iter().chain(self.regions.range(range)).map(|(base, _)| *base).collect()
    }

    /// The memory behind a range, if `device` may use all of it so.
    pub(super) fn view(&self, device: usize, at: u64, bytes: u64, access: u32) -> Outcome<View> {
        let end = at.checked_add(bytes).ok_or(code::INVALID_VALUE)?;
        let mut view = View(Vec::new());
        let mut next = at;
        for base in self.regions_in(at..end) {
            let region = &self.regions[&base];
            if base > next || region.access[device] & access != access {
                return Err(code::INVALID_VALUE);
            }
            let part = (base + region.bytes).min(end) - next;
            view.0.push((Arc::clone(&region.extent), to_usize(next - base), to_usize(part)));
            next += part;
        }
        if next == end { Ok(view) } else { Err(code::INVALID_VALUE) }
    }

    /// Frees a handle's memory once it is neither held nor mapped.
    pub(super) fn drop_handle_if_unused(&mut self, id: u64) {
        let unused = |handle: &Handle| handle.is_released && handle.mappings == 0;
        if self.handles.get(&id).is_some_and(unused)
            && let Some(handle) = self.handles.remove(&id)
        {
            machine::get().locked().give(handle.device, handle.bytes);
        }
    }
}

/// Device memory in parts: extent, offset, bytes.
pub(super) struct View(Vec<(Arc<Extent>, usize, usize)>);

impl View {
    /// Whether it is the very same memory.
    pub(super) fn is_same(&self, other: &View) -> bool {
        let parts = |view: &View| -> Vec<(usize, usize, usize)> {
            view.0.iter().map(|(extent, at, bytes)| (extent.address(), *at, *bytes)).collect()
        };
        parts(self) == parts(other)
    }

    /// Copies out of it.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        self.each_part(offset, into.len(), |extent, at, part| extent.read(at, &mut into[part]));
    }

    /// Copies into it.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        self.each_part(offset, from.len(), |extent, at, part| extent.write(at, &from[part]));
    }

    fn each_part(
        &self,
        mut skip: usize,
        bytes: usize,
        mut visit: impl FnMut(&Extent, usize, Range<usize>),
    ) {
        let mut done = 0;
        for (extent, offset, length) in &self.0 {
            let part = length.saturating_sub(skip).min(bytes - done);
            if part > 0 {
                visit(extent, offset + skip, done..done + part);
                done += part;
            }
            skip = skip.saturating_sub(*length);
        }
        assert_eq!(done, bytes, "a part outside of its view");
    }
}

/// Sizes of memory that exists fit in a `usize`.
///
/// # Panics
/// If one does not.
pub(super) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit addresses")
}
