//! Reservations: address space, and the chunks mapped into it.
//!
//! A mapped chunk belongs to its reservation; `unmap` hands it back. So a chunk is in one place or in
//! none, a mapping never outlives its reservation, and dropping either gives everything back in the
//! order the driver wants: unmap, release the memory, free the addresses.
//!
//! Each change is decided under the lock of the [`MappingTable`], made at the driver without it, and
//! recorded under it again.
#![allow(unsafe_code, reason = "calls the back end, whose preconditions are kept here")]

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::backend::Handle;
use crate::facts::{RangeProblem, SizeRule};
use crate::safe::mapping_table::{Claim, ClaimFor, Mapping, MappingTable, PinId};
use crate::safe::shared::Shared;
use crate::sync::lock;
use crate::{Address, Bytes, Chunk, Error, Result};

/// A map that did not happen, with the chunk that was not mapped.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotMapped {
    /// The chunk, with its content.
    pub chunk: Chunk,
    /// The reason for the failure.
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
    /// Chunks that were already unmapped when the driver refused, and that it also refused to map
    /// again, by offset. Almost always empty.
    pub taken: Vec<(Bytes, Chunk)>,
    /// The reason for the failure.
    #[source]
    pub error: Error,
}

impl From<NotUnmapped> for Error {
    fn from(refused: NotUnmapped) -> Error {
        refused.error
    }
}

/// Address space of a device, with the chunks mapped into it. Cheap to clone.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// # fn main() -> lowtide_device::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(8)), ..HostOptions::default() })?;
/// let (here, there) = (device.reserve(Bytes::mib(8))?, device.reserve(Bytes::mib(8))?);
/// here.map(Bytes::ZERO, device.create(Bytes::mib(2))?)?;
/// // The chunk moves to another address and keeps its content.
/// let (_, chunk) = here.unmap(Bytes::ZERO, Bytes::mib(2))?.remove(0);
/// there.map(Bytes::mib(4), chunk)?;
/// there.open(Bytes::mib(4), Bytes::mib(2))?;
/// assert_eq!((here.mapped(), there.mapped()), (Bytes::ZERO, Bytes::mib(2)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Reservation {
    pub(crate) space: Arc<Space>,
}

/// A range of addresses. The last owner gives it back.
pub(crate) struct Space {
    device: Arc<Shared>,
    base: Address,
    size: Bytes,
    table: Mutex<MappingTable>,
}

impl Reservation {
    pub(crate) fn new(device: &Arc<Shared>, size: Bytes) -> Result<Reservation> {
        let base = device.backend.reserve(size)?;
        let space = Space { device: Arc::clone(device), base, size, table: Mutex::default() };
        Ok(Reservation { space: Arc::new(space) })
    }

    /// Returns the first address.
    pub fn address(&self) -> Address {
        self.space.base
    }

    /// Returns the size of the address space.
    pub fn size(&self) -> Bytes {
        self.space.size
    }

    /// Returns how much memory is mapped into it. In a forked child nothing of a parent's is.
    pub fn mapped(&self) -> Bytes {
        if self.space.device.is_own() { self.space.table().mapped() } else { Bytes::ZERO }
    }

    /// Returns everything that is mapped into it, in the order of addresses. In a forked child nothing of
    /// a parent's is.
    pub fn mappings(&self) -> Vec<Mapping> {
        if self.space.device.is_own() { self.space.table().mappings() } else { Vec::new() }
    }

    /// Maps a chunk at an offset. The device cannot use it before [`Reservation::open`].
    ///
    /// # Errors
    /// [`NotMapped`], with the chunk, if the range is taken or out of bounds or the driver refuses.
    pub fn map(&self, offset: Bytes, chunk: Chunk) -> Result<(), NotMapped> {
        let size = chunk.size();
        let space = &self.space;
        let claimed = space
            .device
            .check_process()
            .and_then(|()| space.same_device("map", "chunk", &chunk.device))
            .and_then(|()| space.claim_hole(offset, size));
        if let Err(error) = claimed {
            return Err(NotMapped { chunk, error });
        }
        let at = self.space.address_of(offset);
        // SAFETY: the range is inside the reservation and claimed by this thread alone; the handle
        // is owned by `chunk`.
        let mapped = unsafe { self.space.device.backend.map(at, chunk.handle, size) };
        let mut table = self.space.table();
        if let Err(error) = mapped {
            table.remove(offset.0);
            drop(table);
            return Err(NotMapped { chunk, error });
        }
        table.record(Claim { offset: offset.0, is_open: false, chunk });
        Ok(())
    }

