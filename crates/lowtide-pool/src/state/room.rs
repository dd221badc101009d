//! Rooms: each tag has one for small and one for large blocks.
//!
//! So a chunk belongs to one tag, a tag sleeps without its neighbours, and small blocks do not pin
//! the pages of large ones.

use std::ops::{Index, IndexMut};

use crate::state::arena::Arena;
use crate::state::shelf::Shelf;
use crate::state::tag::Tag;

/// Rooms of a tag: small blocks, large blocks.
pub(crate) const ROOMS: usize = 2;

/// The number of a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RoomId(u32);

impl RoomId {
    /// Returns the rooms of a tag.
    pub(crate) fn of_tag(tag: Tag) -> [RoomId; ROOMS] {
        let first = u32::from(tag.number()) * ROOMS as u32;
        [RoomId(first), RoomId(first + 1)]
    }

    /// Returns a tag's room for small blocks, or that for large ones.
    pub(crate) fn new(tag: Tag, is_small: bool) -> RoomId {
        RoomId(u32::from(tag.number()) * ROOMS as u32 + u32::from(!is_small))
    }

    /// Returns the tag that the room belongs to.
    pub(crate) fn tag(self) -> Tag {
        Tag::of_number(self.0 as usize / ROOMS)
    }
}

/// An arena with the blocks that rest before they go back to it.
pub(crate) struct Room {
    pub(crate) arena: Arena,
    pub(crate) shelf: Shelf,
}

/// The rooms of a pool: [`ROOMS`] for each tag, in the order of the tags.
#[derive(Default)]
pub(crate) struct Rooms {
    list: Vec<Room>,
}

impl Rooms {
    /// Adds the rooms of the next tag.
    pub(crate) fn extend(&mut self, rooms: [Room; ROOMS]) {
        self.list.extend(rooms);
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = RoomId> + use<> {
        (0..self.list.len() as u32).map(RoomId)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RoomId, &Room)> {
        self.ids().zip(&self.list)
    }

    /// Lists the rooms of each tag, in the order of the tags.
    pub(crate) fn by_tag(&self) -> impl Iterator<Item = &[Room]> {
        self.list.chunks_exact(ROOMS)
    }
}

impl Index<RoomId> for Rooms {
    type Output = Room;

    fn index(&self, room: RoomId) -> &Room {
        &self.list[room.0 as usize]
    }
}

impl IndexMut<RoomId> for Rooms {
    fn index_mut(&mut self, room: RoomId) -> &mut Room {
        &mut self.list[room.0 as usize]
    }
}
