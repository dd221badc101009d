//! Memory the older way: plain allocations, and host memory that the driver knows.

use super::code::{
    ALREADY_REGISTERED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, NOT_REGISTERED,
    NOT_SUPPORTED, OUT_OF_MEMORY,
};
use super::entry::entry;
use super::memory::{self, Extent, Reservation};
use super::objects::{ContextId, HostRange, READ_WRITE, Region, RegionKind};
use super::pointers::{CallResult, In, Out};
use super::settings::MAX_DEVICES;
use super::tables::{self, PAGE_BYTES, Tables, to_usize};
use super::{machine, queue, vmm};

/// Host memory to be only read by the device: `CU_MEMHOSTREGISTER_READ_ONLY`.
const REGISTER_READ_ONLY: u32 = 8;

/// Attributes of a pointer, by the driver's numbers.
const ATTRIBUTE_CONTEXT: i32 = 1;
const ATTRIBUTE_MEMORY_TYPE: i32 = 2;
const ATTRIBUTE_SYNC_MEMOPS: i32 = 6;
const ATTRIBUTE_BUFFER_ID: i32 = 7;
const ATTRIBUTE_DEVICE: i32 = 9;
const ATTRIBUTE_LEGACY_CAPABLE: i32 = 10;
const ATTRIBUTE_RANGE_START: i32 = 11;
const ATTRIBUTE_RANGE_BYTES: i32 = 12;
const ATTRIBUTE_MAPPED: i32 = 13;
const ATTRIBUTE_HANDLE_TYPES: i32 = 14;
const ATTRIBUTE_MAPPING_BYTES: i32 = 18;
const ATTRIBUTE_MAPPING_START: i32 = 19;

/// Attributes that are words: addresses, sizes, numbers, handles. The others are ints.
const WORDS: [i32; 10] = [1, 3, 4, 5, 7, 11, 12, 17, 18, 19];

/// Device memory, of whatever kind.
const ON_A_DEVICE: u64 = 2;

entry! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = tables::lock().healthy()?.device;
        let machine = machine::get();
        free.put(to_usize(machine.locked().free(device)))?;
        total.put(to_usize(machine.total().saturating_sub(machine.reserved())))
    }

    fn cuMemAlloc_v2(at: Out<u64>, bytes: u64) {
        allocate(&at, bytes)
    }

    // Waits for all work in flight, as the driver does. No context has to be current.
    fn cuMemFree_v2(at: u64) {
        if at == 0 {
            return Ok(());
        }
        let state = tables::lock();
        let context = state.healthy_owner(at)?;
        let mut state = queue::settle_context(state, context);
        state.healthy_owner(at)?;
        state.free_plain(at)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, at: u64) {
        let state = tables::lock();
        state.healthy()?;
        let (found, region) = state.region_at(at).ok_or(NOT_FOUND)?;
        base.put_if_wanted(found);
        bytes.put_if_wanted(to_usize(region.bytes));
        Ok(())
    }

    fn cuPointerGetAttribute(data: Out<u64>, attribute: i32, at: u64) {
        put_attribute(&data, attribute, attribute_of(&tables::lock(), attribute, at)?)
    }

    // Zeros stand for what an address does not have, also where the driver does not know it.
    fn cuPointerGetAttributes(count: u32, kinds: In<i32>, places: In<Out<u64>>, at: u64) {
        let (state, count) = (tables::lock(), count as usize);
        let (kinds, places) = (kinds.get_all(count)?, places.get_places(count)?);
        let mut all = kinds.into_iter().zip(places);
        all.try_for_each(|(kind, place)| {
            put_attribute(&place, kind, attribute_of(&state, kind, at).unwrap_or(0))
        })
    }

    // Memory of a context for the device of the current one, also what comes later. No GPU was asked.
    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        let (mut state, peer) = (tables::lock(), ContextId(peer));
        let device = state.healthy()?.device;
        let owner = state.contexts.get(&peer).ok_or(INVALID_CONTEXT)?.device;
        if flags != 0 || owner == device {
            return Err(if flags != 0 { INVALID_VALUE } else { INVALID_DEVICE });
        }
        state.peers.insert((peer, device));
        for region in state.regions.values_mut() {
            if matches!(region.kind, RegionKind::Plain(owner, _) if owner.context == peer) {
                region.access[device] = READ_WRITE;
            }
        }
        Ok(())
    }

    // A context without work: the agent asks only whether it is there.
    fn cuGreenCtxCreate(context: Out<u64>, how: usize, _device: i32, _flags: u32) {
        let id = tables::lock().new_context_id();
        if how == 0 { Err(INVALID_VALUE) } else { context.put(id.0) }
    }

    fn cuGreenCtxDestroy(context: u64) {
        if context == 0 { Err(INVALID_CONTEXT) } else { Ok(()) }
    }

    // Plain memory takes it, virtual memory does not.
    fn cuPointerSetAttribute(value: In<i32>, attribute: i32, at: u64) {
        value.get()?;
        let state = tables::lock();
        let (_, region) = state.region_at(at).ok_or(INVALID_VALUE)?;
        match (&region.kind, attribute) {
            (RegionKind::Plain(..), ATTRIBUTE_SYNC_MEMOPS) => Ok(()),
            (RegionKind::Plain(..), _) => Err(INVALID_VALUE),
            _ => Err(NOT_SUPPORTED),
        }
    }

    fn cuMemHostAlloc(at: Out<usize>, bytes: usize, _flags: u32) {
        let mut state = tables::lock();
        let context = state.healthy()?.context;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let extent = Extent::new(bytes).ok_or(OUT_OF_MEMORY)?;
        let base = extent.address();
        state.host.insert(base, HostRange { bytes, context, allocated: Some(extent) });
        at.put(base)
    }

    fn cuMemFreeHost(at: usize) {
        forget_host(at, true, INVALID_VALUE)
    }

    fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) {
        let mut state = tables::lock();
        let context = state.healthy()?.context;
        let writable = flags & REGISTER_READ_ONLY == 0;
        if bytes == 0 || !memory::is_usable_host(at, bytes, writable) {
            return Err(INVALID_VALUE);
        }
        if state.is_known_host(at, bytes) != Ok(false) {
            return Err(ALREADY_REGISTERED);
        }
        state.host.insert(at, HostRange { bytes, context, allocated: None });
        Ok(())
    }

    fn cuMemHostUnregister(at: usize) {
        forget_host(at, false, NOT_REGISTERED)
    }
}

