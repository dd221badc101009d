//! The tables of this process: everything that a handle or an address can mean.
//!
//! One lock guards all of it. Entries hold it briefly; operations run outside it
//! and look up what they need when they start and again when they are done. The
//! lock comes before the machine's, and nothing is waited for under it except
//! through [`CHANGED`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use super::code;
use super::memory::{Extent, Reservation};
use super::objects::{
    Context, ContextId, Event, Function, Graph, Handle, HostRange, Module, Op, Region, RegionKind,
    Stream,
};
use super::pointers::CallResult;
use super::sharing::Held;

/// The page of device memory: every size and address of virtual memory is a multiple.
pub(super) const PAGE_BYTES: u64 = 2 << 20;

/// `CU_STREAM_LEGACY`, another name of the null stream.
pub(super) const LEGACY: u64 = 1;

#[derive(Default)]
pub(super) struct Tables {
    /// The contexts that live.
    pub(super) contexts: BTreeMap<ContextId, Context>,
    /// The error that lost this process its contexts.
    pub(super) lost: Option<i32>,
    pub(super) reservations: BTreeMap<u64, (Reservation, u64)>,
    pub(super) handles: BTreeMap<u64, Handle>,
    /// The memory behind handles and addresses that other processes may have, too.
    pub(super) held: Held,
    /// The memory behind device addresses, by first address.
    pub(super) regions: BTreeMap<u64, Region>,
    /// Contexts, each with a device that may use its plain memory, too.
    pub(super) peers: BTreeSet<(ContextId, usize)>,
    /// Addresses of the driver's own pools, and whether they were freed into it.
    pub(super) pooled: BTreeMap<u64, bool>,
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

/// Signals a change in the tables.
pub(super) static CHANGED: Condvar = Condvar::new();
static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

pub(super) type Locked = MutexGuard<'static, Tables>;

/// Takes the lock. A panic elsewhere was reported by its own entry.
pub(super) fn lock() -> Locked {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the lock up until something changes.
pub(super) fn wait(state: Locked) -> Locked {
    CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    /// Returns a number that no other object has or had.
    pub(super) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns the stream behind a handle of a context.
    pub(super) fn stream(&mut self, context: ContextId, handle: u64) -> CallResult<&mut Stream> {
        let stream = match handle {
            0 | LEGACY => self.contexts.get_mut(&context).map(|context| &mut context.legacy),
            _ => self.streams.get_mut(&handle),
        };
        stream.filter(|stream| stream.context == context).ok_or(code::INVALID_HANDLE)
    }

    /// Returns the event behind a handle.
    pub(super) fn event(&mut self, handle: u64) -> CallResult<&mut Event> {
        self.events.get_mut(&handle).ok_or(code::INVALID_HANDLE)
    }

    /// Returns the regions that share an address with the range.
    pub(super) fn regions_in(&self, range: Range<u64>) -> Vec<u64> {
        let before = self.regions.range(..range.start).next_back();
        let before = before.filter(|(base, region)| *base + region.bytes > range.start);
        before.into_iter().chain(self.regions.range(range)).map(|(base, _)| *base).collect()
    }

    /// Returns the region that an address is in, with its first address.
    pub(super) fn region_at(&self, at: u64) -> Option<(u64, &Region)> {
        let base = *self.regions_in(at..at.saturating_add(1)).first()?;
        Some((base, &self.regions[&base]))
    }

    /// Returns the memory behind a range, if `device` has this access to all of it.
    pub(super) fn view(&self, device: usize, at: u64, bytes: u64, access: u32) -> CallResult<View> {
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

    /// Returns whether the driver knows this host memory. A range that is partly known, or known in two
    /// pieces, cannot be copied in one go.
    pub(super) fn is_known_host(&self, at: usize, bytes: usize) -> CallResult<bool> {
        let end = at.checked_add(bytes).ok_or(code::INVALID_VALUE)?;
        let near = self.host.range(..end).next_back();
        let near = near.map(|(base, known)| (*base, base + known.bytes));
        match near.filter(|(_, known_end)| *known_end > at) {
            None => Ok(false),
            Some((base, known_end)) if base <= at && end <= known_end => Ok(true),
            Some(_) => Err(code::INVALID_VALUE),
        }
    }

    /// Takes a plain allocation away and counts its memory back.
    pub(super) fn free_plain(&mut self, base: u64) -> CallResult {
        let plain = |region: &&Region| matches!(region.kind, RegionKind::Plain(..));
        self.regions.get(&base).filter(plain).ok_or(code::INVALID_VALUE)?;
        self.pooled.remove(&base);
        if let Some(Region { bytes, extent, kind: RegionKind::Plain(owner, _), .. }) =
            self.regions.remove(&base)
        {
            self.held.let_go(&extent, owner.device, bytes.next_multiple_of(PAGE_BYTES));
        }
        Ok(())
    }

    /// Takes memory of another process away.
    pub(super) fn drop_import(&mut self, base: u64) {
        if let Some(Region { bytes, extent, kind: RegionKind::Imported(imported), .. }) =
            self.regions.remove(&base)
        {
            self.held.let_import_go(&extent, imported.owner.device, bytes);
        }
    }

    /// Returns whether other processes can have memory by a legacy handle.
    pub(super) fn is_legacy_capable(&self, base: u64) -> bool {
        let region = self.regions.get(&base);
        let is_plain = region.is_some_and(|region| matches!(region.kind, RegionKind::Plain(..)));
        is_plain && !self.pooled.contains_key(&base)
    }

    /// Frees a handle's memory once it is neither held nor mapped.
    pub(super) fn drop_handle_if_unused(&mut self, id: u64) {
        let unused = |handle: &Handle| handle.references == 0 && handle.mappings == 0;
        if self.handles.get(&id).is_some_and(unused)
            && let Some(handle) = self.handles.remove(&id)
        {
            let Handle { device, bytes, extent, is_imported, .. } = handle;
            if is_imported {
                self.held.let_import_go(&extent, device, bytes);
            } else {
                self.held.let_go(&extent, device, bytes);
            }
        }
    }
}

/// Device memory in parts: extent, offset, bytes.
pub(super) struct View(Vec<(Arc<Extent>, usize, usize)>);

impl View {
    /// Returns whether it is the very same memory.
    pub(super) fn is_same(&self, other: &View) -> bool {
        let parts = |view: &View| -> Vec<(usize, usize, usize)> {
            view.0.iter().map(|(extent, at, bytes)| (extent.address(), *at, *bytes)).collect()
        };
        parts(self) == parts(other)
    }

    /// Copies bytes out of it.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        self.each_part(offset, into.len(), |extent, at, part| extent.read(at, &mut into[part]));
    }

    /// Fills it with zeros.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|(extent, offset, bytes)| extent.clear(*offset, *bytes));
    }

    /// Returns whether it was filled with zeros and not written since.
    pub(super) fn is_blank(&self) -> bool {
        self.0.iter().all(|(extent, offset, bytes)| extent.is_blank(*offset, *bytes))
    }

    /// Copies bytes into it.
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

/// Converts a size of memory that exists, which fits in a `usize`.
///
/// # Panics
/// If one does not.
pub(super) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit addresses")
}
