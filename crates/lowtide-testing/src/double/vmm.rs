//! Virtual memory: reservations, handles, mappings, access.
//!
//! The rules are the H200's as probed, except where the module's page says that the
//! double is stricter. None of these calls needs a context.

use std::ops::Range;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

use super::code::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY};
use super::entry::entry;
use super::files::Place;
use super::memory::{Extent, Reservation};
use super::objects::{
    AllocationProp, Handle, Location, ON_DEVICE, PINNED, READ, READ_WRITE, Region, RegionKind,
};
use super::pointers::{CallResult, In, Out};
use super::settings::MAX_DEVICES;
use super::sharing::Description;
use super::tables::{self, PAGE_BYTES, Tables, to_usize};
use super::{faults, machine};

/// The layout of `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AccessDesc {
    location: Location,
    flags: u32,
}

const _: () = {
    use cudarc::driver::sys;
    assert!(size_of::<AllocationProp>() == size_of::<sys::CUmemAllocationProp>());
    assert!(size_of::<AccessDesc>() == size_of::<sys::CUmemAccessDesc>());
};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;

impl Location {
    fn device(self) -> CallResult<usize> {
        if self.kind != ON_DEVICE {
            return Err(INVALID_VALUE);
        }
        let index = usize::try_from(self.id).ok();
        index.filter(|index| *index < machine::get().devices()).ok_or(INVALID_DEVICE)
    }
}

impl AllocationProp {
    fn device(self) -> CallResult<usize> {
        if self.kind == PINNED { self.location.device() } else { Err(INVALID_VALUE) }
    }
}

/// Checks that a size is one that virtual memory can have.
fn whole_pages(bytes: u64) -> CallResult<u64> {
    if bytes > 0 && bytes.is_multiple_of(PAGE_BYTES) { Ok(bytes) } else { Err(INVALID_VALUE) }
}

/// Takes new memory of a device for this process.
pub(super) fn new_extent(device: usize, bytes: u64) -> CallResult<Arc<Extent>> {
    if bytes >= faults::settings().oom_at || !machine::get().locked().take(device, bytes) {
        return Err(OUT_OF_MEMORY);
    }
    Extent::new(to_usize(bytes)).map(Arc::new).ok_or_else(|| {
        machine::get().locked().give(device, bytes);
        OUT_OF_MEMORY
    })
}

impl Tables {
    fn new_handle(
        &mut self,
        device: usize,
        bytes: u64,
        extent: Arc<Extent>,
        properties: AllocationProp,
        is_imported: bool,
    ) -> u64 {
        let (id, references, mappings) = (self.new_id(), 1, 0);
        let made = Handle { device, bytes, extent, properties, references, mappings, is_imported };
        self.handles.insert(id, made);
        id
    }

    /// Returns a range of whole pages that lies in one reservation.
    fn reserved_pages(&self, at: u64, bytes: u64) -> CallResult<Range<u64>> {
        let end = at.checked_add(whole_pages(bytes)?).ok_or(INVALID_VALUE)?;
        let inside = self.reservations.range(..=at).next_back();
        let inside = inside.is_some_and(|(base, (_, reserved))| end <= base + reserved);
        if at.is_multiple_of(PAGE_BYTES) && inside { Ok(at..end) } else { Err(INVALID_VALUE) }
    }

    /// Returns the mappings in a range, if it cuts none.
    fn whole_mappings(&self, range: Range<u64>) -> CallResult<Vec<u64>> {
        let bases = self.regions_in(range.clone());
        let whole =
            |base: &u64| range.contains(base) && base + self.regions[base].bytes <= range.end;
        if bases.iter().all(whole) { Ok(bases) } else { Err(INVALID_VALUE) }
    }
}

