//! Tags as callers see them: names for blocks, with a policy for sleep.

use serde::{Deserialize, Serialize};

/// A named group of blocks. Every pool has the tag [`Tag::default`] from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Tag {
    number: u16,
    /// The number of its pool; zero where the pool is known anyway.
    pool: u16,
}

impl Tag {
    /// Returns the tag of this number, in a pool that is known.
    pub(crate) fn of_number(number: usize) -> Tag {
        Tag { number: number as u16, pool: 0 }
    }

    pub(crate) fn of_pool(number: usize, pool: u16) -> Tag {
        Tag { pool, ..Tag::of_number(number) }
    }

    pub(crate) fn number(self) -> u16 {
        self.number
    }

    pub(crate) fn pool(self) -> u16 {
        self.pool
    }
}

/// What a sleep does with the blocks of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SleepPolicy {
    /// Their content is saved to the host and comes back with the wake.
    Offload,
    /// Their content is lost; their addresses stay.
    Discard,
    /// They stay on the device.
    Keep,
}

/// Whether the memory of a tag is on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The memory is on the device.
    Awake,
    /// A sleep or a wake is under way.
    Turning,
    /// The memory is off the device; the addresses stay.
    Asleep,
}

/// The tags that a sleep or a wake applies to.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    /// All tags of the pool.
    Whole,
    /// These tags.
    Tags(&'a [Tag]),
}
