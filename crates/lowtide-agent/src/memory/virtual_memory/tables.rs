//! The program's handles and mappings.
//!
//! The lock of the tables is held during driver calls: a mapping and its record change together, also where
//! the program unmaps while the worker does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_types::Bytes;

use super::block::Block;
use crate::driver::calls;
use crate::driver::codes::{INVALID_VALUE, SUCCESS};
use crate::driver::layouts::{Access, Properties};
use crate::memory::context::ProgramContext;
use crate::memory::unmanaged::{self, Key, Kind};
use crate::say::say;

/// The upper bits of our numbers. No driver gives a handle with these: they are in no address.
const OURS: u64 = 0x1d7e;
const OURS_SHIFT: u32 = 48;

/// The program's handles and mappings.
#[derive(Default)]
pub(crate) struct VirtualMemory {
    tables: Mutex<Tables>,
}

#[derive(Default)]
pub(super) struct Tables {
    /// By our number.
    pub(super) handles: BTreeMap<u64, ProgramHandle>,
    /// By the first address.
    pub(super) mappings: BTreeMap<u64, ProgramMapping>,
    /// Memory of other processes, by the driver's handle: the references less the releases.
    imported: BTreeMap<u64, u32>,
    /// Mappings of such memory: the end, by the first address.
    imported_mappings: BTreeMap<u64, u64>,
    last: u64,
}

/// A handle of the program.
pub(super) struct ProgramHandle {
    bytes: Bytes,
    properties: Properties,
    /// The creation and each retain, less the releases.
    references: u32,
    mappings: u32,
    /// Set where the program has given it to others, who may have it for as long as it lives.
    is_exported: bool,
    backing: Backing,
}

/// What has the memory behind a handle.
#[derive(Clone)]
enum Backing {
    /// A block of a pool.
    Block(Block),
    /// The driver, by this handle: the context of the pool is gone.
    Driver(u64),
    /// Nothing: the memory slept when its context was destroyed.
    Nothing,
}

/// A mapping that the program made.
pub(super) struct ProgramMapping {
    pub(super) bytes: Bytes,
    pub(super) handle: u64,
    pub(super) access: Vec<Access>,
    pub(super) state: MappingState,
    /// The driver's number of the memory, once the program has asked for it.
    buffer_id: Option<u64>,
}

/// What the driver has of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MappingState {
    /// The mapping with its access: as the program made it.
    Whole,
    /// The mapping without its access.
    Closed,
    /// Nothing: the process sleeps.
    Away,
}

impl ProgramMapping {
    fn end(&self, at: u64) -> u64 {
        at + self.bytes.0
    }
}

