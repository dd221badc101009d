//! Blocks in address order: every byte of an arena belongs to exactly one.
//!
//! A block is live, cached (free and mapped), a hole (free and not mapped), or busy (being mapped
//! or unmapped by a thread). Indices stay the same while a block lives, so that lists can run
//! through them.

/// The index that stands for no block.
pub(crate) const NONE: u32 = u32::MAX;

/// The stream number of a block whose users are done.
pub(crate) const SETTLED: u32 = 0;

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockState {
    Live,
    Cached,
    Hole,
    Busy,
}

/// A stretch of an arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Bytes from the arena's start.
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) state: BlockState,
    /// The number of the stream that freed a cached block; [`SETTLED`] once that has passed.
    pub(crate) stream: u32,
    /// The place of a cached block among the frees of that stream.
    pub(crate) freed: u64,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) bin_prev: u32,
    pub(crate) bin_next: u32,
}

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }

    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.start..self.end()
    }
}

/// The blocks of an arena.
pub(crate) struct Blocks {
    slots: Vec<Block>,
    spare: Vec<u32>,
    first: u32,
}

impl Blocks {
    /// Begins with one hole.
    pub(crate) fn new(size: u64) -> Blocks {
        let hole = Block {
            start: 0,
            size,
            state: BlockState::Hole,
            stream: SETTLED,
            freed: 0,
            prev: NONE,
            next: NONE,
            bin_prev: NONE,
            bin_next: NONE,
        };
        Blocks { slots: vec![hole], spare: Vec::new(), first: 0 }
    }

    pub(crate) fn get(&self, block: u32) -> &Block {
        &self.slots[block as usize]
    }

    pub(crate) fn get_mut(&mut self, block: u32) -> &mut Block {
        &mut self.slots[block as usize]
    }

    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Lists blocks in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            (at != NONE).then(|| {
                let found = (at, self.get(at));
                at = found.1.next;
                found
            })
        })
    }

    /// Cuts a block in two; the second half is returned and has the first's state and stream.
    pub(crate) fn split(&mut self, block: u32, size: u64) -> u32 {
        let whole = *self.get(block);
        debug_assert!(size > 0 && size < whole.size, "both halves are something");
        let rest = Block {
            start: whole.start + size,
            size: whole.size - size,
            prev: block,
            bin_prev: NONE,
            bin_next: NONE,
            ..whole
        };
        let index = if let Some(index) = self.spare.pop() {
            self.slots[index as usize] = rest;
            index
        } else {
            self.slots.push(rest);
            u32::try_from(self.slots.len() - 1).expect("fewer than four thousand million blocks")
        };
        if whole.next != NONE {
            self.get_mut(whole.next).prev = index;
        }
        let first = self.get_mut(block);
        (first.size, first.next) = (size, index);
        index
    }

    /// Joins a block with the one behind it, whose index is gone afterwards.
    pub(crate) fn join_next(&mut self, block: u32) {
        let gone = self.get(block).next;
        let Block { size, next, freed, .. } = *self.get(gone);
        let first = self.get_mut(block);
        first.freed = first.freed.max(freed);
        first.size += size;
        first.next = next;
        if next != NONE {
            self.get_mut(next).prev = block;
        }
        self.spare.push(gone);
    }
}
