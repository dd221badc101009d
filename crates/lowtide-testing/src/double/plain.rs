//! Memory the older way: plain allocations, and host memory that the driver knows.

use super::code::{ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY};
use super::entry::{Out, Outcome, entry};
use super::machine::{self, MAX_DEVICES};
use super::memory::{self, Extent, Reservation};
use super::state::{self, HostRange, PAGE_BYTES, READ_WRITE, Region, RegionKind, State, to_usize};
use super::{stream, vmm};

/// Host memory to be only read by the device: `CU_MEMHOSTREGISTER_READ_ONLY`.
const REGISTER_READ_ONLY: u32 = 8;

impl State {
    /// Whether the driver knows this host memory. A range that is partly known, or
    /// known in two pieces, cannot be copied in one go.
    pub(super) fn is_known_host(&self, at: usize, bytes: usize) -> Outcome<bool> {
        let end = at.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let near = self.host.range(..end).next_back();
        let near = near.map(|(base, known)| (*base, base + known.bytes));
        match near.filter(|(_, known_end)| *known_end > at) {
            None => Ok(false),
            Some((base, known_end)) if base <= at && end <= known_end => Ok(true),
            Some(_) => Err(INVALID_VALUE),
        }
    }

    /// Takes a plain allocation away and counts its memory back.
    pub(super) fn free_plain(&mut self, base: u64) -> Outcome {
        let plain = |region: &&Region| matches!(region.kind, RegionKind::Plain(..));
        self.regions.get(&base).filter(plain).ok_or(INVALID_VALUE)?;
        if let Some(Region { bytes, kind: RegionKind::Plain(device, _), .. }) =
            self.regions.remove(&base)
        {
            machine::get().locked().give(device, bytes.next_multiple_of(PAGE_BYTES));
        }
        Ok(())
    }
}

entry! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = state::lock().healthy()?;
        let machine = machine::get();
        free.put(to_usize(machine.locked().free(device)))?;
        total.put(to_usize(machine.total().saturating_sub(machine.reserved())))
    }

    fn cuMemAlloc_v2(at: Out<u64>, bytes: u64) {
        let device = state::lock().healthy()?;
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
        let kind = RegionKind::Plain(device, addresses);
        state::lock().regions.insert(base, Region { bytes, extent, access, kind });
        at.put(base)
    }

    // Waits for all work in flight, as the driver does.
    fn cuMemFree_v2(at: u64) {
        if at == 0 {
            return Ok(());
        }
        let state = state::lock();
        let device = state.healthy()?;
        let mut state = stream::settle_device(state, device);
        state.healthy()?;
        state.free_plain(at)
    }

    fn cuIpcGetMemHandle(handle: Out<[u8; 64]>, at: u64) {
        let state = state::lock();
        state.healthy()?;
        let found = *state.regions_in(at..at.saturating_add(1)).first().ok_or(INVALID_VALUE)?;
        if matches!(state.regions[&found].kind, RegionKind::Mapped(_)) {
            return Err(INVALID_VALUE);
        }
        handle.put([0; 64])
    }

    fn cuMemHostAlloc(at: Out<usize>, bytes: usize, _flags: u32) {
        let mut state = state::lock();
        let device = state.healthy()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let extent = Extent::new(bytes).ok_or(OUT_OF_MEMORY)?;
        let base = extent.address();
        state.host.insert(base, HostRange { bytes, device, allocated: Some(extent) });
        at.put(base)
    }

    fn cuMemFreeHost(at: usize) {
        forget_host(at, true, INVALID_VALUE)
    }

    fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) {
        let mut state = state::lock();
        let device = state.healthy()?;
        let writable = flags & REGISTER_READ_ONLY == 0;
        if bytes == 0 || !memory::is_usable_host(at, bytes, writable) {
            return Err(INVALID_VALUE);
        }
        if state.is_known_host(at, bytes) != Ok(false) {
            return Err(ALREADY_REGISTERED);
        }
        state.host.insert(at, HostRange { bytes, device, allocated: None });
        Ok(())
    }

    fn cuMemHostUnregister(at: usize) {
        forget_host(at, false, NOT_REGISTERED)
    }
}

/// Takes pinned or registered memory off the table; `unknown` if it is not there. Waits
/// for all work in flight, as the driver does.
fn forget_host(at: usize, is_pinned: bool, unknown: i32) -> Outcome {
    let state = state::lock();
    let device = state.healthy()?;
    if state.host.get(&at).ok_or(unknown)?.allocated.is_some() != is_pinned {
        return Err(INVALID_VALUE);
    }
    let mut state = stream::settle_device(state, device);
    state.healthy()?;
    state.host.remove(&at).map(drop).ok_or(unknown)
}
