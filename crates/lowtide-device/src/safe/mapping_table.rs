//! The mappings of one reservation: which chunk lies under which address, and which ranges work in
//! flight uses.
//!
//! Everything here is decided under a lock, and no driver is called. A chunk that a thread is mapping,
//! opening or unmapping is *claimed*: until the thread records the result, other threads see its range
//! as in use.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_types::Bytes;

use crate::Chunk;
use crate::facts::RangeProblem;

/// A chunk mapped into a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The range in the reservation, in bytes.
    pub range: Range<u64>,
    /// True if the device may read and write it.
    pub is_open: bool,
}

/// The number of a pin: of one range that work in flight uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PinId(u64);

/// The mappings and pins of one reservation.
#[derive(Default)]
pub(crate) struct MappingTable {
    /// The mapped chunks, by offset.
    chunks: BTreeMap<u64, MappedChunk>,
    pins: BTreeMap<PinId, Range<u64>>,
    last_pin: u64,
}

struct MappedChunk {
    size: Bytes,
    state: MappingState,
}

enum MappingState {
    /// A thread is mapping, opening or unmapping it.
    Claimed,
    Closed(Chunk),
    Open(Chunk),
}

/// A mapping that one thread has to itself until it records what became of it.
pub(crate) struct Claim {
    pub(crate) offset: u64,
    pub(crate) is_open: bool,
    pub(crate) chunk: Chunk,
}

/// The purpose of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimFor {
    /// The range must have no hole.
    Open,
    /// No work in flight may use the range.
    Unmap,
}

impl MappedChunk {
    fn claim(&mut self) -> Option<(bool, Chunk)> {
        match std::mem::replace(&mut self.state, MappingState::Claimed) {
            MappingState::Claimed => None,
            MappingState::Closed(chunk) => Some((false, chunk)),
            MappingState::Open(chunk) => Some((true, chunk)),
        }
    }
}

impl MappingTable {
    /// Returns how much is mapped.
    pub(crate) fn mapped(&self) -> Bytes {
        self.chunks.values().map(|chunk| chunk.size).sum()
    }

    /// Returns every mapping, in the order of addresses.
    pub(crate) fn mappings(&self) -> Vec<Mapping> {
        let mapping = |(offset, chunk): (&u64, &MappedChunk)| Mapping {
            range: *offset..offset + chunk.size.0,
            is_open: matches!(chunk.state, MappingState::Open(_)),
        };
        self.chunks.iter().map(mapping).collect()
    }

    /// Claims a range in which nothing is mapped.
    pub(crate) fn claim_hole(&mut self, range: &Range<u64>) -> Result<(), RangeProblem> {
        if self.touching(range).next().is_some() {
            return Err(RangeProblem::AlreadyMapped);
        }
        let size = Bytes(range.end - range.start);
        self.chunks.insert(range.start, MappedChunk { size, state: MappingState::Claimed });
        Ok(())
    }

    /// Claims the mappings of a range, which may cut none of them.
    pub(crate) fn claim(
        &mut self,
        range: Range<u64>,
        purpose: ClaimFor,
    ) -> Result<Vec<Claim>, RangeProblem> {
        let mut covered = 0;
        for (start, chunk) in self.touching(&range) {
            if start < range.start || start + chunk.size.0 > range.end {
                return Err(RangeProblem::CutsMapping);
            }
            if matches!(chunk.state, MappingState::Claimed) {
                return Err(RangeProblem::InUse);
            }
            covered += chunk.size.0;
        }
        let has_hole = covered < range.end - range.start;
        if covered == 0 || (purpose == ClaimFor::Open && has_hole) {
            return Err(RangeProblem::NotMapped);
        }
        let mut pins = self.pins.values();
        let mut is_pinned = || pins.any(|pin| pin.start < range.end && range.start < pin.end);
        if purpose == ClaimFor::Unmap && is_pinned() {
            return Err(RangeProblem::InUse);
        }
        let claim = |(offset, chunk): (&u64, &mut MappedChunk)| {
            chunk.claim().map(|(is_open, chunk)| Claim { offset: *offset, is_open, chunk })
        };
        Ok(self.chunks.range_mut(range).filter_map(claim).collect())
    }

    /// Records that a claimed range has a chunk mapped to it.
    pub(crate) fn record(&mut self, Claim { offset, is_open, chunk }: Claim) {
        let mapped = self.chunks.get_mut(&offset).expect("a claim stays until it is recorded");
        mapped.state =
            if is_open { MappingState::Open(chunk) } else { MappingState::Closed(chunk) };
    }

    /// Records that a claimed range has nothing mapped to it.
    pub(crate) fn remove(&mut self, offset: u64) {
        self.chunks.remove(&offset);
    }

    /// Takes all chunks out, by offset.
    pub(crate) fn take_all(&mut self) -> Vec<(Bytes, Chunk)> {
        let chunks = std::mem::take(&mut self.chunks).into_iter();
        let taken = |(offset, mut chunk): (u64, MappedChunk)| {
            Some((Bytes(offset), chunk.claim().map(|(_, chunk)| chunk)?))
        };
        chunks.filter_map(taken).collect()
    }

    /// Keeps a range mapped while work in flight uses it. All of it must be mapped and open.
    pub(crate) fn pin(&mut self, range: Range<u64>) -> Result<PinId, RangeProblem> {
        let mut covered = range.start;
        for (start, chunk) in self.touching(&range) {
            match chunk.state {
                _ if start > covered => return Err(RangeProblem::NotMapped),
                MappingState::Claimed => return Err(RangeProblem::InUse),
                MappingState::Closed(_) => return Err(RangeProblem::NotOpen),
                MappingState::Open(_) => covered = start + chunk.size.0,
            }
        }
        if covered < range.end {
            return Err(RangeProblem::NotMapped);
        }
        self.last_pin += 1;
        let pin = PinId(self.last_pin);
        self.pins.insert(pin, range);
        Ok(pin)
    }

    /// Lets a pinned range go. May be called twice.
    pub(crate) fn unpin(&mut self, pin: PinId) {
        self.pins.remove(&pin);
    }

    /// Returns the chunks that share a byte with a range, in order.
    fn touching(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &MappedChunk)> {
        let first = self.chunks.range(..range.start).next_back();
        let first = first.filter(|(start, chunk)| *start + chunk.size.0 > range.start);
        let rest = self.chunks.range(range.clone());
        first.into_iter().chain(rest).map(|(start, chunk)| (*start, chunk))
    }
}
