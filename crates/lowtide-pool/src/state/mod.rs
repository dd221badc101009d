//! The state of a pool, under its one lock: which blocks are live, and which tags are awake.
//!
//! A hit is served here, without a driver call.

pub(crate) mod arena;
pub(crate) mod arenas;
pub(crate) mod bins;
pub(crate) mod blocks;
pub(crate) mod handles;
pub(crate) mod shelf;
pub(crate) mod streams;
pub(crate) mod tags;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use lowtide_device::{Address, Bytes};
use lowtide_types::Phase;

use crate::ahead::round::{Ahead, PageReader};
use crate::backups::Backups;
use crate::copy::streams::CopyStreams;
use crate::policy::GRAIN;
use crate::pool::fence::StreamId;
use crate::state::arena::{Arena, Fit};
use crate::state::arenas::{ArenaId, Arenas};
use crate::state::blocks::SETTLED;
use crate::state::handles::{Handle, Handles};
use crate::state::streams::Streams;
use crate::state::tags::{Tag, TagEntry, Tags};
use crate::trace::record::Recording;
use crate::{Error, Result};

pub(crate) struct State {
    pub(crate) arenas: Arenas,
    pub(crate) tags: Tags,
    pub(crate) streams: Streams,
    /// While a turn or a step is under way, it has them.
    pub(crate) backups: Backups,
    pub(crate) copy_streams: Option<CopyStreams>,
    /// While a step is under way, the step has it.
    pub(crate) ahead: Ahead,
    pub(crate) reader: Arc<PageReader>,
    pub(crate) recorder: Option<Recording>,
    pub(crate) spare: Spare,
    /// The addresses of live blocks whose content did not come back and was not written since.
    pub(crate) lost: BTreeSet<u64>,
    /// The pool's numbers, apart from `asleep`, which the tags know.
    counts: PoolCounts,
    /// The most memory that was taken from the device since the last trim. What a trim gave back is not taken
    /// again without a look at what the device has free.
    taken_peak: Bytes,
    handles: Handles,
    /// Blocks of up to so many grains are small.
    small_grains: u32,
    /// Set where a free means that nothing uses the block any more.
    settled: bool,
}

/// The numbers of a pool at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Bytes in blocks that callers have, asleep or awake.
    pub live: Bytes,
    /// The highest value that `live` ever had.
    pub live_peak: Bytes,
    /// Memory taken from the device.
    pub physical: Bytes,
    /// The highest value that `physical` ever had.
    pub physical_peak: Bytes,
    /// The part of `live` that is asleep: it has no memory on the device.
    pub asleep: Bytes,
    /// Host memory that holds backups.
    pub backup: Bytes,
    /// Host memory taken for backups. What no backup uses serves the next sleep.
    pub host: Bytes,
    /// The number of blocks that callers have.
    pub blocks: u64,
}

impl PoolCounts {
    /// Returns the memory taken from the device that is in no caller's block.
    pub fn cached(&self) -> Bytes {
        self.physical.saturating_sub(self.live.saturating_sub(self.asleep))
    }
}

/// A block that a caller asks for.
#[derive(Clone, Copy)]
pub(crate) struct BlockRequest {
    pub(crate) arena_id: ArenaId,
    pub(crate) grains: u32,
    pub(crate) align: u64,
    pub(crate) stream: StreamId,
    pub(crate) tag: Tag,
}

impl BlockRequest {
    pub(crate) fn size(&self) -> u64 {
        u64::from(self.grains) * GRAIN
    }

    pub(crate) fn fit(&self) -> Fit {
        Fit { size: self.size(), align: self.align }
    }
}

impl State {
    pub(crate) fn new(settled: bool, small_grains: u32) -> State {
        State {
            arenas: Arenas::default(),
            tags: Tags::new(),
            streams: Streams::default(),
            backups: Backups::default(),
            copy_streams: None,
            ahead: Ahead::default(),
            reader: Arc::default(),
            recorder: None,
            spare: Spare::default(),
            lost: BTreeSet::new(),
            counts: PoolCounts::default(),
            taken_peak: Bytes::ZERO,
            handles: Handles::default(),
            small_grains,
            settled,
        }
    }

