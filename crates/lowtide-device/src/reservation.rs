//! Reservations: address space, and the chunks mapped into it.
//!
//! A mapped chunk belongs to its reservation; `unmap` hands it back. So a chunk is in one place
//! or in none, a mapping never outlives its reservation, and dropping either gives everything
//! back in the order the driver wants: unmap, release the memory, free the addresses.
//!
//! Each change is decided under the lock, made at the driver without it, and recorded under it
//! again; meanwhile the slots concerned read as in use.
#![allow(unsafe_code, reason = "calls the back end, whose preconditions are kept here")]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::Handle;
use crate::device::Inner;
use crate::{Address, Bytes, Chunk, Error, RangeProblem, Result};

/// A map that did not happen, with the chunk it did not take.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotMapped {
    /// The chunk, unharmed.
    pub chunk: Chunk,
    /// Why.
    #[source]
    pub error: Error,
}

impl From<NotMapped> for Error {
    fn from(refused: NotMapped) -> Error {
        refused.error
    }
}

/// An unmap that did not happen.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotUnmapped {
    /// Chunks that were already taken away when the driver refused, and that it also refused to put
    /// back. Almost always empty.
    pub taken: Vec<(Bytes, Chunk)>,
    /// Why.
    #[source]
    pub error: Error,
}

impl From<NotUnmapped> for Error {
    fn from(refused: NotUnmapped) -> Error {
        refused.error
    }
}

/// A chunk under an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Where in the reservation, in bytes.
    pub range: Range<u64>,
    /// Whether the device may touch it.
    pub is_open: bool,
}

/// Address space of a device, with the chunks mapped into it. Cheap to clone.
#[derive(Clone)]
pub struct Reservation {
    pub(crate) space: Arc<Space>,
}

pub(crate) struct Space {
    device: Arc<Inner>,
    base: Address,
    size: Bytes,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// By offset.
    slots: BTreeMap<u64, Slot>,
    /// Ranges that work in flight reads or writes, by the number of the pin.
    pins: BTreeMap<u64, Range<u64>>,
    next_pin: u64,
}

struct Slot {
    size: Bytes,
    state: State,
}

enum State {
    /// A thread is mapping, opening or unmapping it.
    Changing,
    Closed(Chunk),
    Open(Chunk),
}

impl State {
    fn of(open: bool, chunk: Chunk) -> State {
        if open { State::Open(chunk) } else { State::Closed(chunk) }
    }
}

impl Reservation {
    pub(crate) fn new(device: &Arc<Inner>, size: Bytes) -> Result<Reservation> {
        let base = device.backend.reserve(size)?;
        let space = Space { device: Arc::clone(device), base, size, books: Mutex::default() };
        Ok(Reservation { space: Arc::new(space) })
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.space.base
    }

    /// How much address space it is.
    pub fn size(&self) -> Bytes {
        self.space.size
    }

    /// What is mapped into it.
    pub fn mapped(&self) -> Bytes {
        self.space.books().slots.values().map(|slot| slot.size).sum()
    }

    /// Everything that is mapped into it, in the order of addresses.
    pub fn mappings(&self) -> Vec<Mapping> {
        let books = self.space.books();
        let mapping = |(offset, slot): (&u64, &Slot)| {
            let (range, is_open) =
                (*offset..offset + slot.size.0, matches!(slot.state, State::Open(_)));
            Mapping { range, is_open }
        };
        books.slots.iter().map(mapping).collect()
    }

