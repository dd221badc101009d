//! Plain memory between processes by legacy handles: 64 bytes that name memory and keep none of it.
//!
//! The codes are the H200's. No GPU was asked whether a close waits for work; here it does not.

use super::code::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};
use super::entry::entry;
use super::files::{Place, to_bytes, to_words};
use super::machine;
use super::memory::Reservation;
use super::objects::{AllocationProp, Current, Imported, READ_WRITE, Region, RegionKind};
use super::pointers::{CallResult, Out};
use super::settings::MAX_DEVICES;
use super::shares::ShareId;
use super::sharing::Description;
use super::tables::{self, PAGE_BYTES, Tables, to_usize};

/// Begins a handle.
const MAGIC: u64 = u64::from_le_bytes(*b"lt-plain");
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which is demanded.
const LAZY_PEER_ACCESS: u32 = 1;

/// The layout of `CUipcMemHandle`.
#[repr(C)]
struct LegacyHandle([u8; 64]);

entry! {
    // A handle names the context that it was got in, too.
    fn cuIpcGetMemHandle(handle: Out<[u8; 64]>, at: u64) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        let (base, _) = state.region_at(at).ok_or(INVALID_VALUE)?;
        if !state.is_legacy_capable(base) {
            return Err(INVALID_VALUE);
        }
        let Tables { regions, held, .. } = &mut *state;
        let Region { bytes, extent, kind, .. } = &regions[&base];
        let RegionKind::Plain(owner, _) = kind else { return Err(INVALID_VALUE) };
        let properties = AllocationProp::on(owner.device);
        let whole = bytes.next_multiple_of(PAGE_BYTES);
        let (place, Description { id, .. }) = held.export(extent, whole, properties)?;
        let (pid, number) = (std::process::id().into(), place.number().cast_unsigned().into());
        let words = [MAGIC, pid, number, place.offset(), *bytes, id.entry, id.serial, context.0];
        handle.put(to_bytes(&words))
    }

    fn cuIpcOpenMemHandle_v2(at: Out<u64>, handle: LegacyHandle, flags: u32) {
        open(&at, &handle, flags)
    }

    fn cuIpcOpenMemHandle(at: Out<u64>, handle: LegacyHandle, flags: u32) {
        open(&at, &handle, flags)
    }

    // In any context.
    fn cuIpcCloseMemHandle(at: u64) {
        let mut state = tables::lock();
        state.healthy()?;
        let region = state.regions.get_mut(&at).ok_or(INVALID_VALUE)?;
        let RegionKind::Imported(imported) = &mut region.kind else { return Err(INVALID_VALUE) };
        imported.opens -= 1;
        if imported.opens == 0 {
            state.drop_import(at);
        }
        Ok(())
    }
}

fn open(at: &Out<u64>, handle: &LegacyHandle, flags: u32) -> CallResult {
    let mut state = tables::lock();
    let current = state.healthy()?;
    let [magic, pid, number, offset, bytes, entry, serial, _] = to_words(&handle.0);
    at.get()?;
    if flags & LAZY_PEER_ACCESS == 0 || magic != MAGIC {
        return Err(INVALID_VALUE);
    }
    if pid == u64::from(std::process::id()) {
        return Err(INVALID_CONTEXT);
    }
    for (base, region) in &mut state.regions {
        if let RegionKind::Imported(imported) = &mut region.kind
            && imported.serial == serial
        {
            if imported.owner != current {
                return Err(INVALID_HANDLE);
            }
            imported.opens += 1;
            return at.put(*base);
        }
    }
    let is_held = machine::get().locked().is_held_by(pid, ShareId { entry, serial });
    if !is_held.ok_or(INVALID_HANDLE)? {
        return Err(INVALID_VALUE);
    }
    let place = Place::of_process(pid, number, offset).map_err(|_| INVALID_HANDLE)?;
    // A page of nothing behind it, as behind memory of this process.
    let whole = bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
    let addresses = Reservation::new(to_usize(whole), to_usize(PAGE_BYTES)).ok_or(OUT_OF_MEMORY)?;
    let (extent, described) = state.held.import(place, Some(serial))?;
    let (base, id) = (addresses.base(), state.new_id());
    let mut access = [0; MAX_DEVICES];
    access[current.device] = READ_WRITE;
    access[described.device()] = READ_WRITE;
    let kind = RegionKind::Imported(Imported { owner: current, serial, opens: 1, addresses });
    state.regions.insert(base, Region { id, bytes, extent, access, kind });
    at.put(base)
}