    pub(crate) fn counts(&self) -> PoolCounts {
        PoolCounts { asleep: self.tags.asleep(), ..self.counts }
    }

    /// Returns the numbers of a pool that is broken: as they stand, with the device layer's word for what
    /// is mapped.
    pub(crate) fn counts_as_it_is(&self) -> PoolCounts {
        let physical = self.arenas.iter().map(|(_, arena)| arena.reservation.mapped()).sum();
        PoolCounts { physical, ..self.counts }
    }

    pub(crate) fn arena_for(&self, tag: Tag, grains: u32) -> ArenaId {
        ArenaId::new(tag, grains <= self.small_grains)
    }

    /// Returns the number under which a stream's blocks are kept.
    pub(crate) fn owner_of(&mut self, stream: StreamId) -> u32 {
        if self.settled { SETTLED } else { self.streams.number_of(stream) }
    }

    /// Takes a block of just this size that rests.
    pub(crate) fn hit(&mut self, request: &BlockRequest) -> Option<Address> {
        let owner = self.owner_of(request.stream);
        let shelf = self.arenas.shelf(request.arena_id);
        let mut found = shelf.take(&mut self.handles, request.grains, owner);
        if found.is_none() && owner != SETTLED {
            found = shelf.take(&mut self.handles, request.grains, SETTLED);
        }
        let address = found?;
        self.count_in(request);
        Some(Address(address))
    }

    /// Takes a cached block cut to size: what rests is joined with its neighbours first. Where a large chunk
    /// would be parted, it takes none, or it takes it if that `may_part`.
    pub(crate) fn take(&mut self, request: &BlockRequest, may_part: bool) -> Option<Address> {
        let owner = self.owner_of(request.stream);
        self.clear_shelf(request.arena_id);
        let block = self.arenas[request.arena_id].take(request.fit(), owner, may_part)?;
        Some(self.hand_out(request, block))
    }

    pub(crate) fn hand_out(&mut self, request: &BlockRequest, block: u32) -> Address {
        let address = self.arenas[request.arena_id].address_of(block);
        let (grains, tag) = (request.grains, request.tag.number());
        let handle = Handle { address, next: 0, grains, block, owner: 0, tag, resting: false };
        self.handles.insert(handle);
        self.count_in(request);
        Address(address)
    }

    fn count_in(&mut self, request: &BlockRequest) {
        let size = Bytes(request.size());
        let counts = &mut self.counts;
        counts.live += size;
        counts.live_peak = counts.live_peak.max(counts.live);
        counts.blocks += 1;
        let tag = &mut self.tags[request.tag];
        tag.live += size;
        tag.peak = tag.peak.max(tag.live);
        tag.blocks += 1;
    }

    /// Takes a block back. It only rests: this may be called whatever a sleep or a wake is doing.
    pub(crate) fn give_back(&mut self, address: Address, stream: StreamId) -> Result<()> {
        let owner = if self.settled { SETTLED } else { self.streams.count_free(stream) };
        let handle = self.handles.get_mut(address.0).filter(|handle| !handle.resting);
        let handle = handle.ok_or(Error::UnknownBlock { address })?;
        (handle.resting, handle.owner) = (true, owner);
        let (size, tag) =
            (Bytes(u64::from(handle.grains) * GRAIN), Tag::of_number(handle.tag.into()));
        let arena_id = ArenaId::new(tag, handle.grains <= self.small_grains);
        self.arenas.shelf(arena_id).put(handle);
        if !self.lost.is_empty() {
            self.lost.remove(&address.0);
        }
        self.counts.live = self.counts.live - size;
        self.counts.blocks -= 1;
        let tag = &mut self.tags[tag];
        tag.live = tag.live - size;
        tag.blocks -= 1;
        Ok(())
    }