    /// Puts a chunk under an address. Nothing can touch it before [`Reservation::open`].
    ///
    /// # Errors
    /// [`NotMapped`], with the chunk, where the range is taken or out of bounds or the driver refuses.
    pub fn map(&self, offset: Bytes, chunk: Chunk) -> Result<(), NotMapped> {
        let size = chunk.size();
        let claimed = self
            .space
            .same_device("map", "chunk", &chunk.device)
            .and_then(|()| self.space.claim_hole(offset, size));
        if let Err(error) = claimed {
            return Err(NotMapped { chunk, error });
        }
        let at = self.space.base.plus(offset);
        // SAFETY: the range is inside the reservation and claimed by this thread alone; the handle
        // is owned by `chunk`.
        let outcome = unsafe { self.space.device.backend.map(at, chunk.handle, size) };
        let mut books = self.space.books();
        match outcome {
            Ok(()) => {
                books.slots.insert(offset.0, Slot { size, state: State::Closed(chunk) });
                Ok(())
            }
            Err(error) => {
                books.slots.remove(&offset.0);
                drop(books);
                Err(NotMapped { chunk, error })
            }
        }
    }

    /// Lets the device read and write a range: whole mappings, without a hole.
    ///
    /// # Errors
    /// [`Error::BadRange`], or the driver's refusal; the mappings then stay as they were.
    pub fn open(&self, offset: Bytes, size: Bytes) -> Result<()> {
        let claimed = self.space.claim_mappings("open", offset, size)?;
        // SAFETY: the range consists of whole mappings, claimed by this thread alone.
        let outcome = unsafe { self.space.device.backend.open(self.space.base.plus(offset), size) };
        let opened = outcome.is_ok();
        let mut books = self.space.books();
        for (offset, was_open, chunk) in claimed {
            books.slot_mut(offset).state = State::of(opened || was_open, chunk);
        }
        outcome
    }

    /// Takes the mappings of a range away and hands their chunks back, by offset. The range may
    /// have holes but cuts no mapping.
    ///
    /// # Errors
    /// [`NotUnmapped`] where work in flight uses it, a mapping would be cut or the driver refuses;
    /// everything is then mapped as before, but for what the error hands back. (Where the driver
    /// refuses even to open a mapping again, that one is closed.)
    pub fn unmap(&self, offset: Bytes, size: Bytes) -> Result<Vec<(Bytes, Chunk)>, NotUnmapped> {
        let claim = self.space.claim_mappings(UNMAP, offset, size);
        let mut claimed = claim.map_err(|error| NotUnmapped { taken: Vec::new(), error })?;
        let outcome = self.space.unmap_runs(&claimed);
        let mut kept = claimed.split_off(outcome.unmapped);
        let mut taken = claimed;
        if outcome.error.is_some() {
            // What was already taken away goes back where it was, while nobody else can see the hole.
            let (back, lost): (Vec<_>, Vec<_>) = taken
                .into_iter()
                .map(|mut mapping| (self.space.put_back(&mut mapping), mapping))
                .partition(|(is_back, _)| *is_back);
            kept.extend(back.into_iter().map(|(_, mapping)| mapping));
            taken = lost.into_iter().map(|(_, mapping)| mapping).collect();
        }
        let mut books = self.space.books();
        for (offset, was_open, chunk) in kept {
            books.slot_mut(offset).state = State::of(was_open, chunk);
        }
        for (offset, ..) in &taken {
            books.slots.remove(offset);
        }
        drop(books);
        let taken = taken.into_iter().map(|(offset, _, chunk)| (Bytes(offset), chunk)).collect();
        match outcome.error {
            None => Ok(taken),
            Some(error) => Err(NotUnmapped { taken, error }),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Space { device, base, size, .. } = &*self.space;
        write!(f, "Reservation({size} at {base:?} on {}, {} mapped)", device.id(), self.mapped())
    }
}

const UNMAP: &str = "unmap";

/// Offset, whether it was open, and the chunk.
type Claimed = (u64, bool, Chunk);

struct Unmapped {
    /// How many of the claimed mappings are gone, from the front.
    unmapped: usize,
    error: Option<Error>,
}

impl Space {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bad_range(
        &self,
        operation: &'static str,
        range: &Range<u64>,
        problem: RangeProblem,
    ) -> Error {
        let (offset, size) = (Bytes(range.start), Bytes(range.end - range.start));
        Error::BadRange { device: self.device.id(), operation, offset, size, problem }
    }