    /// Lets the device read and write a range: whole mappings, without a hole.
    ///
    /// # Errors
    /// [`Error::BadRange`], or the driver's error; the mappings then stay as they were.
    pub fn open(&self, offset: Bytes, size: Bytes) -> Result<()> {
        let claims = self.space.claim("open", offset, size, ClaimFor::Open)?;
        // SAFETY: the range consists of whole mappings, claimed by this thread alone.
        let opened = unsafe { self.space.device.backend.open(self.space.address_of(offset), size) };
        let mut table = self.space.table();
        for claim in claims {
            table.record(Claim { is_open: opened.is_ok() || claim.is_open, ..claim });
        }
        opened
    }

    /// Unmaps a range and returns its chunks by offset. The range may have holes but cuts no mapping.
    ///
    /// # Errors
    /// [`NotUnmapped`] if work in flight uses the range, a mapping would be cut or the driver refuses.
    /// Everything is then mapped as before, except for the chunks in the error. (If the driver
    /// refuses even to open a mapping again, that one is closed.)
    pub fn unmap(&self, offset: Bytes, size: Bytes) -> Result<Vec<(Bytes, Chunk)>, NotUnmapped> {
        let claims = self.space.claim("unmap", offset, size, ClaimFor::Unmap);
        let mut unmapped = claims.map_err(|error| NotUnmapped { taken: Vec::new(), error })?;
        let (count, outcome) = self.space.unmap_runs(&unmapped);
        let mut kept = unmapped.split_off(count);
        if outcome.is_err() {
            // Chunks that were already unmapped go back where they were, while no other thread sees the
            // hole.
            let (back, lost): (Vec<_>, Vec<_>) = unmapped
                .into_iter()
                .map(|mut claim| (self.space.map_again(&mut claim), claim))
                .partition(|(is_back, _)| *is_back);
            kept.extend(back.into_iter().map(|(_, claim)| claim));
            unmapped = lost.into_iter().map(|(_, claim)| claim).collect();
        }
        let mut table = self.space.table();
        for claim in kept {
            table.record(claim);
        }
        for claim in &unmapped {
            table.remove(claim.offset);
        }
        drop(table);
        let taken = unmapped.into_iter().map(|claim| (Bytes(claim.offset), claim.chunk)).collect();
        match outcome {
            Ok(()) => Ok(taken),
            Err(error) => Err(NotUnmapped { taken, error }),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Space { device, base, size, .. } = &*self.space;
        write!(f, "Reservation({size} at {base:?} on {}, {} mapped)", device.id(), self.mapped())
    }
}

impl Space {
    // After a panic in the middle of a change the table is only read and given up, never planned with.
    fn table(&self) -> MutexGuard<'_, MappingTable> {
        lock(&self.table)
    }