    /// Lists the addresses of the blocks that callers have.
    pub(crate) fn live_ranges(&self) -> Vec<Range<u64>> {
        let live = self.handles.iter().filter(|handle| !handle.resting);
        live.map(|live| live.address..live.address + u64::from(live.grains) * GRAIN).collect()
    }

    /// Returns whether a free means that nothing uses the block any more.
    pub(crate) fn frees_at_once(&self) -> bool {
        self.settled
    }

    /// Returns the arena of a live block.
    pub(crate) fn arena_at(&mut self, address: Address) -> Result<ArenaId> {
        let handle = self.handles.get_mut(address.0).filter(|handle| !handle.resting);
        let handle = *handle.ok_or(Error::UnknownBlock { address })?;
        Ok(self.arena_for(Tag::of_number(handle.tag.into()), handle.grains))
    }

    /// Sends what rests back to the arena, unless a sleep or a wake is at work there.
    pub(crate) fn clear_shelf(&mut self, arena_id: ArenaId) {
        match self.tags[arena_id.tag()].phase() {
            Phase::Awake => self.clear(arena_id, false),
            Phase::Asleep => self.clear(arena_id, true),
            Phase::Turning => {}
        }
    }

    /// Sends what rests back to the arena, on behalf of the turn or the phase that it is in.
    pub(crate) fn clear(&mut self, arena_id: ArenaId, asleep: bool) {
        let (arena, shelf) = self.arenas.with_shelf(arena_id);
        for head in shelf.clear() {
            let mut at = head;
            while at != 0 {
                let handle = self.handles.remove(at).expect("what rests has a handle");
                at = handle.next;
                if asleep {
                    arena.give_back_asleep(handle.block);
                } else {
                    arena.give_back(handle.block, handle.owner, self.streams.frees(handle.owner));
                }
            }
        }
    }

    /// Lists the blocks that callers have.
    pub(crate) fn live_handles(&self) -> impl Iterator<Item = &Handle> {
        self.handles.iter().filter(|handle| !handle.resting)
    }

    pub(crate) fn clear_shelves(&mut self) {
        self.arenas.ids().for_each(|arena_id| self.clear_shelf(arena_id));
    }

    /// Returns whether an arena's memory may be planned with.
    pub(crate) fn is_awake(&self, arena_id: ArenaId) -> bool {
        self.tags[arena_id.tag()].phase() == Phase::Awake
    }

    /// Lists the arenas of tags that are awake.
    pub(crate) fn awake_arenas(&self) -> Vec<ArenaId> {
        self.arenas.ids().filter(|arena_id| self.is_awake(*arena_id)).collect()
    }

    /// Returns the memory of tags that are awake and in no caller's block. (What turns is not there to be planned
    /// with, and its live blocks may have no memory yet.)
    pub(crate) fn cached_awake(&self) -> Bytes {
        let awake = self.tags.known.iter().zip(self.arenas.by_tag());
        let awake = awake.filter(|(known, _)| known.phase() == Phase::Awake);
        let cached = |(known, arenas): (&TagEntry, &[Arena])| {
            let mapped = arenas.iter().map(|arena| Bytes(arena.mapped())).sum::<Bytes>();
            mapped.saturating_sub(known.live)
        };
        awake.map(cached).sum()
    }

    /// Adds up what is mapped, after it changed.
    pub(crate) fn count_physical(&mut self) {
        let mapped = Bytes(self.arenas.mapped());
        self.counts.physical = mapped;
        self.counts.physical_peak = self.counts.physical_peak.max(mapped);
        self.taken_peak = self.taken_peak.max(mapped);
    }

    pub(crate) fn taken_peak(&self) -> Bytes {
        self.taken_peak
    }

    /// Records that memory which was to spare went back to the device.
    pub(crate) fn end_trim(&mut self) {
        self.taken_peak = self.counts.physical;
    }

