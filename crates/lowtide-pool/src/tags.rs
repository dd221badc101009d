//! Tags: names for blocks, with what becomes of them in a sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use lowtide_device::Bytes;
use serde::Serialize;

use crate::{Error, Result};

/// A name for blocks, by number. A pool's first tag, [`Tag::default`], is there from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Tag {
    number: u16,
    /// Which pool's it is; zero where that is known anyway.
    pool: u16,
}

impl Tag {
    /// The tag of this number, in a pool that is known.
    pub(crate) fn of_number(number: usize) -> Tag {
        Tag { number: number as u16, pool: 0 }
    }

    pub(crate) fn number(self) -> u16 {
        self.number
    }
}

/// What becomes of a tag's blocks when the pool sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SleepPolicy {
    /// Their content goes to the host and comes back.
    Offload,
    /// Their content is lost; their addresses stay.
    Discard,
    /// They stay on the device.
    Keep,
}

/// Whether a tag's memory is on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is.
    Awake,
    /// A sleep or a wake is at work on it.
    Turning,
    /// It is not; addresses stay.
    Asleep,
}

/// Tags a sleep or a wake speaks of.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    /// All that the pool has.
    Whole,
    /// These.
    Tags(&'a [Tag]),
}

/// A program has a few; each costs address space.
const TAGS_MOST: usize = 1024;

/// What is known of one tag.
pub(crate) struct Known {
    pub(crate) name: Arc<str>,
    pub(crate) policy: SleepPolicy,
    pub(crate) phase: Phase,
    /// Plans at the driver that touch its memory right now.
    pub(crate) jobs: usize,
    pub(crate) live: Bytes,
    pub(crate) peak: Bytes,
    pub(crate) blocks: u64,
    /// Memory of the host with its backup.
    pub(crate) backup: Bytes,
}

/// All tags of a pool.
pub(crate) struct Tags {
    pub(crate) known: Vec<Known>,
    /// The pool's number, for its tags.
    pool: u16,
}

impl Tags {
    pub(crate) fn new() -> Tags {
        // A program has few pools; should it make 65,535, numbers come again.
        static POOLS: AtomicU16 = AtomicU16::new(0);
        let pool = POOLS.fetch_add(1, Relaxed).checked_add(1).unwrap_or(1);
        Tags { known: Vec::new(), pool }
    }

    // The first tag is every pool's.
    fn tag(&self, index: usize) -> Tag {
        let pool = if index == 0 { 0 } else { self.pool };
        Tag { pool, ..Tag::of_number(index) }
    }

    /// The tag of this name, if there is one; refused where it has another policy.
    pub(crate) fn known_as(&self, name: &str, wanted: SleepPolicy) -> Result<Option<Tag>> {
        let Some(index) = self.known.iter().position(|known| &*known.name == name) else {
            return Ok(None);
        };
        match self.known[index].policy {
            known if known == wanted => Ok(Some(self.tag(index))),
            known => Err(Error::OtherPolicy { name: name.to_owned(), known, wanted }),
        }
    }

    pub(crate) fn add(&mut self, name: &str, policy: SleepPolicy) -> Result<Tag> {
        if self.known.len() >= TAGS_MOST {
            return Err(Error::TooManyTags { most: TAGS_MOST });
        }
        self.known.push(Known {
            name: name.into(),
            policy,
            phase: Phase::Awake,
            jobs: 0,
            live: Bytes::ZERO,
            peak: Bytes::ZERO,
            blocks: 0,
            backup: Bytes::ZERO,
        });
        Ok(self.tag(self.known.len() - 1))
    }

    pub(crate) fn get(&self, tag: Tag) -> Result<&Known> {
        let known = self.known.get(usize::from(tag.number));
        let own = known.filter(|_| tag.pool == 0 || tag.pool == self.pool);
        own.ok_or(Error::UnknownTag { tag })
    }

    /// The tags of a scope, each once.
    pub(crate) fn of(&self, scope: Scope<'_>) -> Result<Vec<Tag>> {
        match scope {
            Scope::Whole => Ok((0..self.known.len()).map(Tag::of_number).collect()),
            Scope::Tags(tags) => {
                let mut tags = tags.to_vec();
                tags.sort_unstable();
                tags.dedup();
                tags.iter().try_for_each(|tag| self.get(*tag).map(drop))?;
                Ok(tags)
            }
        }
    }
}

impl std::ops::Index<Tag> for Tags {
    type Output = Known;

    fn index(&self, tag: Tag) -> &Known {
        &self.known[usize::from(tag.number)]
    }
}

impl std::ops::IndexMut<Tag> for Tags {
    fn index_mut(&mut self, tag: Tag) -> &mut Known {
        &mut self.known[usize::from(tag.number)]
    }
}
