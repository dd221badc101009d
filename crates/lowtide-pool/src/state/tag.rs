//! Tags as callers see them: names for blocks, with a policy for sleep.

/// A named group of blocks. Every pool has the tag [`Tag::default`] from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Tag {
    number: u16,
    /// The number of its pool; zero where the pool is known anyway.
    pool: u64,
}

impl Tag {
    /// Returns the tag of this number, in a pool that is known.
    pub(crate) fn of_number(number: usize) -> Tag {
        Tag { number: number as u16, pool: 0 }
    }

    pub(crate) fn of_pool(number: usize, pool: u64) -> Tag {
        Tag { pool, ..Tag::of_number(number) }
    }

    pub(crate) fn number(self) -> u16 {
        self.number
    }

    pub(crate) fn pool(self) -> u64 {
        self.pool
    }
}

/// The tags that a sleep or a wake applies to.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    /// The sleep or wake applies to all tags of the pool.
    Whole,
    /// The sleep or wake applies to these tags.
    Tags(&'a [Tag]),
}
