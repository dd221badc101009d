//! The arenas of a pool: each tag has one for small and one for large blocks.
//!
//! So a chunk belongs to one tag, a tag sleeps without its neighbours, and small blocks do not pin
//! the pages of large ones.

use std::ops::{Index, IndexMut};

use crate::state::arena::Arena;
use crate::state::shelf::Shelf;
use crate::state::tags::Tag;

/// Arenas of a tag: small blocks, large blocks.
pub(crate) const ARENAS_OF_TAG: usize = 2;

/// The number of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArenaId(u32);

impl ArenaId {
    /// Returns the arenas of a tag.
    pub(crate) fn of_tag(tag: Tag) -> [ArenaId; ARENAS_OF_TAG] {
        [true, false].map(|is_small| ArenaId::new(tag, is_small))
    }

    /// Returns a tag's arena for small blocks, or that for large ones.
    pub(crate) fn new(tag: Tag, is_small: bool) -> ArenaId {
        ArenaId(u32::from(tag.number()) * ARENAS_OF_TAG as u32 + u32::from(!is_small))
    }

    /// Returns the tag that the arena belongs to.
    pub(crate) fn tag(self) -> Tag {
        Tag::of_number(self.0 as usize / ARENAS_OF_TAG)
    }
}

/// The arenas of a pool, [`ARENAS_OF_TAG`] for each tag in the order of the tags, each with the blocks that
/// rest before they go back to it.
#[derive(Default)]
pub(crate) struct Arenas {
    list: Vec<Arena>,
    shelves: Vec<Shelf>,
}

impl Arenas {
    /// Adds the arenas of the next tag.
    pub(crate) fn extend(&mut self, arenas: [Arena; ARENAS_OF_TAG]) {
        self.list.extend(arenas);
        self.shelves.resize_with(self.list.len(), Shelf::default);
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ArenaId> + use<> {
        (0..self.list.len() as u32).map(ArenaId)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ArenaId, &Arena)> {
        self.ids().zip(&self.list)
    }

    /// Lists the arenas of each tag, in the order of the tags.
    pub(crate) fn by_tag(&self) -> impl Iterator<Item = &[Arena]> {
        self.list.chunks_exact(ARENAS_OF_TAG)
    }

    /// Returns the memory under all arenas.
    pub(crate) fn mapped(&self) -> u64 {
        self.list.iter().map(Arena::mapped).sum()
    }

    /// Returns the shelf of an arena.
    pub(crate) fn shelf(&mut self, arena: ArenaId) -> &mut Shelf {
        &mut self.shelves[arena.0 as usize]
    }

    /// Returns an arena and its shelf.
    pub(crate) fn with_shelf(&mut self, arena: ArenaId) -> (&mut Arena, &mut Shelf) {
        (&mut self.list[arena.0 as usize], &mut self.shelves[arena.0 as usize])
    }
}

impl Index<ArenaId> for Arenas {
    type Output = Arena;

    fn index(&self, arena: ArenaId) -> &Arena {
        &self.list[arena.0 as usize]
    }
}

impl IndexMut<ArenaId> for Arenas {
    fn index_mut(&mut self, arena: ArenaId) -> &mut Arena {
        &mut self.list[arena.0 as usize]
    }
}
