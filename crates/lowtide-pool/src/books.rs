//! What the pool knows, under its one lock: who has which block, and which tag is awake.
//!
//! Each tag has two rooms, for small and for large blocks, so that a chunk is one tag's alone and a
//! tag can sleep without its neighbours. The hit is here, and touches no driver.

use lowtide_device::{Address, Bytes};

use crate::arena::Arena;
use crate::backup::Backups;
use crate::blocks::SETTLED;
use crate::carry::Carriers;
use crate::handles::{Handle, Handles};
use crate::policy::GRAIN;
use crate::record::Recorder;
use crate::shelf::Shelf;
use crate::streams::Streams;
use crate::tags::{Phase, Tag, Tags};
use crate::{Error, Result, StreamId};

/// Rooms of a tag: small blocks, large blocks.
pub(crate) const ROOMS: usize = 2;

/// An arena with the blocks that rest before they go back to it.
pub(crate) struct Room {
    pub(crate) arena: Arena,
    pub(crate) shelf: Shelf,
}

pub(crate) struct Books {
    /// [`ROOMS`] for each tag, in the order of the tags.
    pub(crate) rooms: Vec<Room>,
    pub(crate) tags: Tags,
    pub(crate) counts: Counts,
    pub(crate) streams: Streams,
    pub(crate) backups: Backups,
    pub(crate) carriers: Option<Carriers>,
    /// Whether a sleep or a wake is at work: one at a time.
    pub(crate) turning: bool,
    pub(crate) recorder: Option<Recorder>,
    handles: Handles,
    /// Whether a free means that nothing uses the block any more.
    settled: bool,
}

/// What a pool holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// In blocks that callers have, asleep or not.
    pub live: Bytes,
    /// The most of it there ever was.
    pub live_peak: Bytes,
    /// Memory taken from the device.
    pub physical: Bytes,
    /// The most of it there ever was.
    pub physical_peak: Bytes,
    /// Of `live`: what has no memory on the device now.
    pub asleep: Bytes,
    /// Backups of blocks, in the host's memory.
    pub backup: Bytes,
    /// Memory taken from the host for backups; what no backup uses serves the next sleep.
    pub host: Bytes,
    /// Blocks that callers have.
    pub blocks: u64,
}

impl Counts {
    /// Memory taken from the device that no caller has.
    pub fn cached(&self) -> Bytes {
        self.physical.saturating_sub(self.live - self.asleep)
    }
}

/// The rooms of a tag.
pub(crate) fn rooms_of(tag: Tag) -> std::ops::Range<usize> {
    let first = usize::from(tag.number()) * ROOMS;
    first..first + ROOMS
}

/// The tag whose room this is.
pub(crate) fn tag_of(room: usize) -> Tag {
    Tag::of_number(room / ROOMS)
}

/// What a caller asks for.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) room: usize,
    pub(crate) grains: u32,
    pub(crate) stream: StreamId,
    pub(crate) tag: Tag,
}

impl Request {
    pub(crate) fn size(&self) -> u64 {
        u64::from(self.grains) * GRAIN
    }
}

impl Books {
    pub(crate) fn new(settled: bool) -> Books {
        Books {
            rooms: Vec::new(),
            tags: Tags::new(),
            counts: Counts::default(),
            streams: Streams::default(),
            backups: Backups::default(),
            carriers: None,
            turning: false,
            recorder: None,
            handles: Handles::default(),
            settled,
        }
    }

    /// The number under which a stream's blocks are kept.
    pub(crate) fn owner_of(&mut self, stream: StreamId) -> u32 {
        if self.settled { SETTLED } else { self.streams.number_of(stream) }
    }

    /// A block of just this size that rests, live again.
    pub(crate) fn hit(&mut self, request: &Request) -> Option<Address> {
        let owner = self.owner_of(request.stream);
        let Room { shelf, .. } = &mut self.rooms[request.room];
        let mut found = shelf.take(&mut self.handles, request.grains, owner);
        if found.is_none() && owner != SETTLED {
            found = shelf.take(&mut self.handles, request.grains, SETTLED);
        }
        let address = found?;
        self.count_in(request);
        Some(Address(address))
    }

    /// A cached block cut to size: what rests is joined with its neighbours first.
    pub(crate) fn take(&mut self, request: &Request) -> Option<Address> {
        let owner = self.owner_of(request.stream);
        self.clear_shelf(request.room);
        let block = self.rooms[request.room].arena.take(request.size(), owner)?;
        Some(self.hand_out(request, block))
    }

    pub(crate) fn hand_out(&mut self, request: &Request, block: u32) -> Address {
        let address = self.rooms[request.room].arena.address_of(block);
        let (grains, tag) = (request.grains, request.tag.number());
        let handle = Handle { address, next: 0, grains, block, owner: 0, tag, resting: false };
        self.handles.insert(handle);
        self.count_in(request);
        Address(address)
    }