entry! {
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, prop: In<AllocationProp>, option: u32) {
        prop.get()?.device()?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        bytes.put(to_usize(PAGE_BYTES))
    }

    fn cuMemAddressReserve(at: Out<u64>, bytes: u64, alignment: u64, _hint: u64, flags: u64) {
        whole_pages(bytes)?;
        if flags != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        let alignment = alignment.max(PAGE_BYTES);
        let taken = Reservation::new(to_usize(bytes), to_usize(alignment)).ok_or(OUT_OF_MEMORY)?;
        at.put(taken.base())?;
        tables::lock().reservations.insert(taken.base(), (taken, bytes));
        Ok(())
    }

    fn cuMemAddressFree(at: u64, bytes: u64) {
        let mut state = tables::lock();
        if state.reservations.get(&at).is_none_or(|(_, reserved)| *reserved != bytes)
            || !state.regions_in(at..at + bytes).is_empty()
        {
            return Err(INVALID_VALUE);
        }
        state.reservations.remove(&at);
        Ok(())
    }

    fn cuMemCreate(handle: Out<u64>, bytes: u64, prop: In<AllocationProp>, flags: u64) {
        let prop = prop.get()?;
        let device = prop.device()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let extent = new_extent(device, whole_pages(bytes)?)?;
        handle.put(tables::lock().new_handle(device, bytes, extent, prop, false))
    }

    // No GPU was asked for the codes of its refusals.
    fn cuMemRetainAllocationHandle(handle: Out<u64>, at: u64) {
        let mut state = tables::lock();
        let (_, region) = state.region_at(at).ok_or(INVALID_VALUE)?;
        let RegionKind::Mapped(id) = region.kind else { return Err(INVALID_VALUE) };
        state.handles.get_mut(&id).ok_or(INVALID_VALUE)?.references += 1;
        handle.put(id)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<AllocationProp>, handle: u64) {
        properties.put(tables::lock().handles.get(&handle).ok_or(INVALID_VALUE)?.properties)
    }

    // The refusals are those of the arguments; no GPU was asked for their codes.
    fn cuMemExportToShareableHandle(shared: Out<i32>, handle: u64, kind: u32, flags: u64) {
        let mut state = tables::lock();
        let Tables { handles, held, .. } = &mut *state;
        let Handle { extent, bytes, properties, .. } = handles.get(&handle).ok_or(INVALID_VALUE)?;
        if flags != 0 || kind != FILE_DESCRIPTOR || properties.handle_types & kind == 0 {
            return Err(INVALID_VALUE);
        }
        let (place, _) = held.export(extent, *bytes, *properties)?;
        let descriptor = place.descriptor().map_err(|_| OPERATING_SYSTEM)?;
        shared.put(descriptor.as_raw_fd())?;
        // It is the caller's now.
        let _number = descriptor.into_raw_fd();
        Ok(())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, shared: usize, kind: u32) {
        let descriptor = i32::try_from(shared).map_err(|_| INVALID_VALUE)?;
        if kind != FILE_DESCRIPTOR {
            return Err(INVALID_VALUE);
        }
        let place = Place::of_descriptor(descriptor).map_err(|_| INVALID_VALUE)?;
        let mut state = tables::lock();
        let (extent, described) = state.held.import(place, None)?;
        let Description { bytes, properties, .. } = described;
        let properties = AllocationProp { handle_types: 0, ..properties };
        handle.put(state.new_handle(described.device(), bytes, extent, properties, true))
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, at: u64) {
        let (device, state) = (location.get()?.device()?, tables::lock());
        flags.put(state.region_at(at).ok_or(INVALID_VALUE)?.1.access[device].into())
    }

    fn cuMemRelease(handle: u64) {
        let mut state = tables::lock();
        let held = state.handles.get_mut(&handle).filter(|handle| handle.references > 0);
        held.ok_or(INVALID_VALUE)?.references -= 1;
        state.drop_handle_if_unused(handle);
        Ok(())
    }

    fn cuMemMap(at: u64, bytes: u64, offset: u64, handle: u64, flags: u64) {
        let mut state = tables::lock();
        let held = state.handles.get(&handle).ok_or(INVALID_VALUE)?;
        if offset != 0 || bytes != held.bytes {
            return Err(NOT_SUPPORTED);
        }
        let extent = Arc::clone(&held.extent);
        let range = state.reserved_pages(at, bytes)?;
        if flags != 0 || !state.regions_in(range).is_empty() {
            return Err(INVALID_VALUE);
        }
        let kind = RegionKind::Mapped(handle);
        state.regions
            .insert(at, Region { id: handle, bytes, extent, access: [0; MAX_DEVICES], kind });
        state.handles.get_mut(&handle).ok_or(INVALID_VALUE)?.mappings += 1;
        Ok(())
    }

    fn cuMemUnmap(at: u64, bytes: u64) {
        let mut state = tables::lock();
        let range = state.reserved_pages(at, bytes)?;
        for base in state.whole_mappings(range)? {
            if let Some(Region { kind: RegionKind::Mapped(id), .. }) = state.regions.remove(&base) {
                state.handles.get_mut(&id).ok_or(INVALID_VALUE)?.mappings -= 1;
                state.drop_handle_if_unused(id);
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(at: u64, bytes: u64, wanted: In<AccessDesc>, count: usize) {
        // One for each device at most. No GPU was asked.
        let count = Some(count).filter(|count| *count <= MAX_DEVICES).ok_or(INVALID_VALUE)?;
        let wanted = wanted.get_all(count)?;
        if wanted.is_empty() || wanted.iter().any(|one| ![0, READ, READ_WRITE].contains(&one.flags)) {
            return Err(INVALID_VALUE);
        }
        let mut state = tables::lock();
        let range = state.reserved_pages(at, bytes)?;
        let bases = state.whole_mappings(range)?;
        if bases.iter().map(|base| state.regions[base].bytes).sum::<u64>() != bytes {
            return Err(INVALID_VALUE);
        }
        let devices = wanted.iter().map(|one| one.location.device()).collect::<CallResult<Vec<_>>>()?;
        for base in bases {
            let region = state.regions.get_mut(&base).ok_or(INVALID_VALUE)?;
            for (device, one) in devices.iter().zip(&wanted) {
                region.access[*device] = one.flags;
            }
        }
        Ok(())
    }
}