    pub(crate) fn range(
        &self,
        operation: &'static str,
        offset: Bytes,
        size: Bytes,
    ) -> Result<Range<u64>> {
        match offset.0.checked_add(size.0) {
            Some(end) if end <= self.size.0 => Ok(offset.0..end),
            _ => Err(Error::BadRange {
                device: self.device.id(),
                operation,
                offset,
                size,
                problem: RangeProblem::OutOfBounds,
            }),
        }
    }

    fn claim_hole(&self, offset: Bytes, size: Bytes) -> Result<()> {
        let range = self.range("map", offset, size)?;
        let page = self.device.backend.info().page;
        if !offset.is_multiple_of(page) {
            let rule = format!("offsets are multiples of the page, {page}");
            return Err(Error::BadSize {
                device: self.device.id(),
                operation: "map at an offset",
                size: offset,
                rule,
            });
        }
        let mut books = self.books();
        if books.touching(&range).next().is_some() {
            return Err(self.bad_range("map", &range, RangeProblem::AlreadyMapped));
        }
        books.slots.insert(offset.0, Slot { size, state: State::Changing });
        Ok(())
    }

    // Opening wants no hole; unmapping wants no work in flight.
    fn claim_mappings(
        &self,
        operation: &'static str,
        offset: Bytes,
        size: Bytes,
    ) -> Result<Vec<Claimed>> {
        let range = self.range(operation, offset, size)?;
        let unmapping = operation == UNMAP;
        let mut books = self.books();
        let mut covered = 0;
        for (start, slot) in books.touching(&range) {
            let problem = if start < range.start || start + slot.size.0 > range.end {
                RangeProblem::CutsMapping
            } else if matches!(slot.state, State::Changing) {
                RangeProblem::InUse
            } else {
                covered += slot.size.0;
                continue;
            };
            return Err(self.bad_range(operation, &range, problem));
        }
        if covered == 0 || (!unmapping && covered < size.0) {
            return Err(self.bad_range(operation, &range, RangeProblem::NotMapped));
        }
        let mut pins = books.pins.values();
        if unmapping && pins.any(|pin| pin.start < range.end && range.start < pin.end) {
            return Err(self.bad_range(operation, &range, RangeProblem::InUse));
        }
        let slots = books.slots.range_mut(range);
        let claim = |(offset, slot): (&u64, &mut Slot)| {
            slot.claim().map(|(open, chunk)| (*offset, open, chunk))
        };
        Ok(slots.filter_map(claim).collect())
    }

    // One driver call per run of neighbours: the range may have holes, which not every driver takes.
    fn unmap_runs(&self, claimed: &[Claimed]) -> Unmapped {
        let mut unmapped = 0;
        while unmapped < claimed.len() {
            let start = claimed[unmapped].0;
            let (mut end, mut next) = (start, unmapped);
            while next < claimed.len() && claimed[next].0 == end {
                end += claimed[next].2.size().0;
                next += 1;
            }
            let at = self.base.plus(Bytes(start));
            // SAFETY: whole mappings, claimed by this thread alone, with no pin on them.
            if let Err(error) = unsafe { self.device.backend.unmap(at, Bytes(end - start)) } {
                return Unmapped { unmapped, error: Some(error) };
            }
            unmapped = next;
        }
        Unmapped { unmapped, error: None }
    }

    // Maps a mapping that was just taken away and is still claimed; whether that worked. Where it
    // cannot be opened again it stays, closed: its content is safe, and opening can be tried again.
    fn put_back(&self, (offset, is_open, chunk): &mut Claimed) -> bool {
        let at = self.base.plus(Bytes(*offset));
        // SAFETY: the range is claimed by this thread alone and was just unmapped; the handle is
        // owned by `chunk`.
        if unsafe { self.device.backend.map(at, chunk.handle, chunk.size()) }.is_err() {
            return false;
        }
        // SAFETY: mapped whole, by the call above.
        *is_open = *is_open && unsafe { self.device.backend.open(at, chunk.size()) }.is_ok();
        true
    }