    fn whole_table(&self) -> Result<MutexGuard<'_, MappingTable>> {
        self.device.check_process()?;
        self.table.lock().map_err(|_| Error::Broken { what: "reservation" })
    }

    /// Returns the address at an offset.
    pub(crate) fn address_of(&self, offset: Bytes) -> Address {
        self.base.plus(offset)
    }

    fn bad_range(
        &self,
        operation: &'static str,
        (offset, size): (Bytes, Bytes),
        problem: RangeProblem,
    ) -> Error {
        Error::BadRange { device: self.device.id(), operation, offset, size, problem }
    }

    /// Checks that a range is inside the reservation.
    pub(crate) fn range(
        &self,
        operation: &'static str,
        offset: Bytes,
        size: Bytes,
    ) -> Result<Range<u64>> {
        match offset.0.checked_add(size.0) {
            Some(end) if end <= self.size.0 => Ok(offset.0..end),
            _ => Err(self.bad_range(operation, (offset, size), RangeProblem::OutOfBounds)),
        }
    }

    fn claim_hole(&self, offset: Bytes, size: Bytes) -> Result<()> {
        let range = self.range("map", offset, size)?;
        let page = self.device.backend.info().page;
        if !offset.is_multiple_of(page) {
            let (device, rule) = (self.device.id(), SizeRule::Offset(page));
            return Err(Error::BadSize { device, operation: "map", size: offset, rule });
        }
        let claimed = self.whole_table()?.claim_hole(&range);
        claimed.map_err(|problem| self.bad_range("map", (offset, size), problem))
    }

    fn claim(
        &self,
        operation: &'static str,
        offset: Bytes,
        size: Bytes,
        purpose: ClaimFor,
    ) -> Result<Vec<Claim>> {
        let range = self.range(operation, offset, size)?;
        let claimed = self.whole_table()?.claim(range, purpose);
        claimed.map_err(|problem| self.bad_range(operation, (offset, size), problem))
    }

    // Makes one driver call per run of neighbours: the range may have holes, which not every driver
    // takes. Returns how many claims are unmapped, from the front.
    fn unmap_runs(&self, claims: &[Claim]) -> (usize, Result<()>) {
        let mut unmapped = 0;
        while unmapped < claims.len() {
            let start = claims[unmapped].offset;
            let (mut end, mut next) = (start, unmapped);
            while next < claims.len() && claims[next].offset == end {
                end += claims[next].chunk.size().0;
                next += 1;
            }
            let at = self.address_of(Bytes(start));
            // SAFETY: whole mappings, claimed by this thread alone, with no pin on them.
            if let Err(error) = unsafe { self.device.backend.unmap(at, Bytes(end - start)) } {
                return (unmapped, Err(error));
            }
            unmapped = next;
        }
        (unmapped, Ok(()))
    }

    // Maps a chunk that was just unmapped and is still claimed; returns whether that worked. If it
    // cannot be opened again it stays closed: its content is safe, and opening can be tried again.
    fn map_again(&self, Claim { offset, is_open, chunk }: &mut Claim) -> bool {
        let at = self.address_of(Bytes(*offset));
        // SAFETY: the range is claimed by this thread alone and was just unmapped; the handle is
        // owned by `chunk`.
        if unsafe { self.device.backend.map(at, chunk.handle, chunk.size()) }.is_err() {
            return false;
        }
        // SAFETY: mapped whole, by the call above.
        *is_open = *is_open && unsafe { self.device.backend.open(at, chunk.size()) }.is_ok();
        true
    }

    /// Checks that an argument of an operation belongs to this reservation's device.
    pub(crate) fn same_device(
        &self,
        operation: &'static str,
        what: &'static str,
        device: &Arc<Shared>,
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
        let pinned = self.whole_table()?.pin(range);
        let id = pinned.map_err(|problem| self.bad_range(operation, (offset, size), problem))?;
        Ok(Pin { space: Arc::clone(self), id })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if !self.device.is_own() {
            // A thread of the parent may have been in the middle of a change when this process was forked.
            std::mem::forget(std::mem::take(&mut self.table));
            return;
        }
        let chunks = self.table().take_all().into_iter();
        let (base, size) = (self.base, self.size);
        // The steps that are left, in order; a step that succeeded is not done again. Bare handles,
        // because a leftover must not keep the device alive.
        let disowned = |(offset, chunk): (Bytes, Chunk)| (offset, chunk.disown());
        let mut chunks: Vec<(Bytes, (Handle, Bytes))> = chunks.map(disowned).collect();
        let mut mapped = chunks.len();
        self.device.give_back("reservation", move |backend| {
            while let Some((offset, (_, size))) = chunks[..mapped].last() {
                // SAFETY: the last owner of the space is going, so no pin and no other thread is
                // left; this mapping is still there, since it still counts.
                unsafe { backend.unmap(base.plus(*offset), *size) }?;
                mapped -= 1;
            }
            while let Some((_, (handle, size))) = chunks.last() {
                // SAFETY: disowned by its chunk for this, and mapped nowhere any more.
                unsafe { backend.destroy(*handle, *size) }?;
                chunks.pop();
            }
            // SAFETY: the reservation is whole and, by the loop above, empty.
            unsafe { backend.release(base, size) }
        });
    }
}

/// A range that stays mapped while this lives.
pub(crate) struct Pin {
    space: Arc<Space>,
    id: PinId,
}

impl Pin {
    /// Lets the range go, before the pin itself does. May be called twice.
    pub(crate) fn let_go(&self) {
        if self.space.device.is_own() {
            self.space.table().unpin(self.id);
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.let_go();
    }
}