/// Returns an attribute of an address. Of virtual memory only the size of its mapping and its number were asked for.
fn attribute_of(state: &Tables, attribute: i32, at: u64) -> CallResult<u64> {
    let (found, region) = state.region_at(at).ok_or(INVALID_VALUE)?;
    match attribute {
        ATTRIBUTE_MAPPING_BYTES => return Ok(region.bytes),
        ATTRIBUTE_MAPPING_START => return Ok(found),
        ATTRIBUTE_BUFFER_ID => return Ok(region.id),
        _ => {}
    }
    let owner = match &region.kind {
        RegionKind::Mapped(_) => return Err(NOT_SUPPORTED),
        RegionKind::Plain(owner, _) => owner,
        RegionKind::Imported(imported) => &imported.owner,
    };
    Ok(match attribute {
        ATTRIBUTE_CONTEXT => owner.context.0,
        ATTRIBUTE_RANGE_START => found,
        ATTRIBUTE_RANGE_BYTES => region.bytes,
        ATTRIBUTE_MEMORY_TYPE => ON_A_DEVICE,
        ATTRIBUTE_SYNC_MEMOPS | ATTRIBUTE_HANDLE_TYPES => 0,
        ATTRIBUTE_DEVICE => owner.device as u64,
        ATTRIBUTE_LEGACY_CAPABLE => state.is_legacy_capable(found).into(),
        ATTRIBUTE_MAPPED => 1,
        _ => return Err(NOT_SUPPORTED),
    })
}

/// Writes an attribute; for an int the caller has space for no more.
fn put_attribute(place: &Out<u64>, attribute: i32, value: u64) -> CallResult {
    if WORDS.contains(&attribute) { place.put(value) } else { place.put_small(value as u32) }
}

/// Allocates plain memory in the current context.
pub(super) fn allocate(at: &Out<u64>, bytes: u64) -> CallResult {
    let current = tables::lock().healthy()?;
    let device = current.device;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let pages = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(OUT_OF_MEMORY)?;
    let extent = vmm::new_extent(device, pages)?;
    // A page of nothing behind it, so that no copy runs from one into the next.
    let addresses = Reservation::new(to_usize(pages + PAGE_BYTES), to_usize(PAGE_BYTES));
    let addresses = addresses.ok_or_else(|| {
        machine::get().locked().give(device, pages);
        OUT_OF_MEMORY
    })?;
    let base = addresses.base();
    let mut access = [0; MAX_DEVICES];
    access[device] = READ_WRITE;
    let kind = RegionKind::Plain(current, addresses);
    let mut state = tables::lock();
    for (_, peer) in state.peers.iter().filter(|(context, _)| *context == current.context) {
        access[*peer] = READ_WRITE;
    }
    let id = state.new_id();
    state.regions.insert(base, Region { id, bytes, extent, access, kind });
    at.put(base)
}

/// Takes pinned or registered memory off the table; `unknown` if it is not there. Waits
/// for all work in flight, as the driver does.
fn forget_host(at: usize, is_pinned: bool, unknown: i32) -> CallResult {
    let state = tables::lock();
    let context = state.healthy()?.context;
    if state.host.get(&at).ok_or(unknown)?.allocated.is_some() != is_pinned {
        return Err(INVALID_VALUE);
    }
    let mut state = queue::settle_context(state, context);
    state.healthy()?;
    state.host.remove(&at).map(drop).ok_or(unknown)
}
