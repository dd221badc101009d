//! The memory that this process shares with others, or could: exported by it, or imported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::code::{INVALID_VALUE, OUT_OF_MEMORY};
use super::files::{Place, Words};
use super::machine::{self, MachineLock};
use super::memory::Extent;
use super::objects::AllocationProp;
use super::pointers::CallResult;
use super::shares::ShareId;

/// Begins the page before exported memory.
const MAGIC: u64 = u64::from_le_bytes(*b"lt-share");

/// What exported memory is, as the page before it says.
#[derive(Clone, Copy)]
pub(super) struct Description {
    pub(super) id: ShareId,
    pub(super) bytes: u64,
    pub(super) properties: AllocationProp,
}

impl Description {
    pub(super) fn of(place: &Place) -> CallResult<Description> {
        let [magic, entry, serial, bytes, handle_types, device, flags, _] =
            place.words().map_err(|_| INVALID_VALUE)?;
        if magic != MAGIC {
            return Err(INVALID_VALUE);
        }
        let small = |word: u64| u32::try_from(word).map_err(|_| INVALID_VALUE);
        let (handle_types, flags) = (small(handle_types)?, flags.to_ne_bytes());
        let of_device = AllocationProp::on(small(device)? as usize);
        let properties = AllocationProp { handle_types, flags, ..of_device };
        Ok(Description { id: ShareId { entry, serial }, bytes, properties })
    }

    fn words(&self) -> Words {
        let AllocationProp { handle_types, location, flags, .. } = self.properties;
        let (types, device) = (handle_types.into(), location.id.cast_unsigned().into());
        let flags = u64::from_ne_bytes(flags);
        [MAGIC, self.id.entry, self.id.serial, self.bytes, types, device, flags, 0]
    }

    /// Returns the device that the memory is on.
    pub(super) fn device(&self) -> usize {
        self.properties.location.id.cast_unsigned() as usize
    }
}

/// The shared memory that this process holds, with the number of its handles and addresses.
#[derive(Default)]
pub(super) struct Held(BTreeMap<ShareId, (u32, Arc<Extent>)>);

impl Held {
    /// Moves memory of this process to where others can have it, if it is not there yet.
    pub(super) fn export(
        &mut self,
        extent: &Arc<Extent>,
        bytes: u64,
        properties: AllocationProp,
    ) -> CallResult<(Place, Description)> {
        let place = extent.move_to_place().map_err(|_| OUT_OF_MEMORY)?;
        if let Ok(described) = Description::of(&place) {
            return Ok((place, described));
        }
        let described = Description { id: ShareId::default(), bytes, properties };
        let described = enter(&machine::get().locked(), &place, described)?;
        self.0.insert(described.id, (1, Arc::clone(extent)));
        Ok((place, described))
    }

    /// Holds memory that was exported: if it has this number and a process holds it, or (by a
    /// descriptor) in any case.
    pub(super) fn import(
        &mut self,
        place: Place,
        serial: Option<u64>,
    ) -> CallResult<(Arc<Extent>, Description)> {
        let machine = machine::get().locked();
        let mut described = Description::of(&place)?;
        if serial.is_some_and(|serial| described.id.serial != serial) {
            return Err(INVALID_VALUE);
        }
        let held = self.0.get(&described.id).map(|(count, extent)| (*count, Arc::clone(extent)));
        let (count, extent) = match held {
            Some(held) => held,
            None if serial.is_some() && !machine.join(described.id) => return Err(INVALID_VALUE),
            None => (0, Arc::new(joined(&machine, place, &mut described)?)),
        };
        self.0.insert(described.id, (count + 1, Arc::clone(&extent)));
        if let Some(mine) = machine::get().mine() {
            mine.imports.fetch_add(1, SeqCst);
        }
        Ok((extent, described))
    }

    /// Lets memory go that was imported.
    pub(super) fn let_import_go(&mut self, extent: &Extent, device: usize, bytes: u64) {
        if let Some(mine) = machine::get().mine() {
            mine.imports.fetch_sub(1, SeqCst);
        }
        self.let_go(extent, device, bytes);
    }

    /// Lets memory go; it is free if no other handle or address of any process holds it.
    pub(super) fn let_go(&mut self, extent: &Extent, device: usize, bytes: u64) {
        let place = extent.place();
        let described = place.as_ref().and_then(|place| Description::of(place).ok());
        let (Some(place), Some(Description { id, bytes: whole, .. })) = (place, described) else {
            return machine::get().locked().give(device, bytes);
        };
        let Some((count, _)) = self.0.get_mut(&id) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&id);
            if machine::get().locked().leave(id) {
                // Memory that stays is this machine's loss, not an error of the caller's.
                let _discarded = place.discard(whole);
            }
        }
    }
}

/// Maps memory that this process does not hold yet.
fn joined(machine: &MachineLock, at: Place, what: &mut Description) -> CallResult<Extent> {
    let (device, bytes) = (what.device(), what.bytes);
    if !machine.join(what.id) {
        // Only a descriptor is left of it.
        if !machine.take(device, bytes) {
            return Err(OUT_OF_MEMORY);
        }
        *what = enter(machine, &at, *what)?;
    }
    let extent = usize::try_from(bytes).ok().and_then(|bytes| Extent::at_place(at, bytes));
    extent.ok_or_else(|| {
        machine.leave(what.id);
        OUT_OF_MEMORY
    })
}

/// Enters memory that no process holds but this one, under a new name.
fn enter(machine: &MachineLock, place: &Place, described: Description) -> CallResult<Description> {
    let id = machine.share(described.device(), described.bytes).ok_or(OUT_OF_MEMORY)?;
    let described = Description { id, ..described };
    place.put_words(&described.words()).map_err(|_| OUT_OF_MEMORY)?;
    Ok(described)
}