impl VirtualMemory {
    /// Makes memory that can sleep and returns our number for it; `None` where the pool has no chunk for it alone.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn create(
        &self,
        context: &Arc<ProgramContext>,
        bytes: Bytes,
        properties: Properties,
    ) -> lowtide_pool::Result<Option<u64>> {
        let pool = context.virtual_pool(properties)?;
        let Some(block) = Block::allocate(context, &pool, bytes)? else { return Ok(None) };
        let mut tables = self.tables();
        tables.last += 1;
        let number = OURS << OURS_SHIFT | tables.last;
        let backing = Backing::Block(block);
        let (references, mappings, is_exported) = (1, 0, false);
        let made = ProgramHandle { bytes, properties, references, mappings, is_exported, backing };
        tables.handles.insert(number, made);
        Ok(Some(number))
    }

    /// Returns the driver's handle for a handle of the program; `None` if it is ours and has no memory. The
    /// caller is inside the gate.
    pub(crate) fn real(&self, number: u64) -> Option<u64> {
        if !is_ours(number) {
            return Some(number);
        }
        self.tables().handles.get(&number)?.real()
    }

    /// Returns what a handle was made with; `None` if it is not ours.
    pub(crate) fn properties(&self, number: u64) -> Option<Properties> {
        self.tables().handles.get(&number).map(|handle| handle.properties)
    }

    /// Maps a handle by a call of the driver, which gets the real handle.
    pub(crate) fn map(
        &self,
        at: u64,
        bytes: Bytes,
        number: u64,
        call: impl FnOnce(u64) -> i32,
    ) -> i32 {
        let mut tables = self.tables();
        if !is_ours(number) {
            let code = call(number);
            if code == SUCCESS && tables.imported.contains_key(&number) {
                tables.imported_mappings.insert(at, at + bytes.0);
            }
            return code;
        }
        let Some(real) = tables.handles.get(&number).and_then(ProgramHandle::real) else {
            return INVALID_VALUE;
        };
        let code = call(real);
        if code == SUCCESS {
            let (access, state) = (Vec::new(), MappingState::Whole);
            let mapping = ProgramMapping { bytes, handle: number, access, state, buffer_id: None };
            tables.mappings.insert(at, mapping);
            tables.handles.entry(number).and_modify(|handle| handle.mappings += 1);
        }
        code
    }

    /// Sets access by a call of the driver, and notes it. The driver takes whole mappings only.
    pub(crate) fn set_access<'a>(
        &self,
        range: Range<u64>,
        access: impl FnOnce() -> &'a [Access],
        call: impl FnOnce() -> i32,
    ) -> i32 {
        let mut tables = self.tables();
        let code = call();
        if code == SUCCESS {
            let access = access();
            for (_, mapping) in tables.mappings.range_mut(range) {
                for new in access {
                    mapping.access.retain(|old| old.location != new.location);
                    mapping.access.push(*new);
                }
            }
        }
        code
    }

    /// Unmaps a range by a call of the driver, and notes it. To the driver, what sleeps is a hole in the range.
    pub(crate) fn unmap(&self, range: Range<u64>, call: impl FnOnce() -> i32) -> i32 {
        let mut tables = self.tables();
        let touched: Vec<u64> = tables.mappings_in(&range).map(|(at, _)| at).collect();
        let is_whole = |at: &u64| range.start <= *at && tables.mappings[at].end(*at) <= range.end;
        if !touched.iter().all(is_whole) {
            return INVALID_VALUE;
        }
        let code = call();
        if code != SUCCESS {
            return code;
        }
        tables.imported_mappings.retain(|at, end| *end <= range.start || *at >= range.end);
        let mut gone = Vec::new();
        for at in touched {
            gone.extend(tables.remove_mapping(at));
        }
        drop(tables);
        gone.into_iter().for_each(ProgramHandle::give_back);
        code
    }

    /// Frees addresses by a call of the driver, which refuses a range in which something is mapped, awake or asleep.
    pub(crate) fn free_addresses(&self, range: &Range<u64>, call: impl FnOnce() -> i32) -> i32 {
        let tables = self.tables();
        if tables.mappings_in(range).next().is_some() { INVALID_VALUE } else { call() }
    }

    /// Takes another reference to the handle that the program mapped at an address, and returns our number for
    /// it; `None` if there is none of ours.
    pub(crate) fn retain(&self, at: u64) -> Option<u64> {
        let mut tables = self.tables();
        let (_, mapping) = tables.mapping_at(at)?;
        let number = mapping.handle;
        tables.handles.get_mut(&number)?.references += 1;
        Some(number)
    }

    /// Drops a reference; `None` if the handle is not ours.
    pub(crate) fn release(&self, number: u64) -> Option<i32> {
        if !is_ours(number) {
            return None;
        }
        let mut tables = self.tables();
        let Some(handle) = tables.handles.get_mut(&number).filter(|one| one.references > 0) else {
            return Some(INVALID_VALUE);
        };
        handle.references -= 1;
        let gone = tables.remove_if_unused(number);
        drop(tables);
        gone.into_iter().for_each(ProgramHandle::give_back);
        Some(SUCCESS)
    }

    /// Notes that the program has given a handle to others.
    pub(crate) fn exported(&self, number: u64) {
        self.tables().handles.entry(number).and_modify(|handle| handle.is_exported = true);
    }

    /// Notes that the program got a handle of another process's memory.
    pub(crate) fn imported(&self, handle: u64) {
        *self.tables().imported.entry(handle).or_default() += 1;
    }

    /// Notes that the program released a handle of the driver.
    pub(crate) fn let_go(&self, handle: u64) {
        let mut tables = self.tables();
        let references = tables.imported.get_mut(&handle).map(|count| {
            *count -= 1;
            *count
        });
        if references == Some(0) {
            tables.imported.remove(&handle);
        }
    }

    /// Returns whether the program has given memory to others that it has not freed.
    pub(crate) fn has_exported(&self) -> bool {
        self.tables().handles.values().any(|handle| handle.is_exported)
    }

    /// Returns whether the program has memory of another process.
    pub(crate) fn has_imported(&self) -> bool {
        let tables = self.tables();
        !tables.imported.is_empty() || !tables.imported_mappings.is_empty()
    }

    /// Returns whether the program has mapped memory here that sleeps: the driver knows nothing of it.
    pub(crate) fn is_away(&self, at: u64) -> bool {
        self.tables().mapping_at(at).is_some_and(|(_, mapping)| mapping.state == MappingState::Away)
    }

    /// Returns whether the program has mapped memory here that can sleep.
    pub(crate) fn is_mapped(&self, at: u64) -> bool {
        self.tables().mapping_at(at).is_some()
    }

    /// Returns the number that the driver first gave for the memory at an address; `now` if this is the first.
    pub(crate) fn buffer_id(&self, at: u64, now: Option<u64>) -> Option<u64> {
        let mut tables = self.tables();
        let (start, _) = tables.mapping_at(at)?;
        let mapping = tables.mappings.get_mut(&start)?;
        mapping.buffer_id = mapping.buffer_id.or(now);
        mapping.buffer_id
    }

    /// Returns the number of handles of a context, and their bytes.
    pub(crate) fn sum(&self, context: usize) -> (u64, Bytes) {
        let tables = self.tables();
        let own = tables.handles.values().filter(|handle| handle.is_of(context));
        own.fold((0, Bytes::ZERO), |(count, sum), one| (count + 1, sum + one.bytes))
    }

    /// Lets go of the handles of a context that is about to be destroyed. The driver's handles outlive it, with
    /// their content where they are awake.
    pub(crate) fn leave(&self, context: usize) {
        let mut tables = self.tables();
        let mut blocks = Vec::new();
        for (number, handle) in tables.handles.iter_mut().filter(|(_, one)| one.is_of(context)) {
            let Backing::Block(block) = handle.backing.clone() else { continue };
            let kept = block.real(handle.bytes).and_then(|_| calls::retain(block.at.0).ok());
            handle.backing = kept.map_or(Backing::Nothing, Backing::Driver);
            if kept.is_some() {
                unmanaged::add(Kind::Virtual, *number, handle.bytes, 0);
            }
            blocks.push(block);
        }
        drop(tables);
        blocks.iter().for_each(Block::give_back);
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgramHandle {
    pub(super) fn real(&self) -> Option<u64> {
        match &self.backing {
            Backing::Block(block) => block.real(self.bytes),
            Backing::Driver(real) => Some(*real),
            Backing::Nothing => None,
        }
    }

    pub(super) fn is_of(&self, context: usize) -> bool {
        matches!(&self.backing, Backing::Block(block) if block.context.handle == context)
    }

    /// Gives the memory back, after the program's last reference and mapping.
    fn give_back(self) {
        match self.backing {
            Backing::Block(block) => block.give_back(),
            Backing::Driver(real) => {
                if let Err(error) = calls::release(real) {
                    say!("freed virtual memory stays on the device: {error}");
                }
            }
            Backing::Nothing => {}
        }
    }
}

impl Tables {
    /// Returns the mappings that share an address with a range.
    fn mappings_in(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &ProgramMapping)> {
        let before = self.mappings.range(..range.start).next_back();
        let before = before.filter(|(at, mapping)| mapping.end(**at) > range.start);
        before.into_iter().chain(self.mappings.range(range.clone())).map(|(at, one)| (*at, one))
    }

    fn mapping_at(&self, at: u64) -> Option<(u64, &ProgramMapping)> {
        self.mappings_in(&(at..at.saturating_add(1))).next()
    }

    /// Forgets a mapping; returns its handle if nothing uses that any more.
    fn remove_mapping(&mut self, at: u64) -> Option<ProgramHandle> {
        let number = self.mappings.remove(&at)?.handle;
        self.handles.get_mut(&number)?.mappings -= 1;
        self.remove_if_unused(number)
    }

    fn remove_if_unused(&mut self, number: u64) -> Option<ProgramHandle> {
        let handle = self.handles.get(&number)?;
        if handle.references > 0 || handle.mappings > 0 {
            return None;
        }
        // Noted only where the driver has it.
        unmanaged::give_back(Key::Handle(number), || SUCCESS);
        self.handles.remove(&number)
    }
}

fn is_ours(number: u64) -> bool {
    number >> OURS_SHIFT == OURS
}
