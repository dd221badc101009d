//! The tags of a pool: what is known of each, and the rules of turns and jobs.
//!
//! A *turn* is the time in which some tags fall asleep or wake; there is one at a time. A *job* is
//! work of a thread at the driver, without the lock, on a tag's memory. A turn waits for the jobs on
//! its tags, and no job begins on a tag that turns. A *step* makes backups ahead of time, of tags that
//! stay awake; it excludes turns, because both have the pool's backups.
#![allow(unreachable_pub, reason = "public for the models, which compile this file, too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lowtide_types::{Bytes, Phase, SleepPolicy};

use crate::{Error, Result};

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

/// A program has a few; each costs address space.
const TAGS_MOST: usize = 1024;

/// The entry of one tag.
pub struct TagEntry {
    pub(crate) name: Arc<str>,
    pub(crate) policy: SleepPolicy,
    phase: Phase,
    /// Jobs under way on its memory.
    jobs: usize,
    pub(crate) live: Bytes,
    pub(crate) peak: Bytes,
    pub(crate) blocks: u64,
    /// Host memory with its backup.
    pub(crate) backup: Bytes,
}

impl TagEntry {
    /// Returns whether its memory is on the device.
    pub fn phase(&self) -> Phase {
        self.phase
    }
}

/// The tags of a pool.
pub struct Tags {
    pub(crate) known: Vec<TagEntry>,
    /// The pool's number, for its tags. No other pool of this process has or had it.
    pool: u64,
    /// Set while a turn is under way.
    turn: bool,
    /// Set while a step is under way.
    step: bool,
    /// The number of threads that wait to begin a turn.
    waiting: usize,
}

/// A tag in its turn.
#[derive(Debug, Clone, Copy)]
pub struct Turning {
    /// The tag that turns.
    pub tag: Tag,
    pub(crate) policy: SleepPolicy,
    /// Its phase when the turn ends.
    pub becomes: Phase,
}

impl Tags {
    /// Makes a table without tags.
    pub fn new() -> Tags {
        static POOLS: AtomicU64 = AtomicU64::new(1);
        let pool = POOLS.fetch_add(1, Relaxed);
        Tags { known: Vec::new(), pool, turn: false, step: false, waiting: 0 }
    }

    // The first tag is every pool's.
    fn tag(&self, index: usize) -> Tag {
        Tag::of_pool(index, if index == 0 { 0 } else { self.pool })
    }

    /// Returns the tag of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Tag> {
        let index = self.known.iter().position(|known| &*known.name == name);
        index.map(|index| self.tag(index))
    }

    /// Returns the tag of this name, if there is one; refuses where it has another policy.
    pub fn known_as(&self, name: &str, wanted: SleepPolicy) -> Result<Option<Tag>> {
        let Some(tag) = self.find(name) else {
            return Ok(None);
        };
        match self[tag].policy {
            known if known == wanted => Ok(Some(tag)),
            known => Err(Error::OtherPolicy { name: name.to_owned(), known, wanted }),
        }
    }

    /// Adds a tag, which is awake.
    pub fn add(&mut self, name: &str, policy: SleepPolicy) -> Result<Tag> {
        if self.known.len() >= TAGS_MOST {
            return Err(Error::TooManyTags { most: TAGS_MOST });
        }
        self.known.push(TagEntry {
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

    /// Returns whether no turn and no driver call is under way on a tag's memory.
    pub(crate) fn is_quiet(&self, tag: Tag) -> bool {
        self[tag].phase != Phase::Turning && self[tag].jobs == 0
    }

    /// Returns what is known of a tag; refuses a tag of another pool.
    pub fn get(&self, tag: Tag) -> Result<&TagEntry> {
        let known = self.known.get(usize::from(tag.number()));
        let own = known.filter(|_| tag.pool() == 0 || tag.pool() == self.pool);
        own.ok_or(Error::UnknownTag { tag })
    }

    /// Returns the tags of a scope, each once.
    pub fn of(&self, scope: Scope<'_>) -> Result<Vec<Tag>> {
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

    /// Returns the live bytes of tags that are asleep.
    pub fn asleep(&self) -> Bytes {
        let asleep = self.known.iter().filter(|known| known.phase == Phase::Asleep);
        asleep.map(|known| known.live).sum()
    }

    /// Returns whether a turn is under way.
    pub fn has_turn(&self) -> bool {
        self.turn
    }

    /// Returns whether a turn or a step has the pool's backups.
    pub fn has_lent_backups(&self) -> bool {
        self.turn || self.step
    }

    /// Begins a step. Returns whether it began: turns come first, also those that are waited for.
    pub fn begin_step(&mut self) -> bool {
        let begins = !self.has_lent_backups() && self.waiting == 0;
        self.step |= begins;
        begins
    }

    /// Ends a step. The caller notifies the threads that wait for it.
    pub fn end_step(&mut self) {
        debug_assert!(self.step, "a step ends once");
        self.step = false;
    }

    /// Counts a thread that waits to begin a turn.
    pub fn begin_waiting(&mut self) {
        self.waiting += 1;
    }

    /// Ends the wait of a thread, whether or not its turn begins.
    pub fn end_waiting(&mut self) {
        self.waiting = self.waiting.checked_sub(1).expect("a wait ends once");
    }

    /// Begins a turn for the tags of a scope that are in this phase; empty where there are none.
    pub fn begin_turn(&mut self, scope: Scope<'_>, from: Phase) -> Result<Vec<Turning>> {
        debug_assert!(!self.has_lent_backups(), "one turn at a time, and no step");
        let turns = self.of(scope)?.into_iter().filter_map(|tag| {
            let TagEntry { phase, policy, .. } = self[tag];
            let turns = phase == from && policy != SleepPolicy::Keep;
            turns.then_some(Turning { tag, policy, becomes: from })
        });
        let turns: Vec<Turning> = turns.collect();
        self.turn = !turns.is_empty();
        for turning in &turns {
            self[turning.tag].phase = Phase::Turning;
        }
        Ok(turns)
    }

    /// Ends a turn: its tags are what they were to become.
    pub fn end_turn(&mut self, turns: &[Turning]) {
        for turning in turns {
            self[turning.tag].phase = turning.becomes;
        }
        self.turn = false;
    }

    /// Returns whether jobs are under way on the memory of these tags.
    pub fn have_jobs(&self, turns: &[Turning]) -> bool {
        turns.iter().any(|turning| self[turning.tag].jobs > 0)
    }

    /// Counts all jobs under way.
    pub fn jobs(&self) -> usize {
        self.known.iter().map(|known| known.jobs).sum()
    }

    /// Begins a job on the memory of a tag, which is awake.
    pub fn begin_job(&mut self, tag: Tag) {
        debug_assert_eq!(self[tag].phase, Phase::Awake, "no job begins on a tag that turns");
        self[tag].jobs += 1;
    }

    /// Ends a job. The caller notifies the threads that wait for it.
    pub fn end_job(&mut self, tag: Tag) {
        let jobs = &mut self[tag].jobs;
        *jobs = jobs.checked_sub(1).expect("a job ends once");
    }
}

impl std::ops::Index<Tag> for Tags {
    type Output = TagEntry;

    fn index(&self, tag: Tag) -> &TagEntry {
        &self.known[usize::from(tag.number())]
    }
}

impl std::ops::IndexMut<Tag> for Tags {
    fn index_mut(&mut self, tag: Tag) -> &mut TagEntry {
        &mut self.known[usize::from(tag.number())]
    }
}

impl AsMut<Tags> for Tags {
    fn as_mut(&mut self) -> &mut Tags {
        self
    }
}