    fn count_in(&mut self, request: &Request) {
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

    /// A block comes back. It only rests: whatever a sleep or a wake is doing, this may be called.
    pub(crate) fn give_back(
        &mut self,
        address: Address,
        stream: StreamId,
        small_grains: u32,
    ) -> Result<Bytes> {
        let owner = if self.settled { SETTLED } else { self.streams.count_free(stream) };
        let handle = self.handles.get_mut(address.0).filter(|handle| !handle.resting);
        let handle = handle.ok_or(Error::UnknownBlock { address })?;
        (handle.resting, handle.owner) = (true, owner);
        let (size, tag) =
            (Bytes(u64::from(handle.grains) * GRAIN), Tag::of_number(handle.tag.into()));
        let room = room_of(tag, handle.grains, small_grains);
        self.rooms[room].shelf.put(handle);
        self.counts.live = self.counts.live - size;
        self.counts.blocks -= 1;
        let tag = &mut self.tags[tag];
        tag.live = tag.live - size;
        tag.blocks -= 1;
        if tag.phase == Phase::Asleep {
            self.counts.asleep = self.counts.asleep - size;
        }
        Ok(size)
    }

    /// The room of a live block.
    pub(crate) fn room_at(&mut self, address: Address, small_grains: u32) -> Result<&Room> {
        let handle = self.handles.get_mut(address.0).filter(|handle| !handle.resting);
        let handle = handle.ok_or(Error::UnknownBlock { address })?;
        let room = room_of(Tag::of_number(handle.tag.into()), handle.grains, small_grains);
        Ok(&self.rooms[room])
    }

    /// Sends what rests back to the arena, unless a sleep or a wake is at work there.
    pub(crate) fn clear_shelf(&mut self, room: usize) {
        match self.tags[tag_of(room)].phase {
            Phase::Awake => self.clear(room, false),
            Phase::Asleep => self.clear(room, true),
            Phase::Turning => {}
        }
    }

    /// The same for whoever is at work there.
    pub(crate) fn clear(&mut self, room: usize, asleep: bool) {
        let Room { arena, shelf } = &mut self.rooms[room];
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

    pub(crate) fn clear_shelves(&mut self) {
        (0..self.rooms.len()).for_each(|room| self.clear_shelf(room));
    }

    /// Whether a room's memory may be planned with.
    pub(crate) fn is_awake(&self, room: usize) -> bool {
        self.tags[tag_of(room)].phase == Phase::Awake
    }

    /// The rooms of tags that are awake.
    pub(crate) fn awake_rooms(&self) -> Vec<usize> {
        (0..self.rooms.len()).filter(|room| self.is_awake(*room)).collect()
    }

    /// Memory of tags that are awake and in no caller's block. (What turns is not there to be planned
    /// with, and its live blocks may have no memory yet.)
    pub(crate) fn cached_awake(&self) -> Bytes {
        let awake = self.tags.known.iter().zip(self.rooms.chunks_exact(ROOMS));
        let awake = awake.filter(|(known, _)| known.phase == Phase::Awake);
        let cached = |(known, rooms): (&crate::tags::Known, &[Room])| {
            let mapped = rooms.iter().map(|room| Bytes(room.arena.mapped())).sum::<Bytes>();
            mapped.saturating_sub(known.live)
        };
        awake.map(cached).sum()
    }

    /// Adds up what is mapped, after it changed.
    pub(crate) fn count_physical(&mut self) {
        let counts = &mut self.counts;
        counts.physical = self.rooms.iter().map(|room| Bytes(room.arena.mapped())).sum();
        counts.physical_peak = counts.physical_peak.max(counts.physical);
    }

    /// What must always hold; panics where it does not.
    pub(crate) fn check(&self, small_grains: u32) {
        for (index, room) in self.rooms.iter().enumerate() {
            room.arena.check(self.tags[tag_of(index)].phase == Phase::Asleep);
        }
        let mapped: u64 = self.rooms.iter().map(|room| room.arena.mapped()).sum();
        assert_eq!(mapped, self.counts.physical.0, "what is taken from the device is mapped");
        let (mut live, mut count) = (0, 0);
        for handle in self.handles.iter() {
            let room = room_of(Tag::of_number(handle.tag.into()), handle.grains, small_grains);
            let arena = &self.rooms[room].arena;
            assert_eq!(arena.address_of(handle.block), handle.address, "a handle's block");
            let size = u64::from(handle.grains) * GRAIN;
            assert_eq!(arena.blocks().get(handle.block).size, size, "a handle's size");
            if !handle.resting {
                (live, count) = (live + size, count + 1);
            }
        }
        assert_eq!((live, count), (self.counts.live.0, self.counts.blocks), "what is live");
        let of_tags = |value: fn(&crate::tags::Known) -> Bytes| -> Bytes {
            self.tags.known.iter().map(value).sum()
        };
        assert_eq!(of_tags(|tag| tag.live), self.counts.live, "every live byte has a tag");
        let asleep = of_tags(|tag| match tag.phase {
            Phase::Asleep => tag.live,
            Phase::Awake | Phase::Turning => Bytes::ZERO,
        });
        assert_eq!(asleep, self.counts.asleep, "what is asleep");
        assert_eq!(of_tags(|tag| tag.backup), self.counts.backup, "every backup has a tag");
        // While a sleep or a wake is at work, it has them.
        if !self.turning {
            self.backups.check(self.counts.backup, self.counts.host);
        }
    }
}

/// The room for blocks of this size.
pub(crate) fn room_of(tag: Tag, grains: u32, small_grains: u32) -> usize {
    usize::from(tag.number()) * ROOMS + usize::from(grains > small_grains)
}