    pub(crate) fn same_device(
        &self,
        operation: &'static str,
        what: &'static str,
        device: &Arc<Inner>,
    ) -> Result<()> {
        if Arc::ptr_eq(&self.device, device) {
            return Ok(());
        }
        Err(Error::OtherDevice { device: self.device.id(), operation, what })
    }

    /// Keeps a range mapped while work in flight uses it.
    pub(crate) fn pin(
        self: &Arc<Space>,
        operation: &'static str,
        offset: Bytes,
        size: Bytes,
    ) -> Result<Pin> {
        let range = self.range(operation, offset, size)?;
        let mut books = self.books();
        let mut covered = range.start;
        for (start, slot) in books.touching(&range) {
            let problem = match slot.state {
                _ if start > covered => RangeProblem::NotMapped,
                State::Changing => RangeProblem::InUse,
                State::Closed(_) => RangeProblem::NotOpen,
                State::Open(_) => {
                    covered = start + slot.size.0;
                    continue;
                }
            };
            return Err(self.bad_range(operation, &range, problem));
        }
        if covered < range.end {
            return Err(self.bad_range(operation, &range, RangeProblem::NotMapped));
        }
        books.next_pin += 1;
        let number = books.next_pin;
        books.pins.insert(number, range);
        Ok(Pin { space: Arc::clone(self), number })
    }

    pub(crate) fn address_of(&self, offset: Bytes) -> Address {
        self.base.plus(offset)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let slots = std::mem::take(&mut self.books().slots);
        let (base, size) = (self.base, self.size);
        // What is still to be done, in order; a step that succeeded is not done again. Bare handles,
        // because what waits to be given back must not keep the device alive.
        let mut chunks: Vec<(Bytes, Handle, Bytes)> = slots
            .into_iter()
            .filter_map(|(offset, mut slot)| Some((Bytes(offset), slot.claim()?.1.disown())))
            .map(|(offset, (handle, size))| (offset, handle, size))
            .collect();
        let mut mapped = chunks.len();
        self.device.give_back("reservation", move |backend| {
            while let Some((offset, _, size)) = chunks[..mapped].last() {
                // SAFETY: the last owner of the space is going, so no pin and no other thread is
                // left; this mapping is still there, since it still counts.
                unsafe { backend.unmap(base.plus(*offset), *size) }?;
                mapped -= 1;
            }
            while let Some((_, handle, size)) = chunks.last() {
                // SAFETY: disowned by its chunk for this, and mapped nowhere any more.
                unsafe { backend.destroy(*handle, *size) }?;
                chunks.pop();
            }
            // SAFETY: the reservation is whole and, by the loop above, empty.
            unsafe { backend.release(base, size) }
        });
    }
}

impl Slot {
    fn claim(&mut self) -> Option<(bool, Chunk)> {
        match std::mem::replace(&mut self.state, State::Changing) {
            State::Changing => None,
            State::Closed(chunk) => Some((false, chunk)),
            State::Open(chunk) => Some((true, chunk)),
        }
    }
}

impl Books {
    /// The slots that share a byte with a range, in order.
    fn touching(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Slot)> {
        let first = self.slots.range(..range.start).next_back();
        let first = first.filter(|(start, slot)| *start + slot.size.0 > range.start);
        first.into_iter().chain(self.slots.range(range.clone())).map(|(start, slot)| (*start, slot))
    }

    fn slot_mut(&mut self, offset: u64) -> &mut Slot {
        self.slots.get_mut(&offset).expect("a claimed slot stays in the books until it is recorded")
    }
}

/// A range that stays mapped while this lives.
pub(crate) struct Pin {
    space: Arc<Space>,
    number: u64,
}

impl Pin {
    /// Lets the range go, before the pin itself does. May be called twice.
    pub(crate) fn let_go(&self) {
        self.space.books().pins.remove(&self.number);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.let_go();
    }
}