    /// Adds up backups, after they changed.
    pub(crate) fn count_backups(&mut self) {
        // Of all tags: others' backups may have made room.
        for (number, known) in self.tags.known.iter_mut().enumerate() {
            let arenas = ArenaId::of_tag(Tag::of_number(number)).into_iter();
            known.backup = arenas.map(|arena_id| self.backups.used_by(arena_id)).sum();
        }
        self.counts.backup = self.tags.known.iter().map(|known| known.backup).sum();
        self.counts.host = self.backups.held();
    }

    /// Records what the backups of a tag use, and the host memory taken for all.
    pub(crate) fn count_backups_of(&mut self, used: Option<(Tag, Bytes)>, held: Bytes) {
        if let Some((tag, used)) = used {
            self.tags[tag].backup = used;
        }
        self.counts.backup = self.tags.known.iter().map(|known| known.backup).sum();
        self.counts.host = held;
    }

    /// Checks every invariant; panics where one does not hold.
    pub(crate) fn check(&self) {
        for (id, arena) in self.arenas.iter() {
            let is_quiet = self.tags.is_quiet(id.tag());
            arena.check(self.tags[id.tag()].phase() == Phase::Asleep, is_quiet);
        }
        let mapped = self.arenas.mapped();
        // A turn records its parts one by one, and adds up at its end.
        let is_counted = self.tags.has_turn() || mapped == self.counts.physical.0;
        assert!(is_counted, "what is taken from the device is mapped");
        let (mut live, mut count) = (0, 0);
        for handle in self.handles.iter() {
            let arena_id = self.arena_for(Tag::of_number(handle.tag.into()), handle.grains);
            let arena = &self.arenas[arena_id];
            assert_eq!(arena.address_of(handle.block), handle.address, "a handle's block");
            let size = u64::from(handle.grains) * GRAIN;
            assert_eq!(arena.blocks().get(handle.block).size, size, "a handle's size");
            if !handle.resting {
                (live, count) = (live + size, count + 1);
            }
        }
        assert_eq!((live, count), (self.counts.live.0, self.counts.blocks), "what is live");
        let is_live = |address: &u64| {
            self.handles.iter().any(|handle| handle.address == *address && !handle.resting)
        };
        assert!(self.lost.iter().all(is_live), "what is lost is live");
        let of_tags =
            |value: fn(&TagEntry) -> Bytes| -> Bytes { self.tags.known.iter().map(value).sum() };
        assert_eq!(of_tags(|tag| tag.live), self.counts.live, "every live byte has a tag");
        assert_eq!(of_tags(|tag| tag.backup), self.counts.backup, "every backup has a tag");
        if !self.tags.has_lent_backups() {
            self.backups.check(self.counts.backup, self.counts.host, self.ahead.unsure());
        }
    }
}

impl AsMut<Tags> for State {
    fn as_mut(&mut self) -> &mut Tags {
        &mut self.tags
    }
}

/// The number of allocations, of those that would move chunks, for which an answer of the device is used.
const USES: u32 = 16;

/// Memory that the device has free and an allocation may take, so that no chunk has to move, as the device said
/// not long ago.
///
/// Where memory is tight, moving chunks is right: it takes nothing from anybody. Where the device has memory to
/// spare, growth costs driver calls once. After that, cached blocks of more sizes are there, and a request for
/// another size seldom calls the driver at all. A trim, a sleep, a wake and any allocation that finds the device
/// full get the memory back (docs/decisions/0004-chunks.md).
#[derive(Default)]
pub(crate) struct Spare {
    left: u64,
    uses: u32,
}

impl Spare {
    /// Returns what the device has just said may be taken.
    pub(crate) fn answered(left: u64) -> Spare {
        Spare { left, uses: USES }
    }

    /// Returns whether the device has to be asked again.
    pub(crate) fn is_old(&self) -> bool {
        self.uses == 0
    }

    /// Takes memory; `false` where there is not so much.
    pub(crate) fn take(&mut self, size: u64) -> bool {
        self.uses = self.uses.saturating_sub(1);
        let is_there = self.left >= size;
        if is_there {
            self.left -= size;
        }
        is_there
    }
}
