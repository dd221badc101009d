//! Wake: memory comes back under the addresses that stayed, with its content, checked.
//!
//! The arena is checked first. Then memory is made, mapped and opened chunk by chunk, and the pieces
//! of each are carried in at once, so that the link is never idle; behind them the digest of every
//! page is taken and held against the backup's. Until the last one is right the tags are not awake,
//! and whatever fails before that takes away what was mapped and leaves everything asleep.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use lowtide_device::digest::Keys;
use lowtide_device::{Address, Bytes, Stream, processes};
use lowtide_types::{LostBlock, Phase, SleepPolicy, WakeReport};

use crate::backups::slab::Memory;
use crate::backups::slab::{Form, PAGE};
use crate::backups::{BackupLocation, Backups};
use crate::copy::carriers::Carriers;
use crate::copy::ring::Ring;
use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::Policy;
use crate::pool::Pool;
use crate::pool::pressure::{Pressure, PressureAnswer, ROUNDS_MOST};
use crate::state::State;
use crate::state::arenas::ArenaId;
use crate::state::tag::Scope;
use crate::turns::Turn;
use crate::turns::parts::WakePart;
use crate::turns::restoring::Restoring;
use crate::{Error, Result};

impl Pool {
    /// Wakes tags: the same bytes return to the same addresses, and every page is checked against its
    /// digest. Tags that are awake stay so. The memory of `Discard` tags comes back with undefined
    /// content.
    ///
    /// # Errors
    /// Whatever was refused, everything is asleep as before and nothing is lost: try again.
    /// [`Error::NoRoom`] names the processes that use the memory, [`Error::Corrupt`] the pages that
    /// do not match their digests: [`Pool::wake_losing`] wakes the rest.
    pub fn wake(&self, scope: Scope<'_>) -> Result<WakeReport> {
        self.wake_within(scope, Limit::NONE)
    }

    /// Wakes tags like [`Pool::wake`], for as long as the limit says to go on. It is asked between
    /// pieces of work and while another sleep or wake is waited for.
    ///
    /// # Errors
    /// As [`Pool::wake`]; [`Error::Stopped`] where the limit said to stop. Everything is asleep then,
    /// and nothing is lost.
    pub fn wake_within(&self, scope: Scope<'_>, limit: Limit<'_>) -> Result<WakeReport> {
        self.wake_with(scope, limit, Loss::Refused)
    }

    pub(crate) fn wake_with(
        &self,
        scope: Scope<'_>,
        limit: Limit<'_>,
        loss: Loss,
    ) -> Result<WakeReport> {
        let (mut round, limit) = (0, limit.asked_by(&self.shared.monitor));
        loop {
            let Some(mut turn) = self.begin_turn(scope, Phase::Asleep, limit)? else {
                return Ok(WakeReport::default());
            };
            let tags: Vec<usize> = (0..turn.tags.len()).collect();
            let outcome = self.wake_tags(&mut turn, &tags, limit, loss);
            // Who is asked for room may put other tags to sleep, which waits for this turn's end.
            drop(turn);
            match outcome {
                Err(Error::NoRoom { needed, free, .. }) if self.frees_some(needed, free, round) => {
                    limit.ask(TurnStep::Waiting, Progress::default)?;
                    round += 1;
                }
                Err(error) => return Err(error),
                Ok(report) => {
                    if round > 0 {
                        self.shared.callbacks.have_helped();
                    }
                    tracing::info!(?report, "awake");
                    return Ok(report);
                }
            }
        }
    }

    fn frees_some(&self, requested: Bytes, free: Bytes, round: u32) -> bool {
        let pressure = Pressure { requested, free, round };
        round < ROUNDS_MOST && self.ask_for_memory(&pressure) == PressureAnswer::Retry
    }

    /// Brings back what has left and was not to be lost, after a sleep that failed.
    pub(crate) fn bring_back(&self, turn: &mut Turn<'_>) -> Result<()> {
        let gone = |index: &usize| {
            let turning = &turn.tags[*index];
            turning.becomes == Phase::Asleep && turning.policy == SleepPolicy::Offload
        };
        let tags: Vec<usize> = (0..turn.tags.len()).filter(gone).collect();
        self.wake_tags(turn, &tags, Limit::NONE, Loss::Refused).map(drop)
    }

    fn wake_tags(
        &self,
        turn: &mut Turn<'_>,
        tags: &[usize],
        limit: Limit<'_>,
        loss: Loss,
    ) -> Result<WakeReport> {
        let _change = self.shared.monitor.change("a wake");
        let parts = self.state()?.plan_wake(turn, tags, &self.shared.policy);
        let outcome = self.apply_wake(turn, &parts, limit, loss);
        if outcome.is_err() {
            // They may still be copying; what is not let go of now stays and is tried again.
            if let Some(error) = turn.carriers.as_ref().and_then(|carriers| carriers.settle().err())
            {
                tracing::error!(%error, "copies of a failed wake may still run");
            }
            parts.iter().for_each(WakePart::take_away);
        }
        let mut state = self.state()?;
        state.commit_wake(turn, &parts, outcome.is_ok());
        if let Ok(report) = &outcome {
            state.record_lost(&report.lost);
        }
        drop(state);
        if outcome.is_ok() && !self.shared.policy.keep_backups {
            for part in &parts {
                turn.backups.forget(part.arena_id);
            }
            turn.backups.shrink();
            // A stream that cannot say that it is done would keep what it uses for ever.
            if turn.carriers.as_ref().is_some_and(|carriers| carriers.settle().is_ok()) {
                turn.carriers = None;
            }
        }
        Ok(WakeReport { tags: tags.len(), ..outcome? })
    }

    fn apply_wake(
        &self,
        turn: &mut Turn<'_>,
        parts: &[WakePart],
        limit: Limit<'_>,
        loss: Loss,
    ) -> Result<WakeReport> {
        for part in parts {
            part.clear_the_way()?;
        }
        let needed = parts.iter().map(WakePart::size).sum();
        self.make_room(needed)?;
        let made = Cell::new(Bytes::ZERO);
        let make = |part: &WakePart, chunk: &Range<u64>| {
            let progress = || Progress { done: made.get(), total: needed };
            limit.ask(TurnStep::Mapping, progress)?;
            self.make(part, chunk).map_err(|error| self.with_holders(error, needed))?;
            made.set(made.get() + Bytes(chunk.end - chunk.start));
            Ok(())
        };
        let report = WakeReport { mapped: needed, ..WakeReport::default() };
        let (restored, empty): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.restores);
        let make_empty = || -> Result<()> {
            let all =
                empty.iter().flat_map(|part| part.chunks.iter().map(move |chunk| (part, chunk)));
            all.into_iter().try_for_each(|(part, chunk)| make(part, chunk))
        };
        if restored.iter().all(|part| part.chunks.is_empty()) {
            make_empty()?;
            return Ok(report);
        }
        let carriers =
            Carriers::ready(&mut turn.carriers, &self.shared.device, &self.shared.policy)?;
        let restoring = Restoring::plan(&restored, &mut turn.backups);
        let ring = Ring::open(&self.shared.device, &self.shared.policy, needed, false);
        let wrong = restoring.carry(carriers, ring.as_ref(), limit, make, make_empty)?;
        drop(ring);
        let mut bad = Vec::new();
        for (part, page) in &wrong {
            if !self.copy_again(&carriers.checks, part, *page, &mut turn.backups)? {
                bad.push((*part, *page));
            }
        }
        let (copied, copied_again) = (restoring.copied(), wrong.len() - bad.len());
        let lost = self.lose(&bad, &mut turn.backups, loss)?;
        Ok(WakeReport { copied, copied_again, lost, ..report })
    }

    fn make(&self, part: &WakePart, chunk: &Range<u64>) -> lowtide_device::Result<()> {
        let (at, size) = (Bytes(chunk.start), Bytes(chunk.end - chunk.start));
        part.reservation.map(at, self.shared.device.create(size)?)?;
        part.reservation.open(at, size)
    }

    // What is cached elsewhere makes room.
    fn make_room(&self, needed: Bytes) -> Result<()> {
        let device = &self.shared.device;
        if device.usage()?.free >= needed {
            return Ok(());
        }
        self.trim(Bytes::ZERO)?;
        let free = device.usage()?.free;
        if free >= needed { Ok(()) } else { Err(self.no_room(needed, free)) }
    }

    fn no_room(&self, needed: Bytes, free: Bytes) -> Error {
        let device = &self.shared.device;
        let holders = match processes::of(device) {
            Ok(holders) => holders.to_string(),
            Err(error) => format!("somebody ({error})"),
        };
        Error::NoRoom { device: device.info().id, needed, free, holders }
    }

    fn with_holders(&self, error: lowtide_device::Error, needed: Bytes) -> Error {
        match error {
            lowtide_device::Error::OutOfMemory { free, .. } => self.no_room(needed, free),
            other => other.into(),
        }
    }

    // A page that was not right after its copy gets a second one, alone. Returns whether it is right then.
    fn copy_again(
        &self,
        stream: &Stream,
        part: &WakePart,
        page: u64,
        backups: &mut Backups,
    ) -> Result<bool> {
        let (saved, size) = (backups.pages(part.arena_id)[&page], Bytes(PAGE));
        let to = (&part.reservation, Bytes(page));
        match saved.location {
            BackupLocation::Zero => stream.fill(to, 0, size)?,
            BackupLocation::Page(from) => {
                let (memory, at) = match backups.memory(from.slab) {
                    Memory::Direct(memory) => (Arc::clone(memory), from.offset()),
                    Memory::Plain(pages) => {
                        let stored = Bytes(from.form.bytes());
                        let memory = self.shared.device.host_memory_here(stored)?;
                        let fill = |bytes: &[u8]| memory.write(Bytes::ZERO, bytes);
                        pages.read(from.offset(), stored, fill)??;
                        (memory, Bytes::ZERO)
                    }
                };
                match from.form {
                    Form::Raw => stream.copy_in((&memory, at), to, size)?,
                    Form::Packed => stream.unpack((&memory, at), to, 1)?,
                }
            }
        }
        let digests = stream.digest(to, size, Keys::of_this_process())?.wait()?;
        let is_right = digests[0] == saved.digest;
        if is_right {
            tracing::warn!(page, "a page was right only after a second copy");
        } else if let BackupLocation::Page(from) = saved.location {
            // Tells whether the host or the device is to blame.
            if let Some(fault) = backups.fault_of(from)? {
                tracing::error!(page, %fault, "a packed backup page has changed");
            }
        }
        Ok(is_right)
    }
}

impl State {
    pub(crate) fn plan_wake(
        &self,
        turn: &Turn<'_>,
        tags: &[usize],
        policy: &Policy,
    ) -> Vec<WakePart> {
        let mut parts = Vec::new();
        for turning in tags.iter().copied() {
            let tag = &turn.tags[turning];
            let restores = tag.policy == SleepPolicy::Offload;
            for arena_id in tag.arenas() {
                let arena = &self.arenas[arena_id];
                parts.push(WakePart::plan(turning, arena_id, restores, arena, policy));
            }
        }
        parts
    }

    fn commit_wake(&mut self, turn: &mut Turn<'_>, parts: &[WakePart], woke: bool) {
        for part in parts {
            if !woke {
                self.stay_asleep(part);
                continue;
            }
            let mut chunks = part.chunks.clone();
            chunks.extend(part.kept.iter().cloned());
            self.arenas[part.arena_id].wake_up(&chunks);
            turn.tags[part.turning].becomes = Phase::Awake;
        }
    }

    /// Records what a sleeping arena still has on the device, which is what the device layer says.
    pub(crate) fn stay_asleep(&mut self, part: &WakePart) {
        let mappings = part.reservation.mappings().into_iter();
        let mapped: Vec<_> = mappings.map(|mapping| mapping.range).collect();
        self.arenas[part.arena_id].fall_asleep(&mapped, &part.mapped_here());
    }
}

/// Whether a wake may lose blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Refused,
    Accepted,
}

impl Pool {
    /// Wakes tags like [`Pool::wake_within`], also where backup pages are bad. Blocks with bytes on such
    /// a page are lost: [`WakeReport::lost`] names each of them, their addresses stay valid, and their
    /// content is undefined. Every byte of all other blocks is right.
    ///
    /// A lost [`Block`](crate::Block) cannot be read until it was filled or written whole. The pool
    /// does not see what is written by address: such a block stays lost until it is freed.
    ///
    /// # Errors
    /// As [`Pool::wake_within`], apart from [`Error::Corrupt`].
    ///
    /// ```
    /// # use lowtide_device::{Bytes, Device, HostOptions};
    /// # use lowtide_pool::{Error, Limit, Pool, Scope};
    /// # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
    /// # let pool = Pool::new(&device)?;
    /// # let block = pool.block(Bytes::mib(5))?;
    /// # pool.sleep(Scope::Whole)?;
    /// match pool.wake(Scope::Whole) {
    ///     Err(error @ Error::Corrupt { .. }) => {
    ///         eprintln!("{error}");
    ///         for block in pool.wake_losing(Scope::Whole, Limit::NONE)?.lost {
    ///             eprintln!("load again: {:#x} of {}, {}", block.address, block.tag, block.size);
    ///         }
    ///     }
    ///     other => drop(other?),
    /// }
    /// # Ok::<(), lowtide_pool::Error>(())
    /// ```
    pub fn wake_losing(&self, scope: Scope<'_>, limit: Limit<'_>) -> Result<WakeReport> {
        self.wake_with(scope, limit, Loss::Accepted)
    }

    /// Returns the blocks on bad pages and forgets the backups of these pages, or refuses.
    pub(crate) fn lose(
        &self,
        bad: &[(&WakePart, u64)],
        backups: &mut Backups,
        loss: Loss,
    ) -> Result<Vec<LostBlock>> {
        if bad.is_empty() {
            return Ok(Vec::new());
        }
        let state = self.state()?;
        if loss == Loss::Refused {
            return Err(state.corrupt(bad));
        }
        let lost = state.blocks_on(bad);
        drop(state);
        // Otherwise a sleep that finds the content of then on the page would keep the bad backup.
        for (part, page) in bad {
            if let Some(saved) = backups.pages(part.arena_id).remove(page) {
                backups.give(saved.location);
            }
        }
        tracing::error!(
            pages = bad.len(),
            blocks = lost.len(),
            "backups were bad; blocks are lost"
        );
        Ok(lost)
    }
}

impl State {
    /// Records lost blocks, when their tags are awake. What was freed meanwhile is nobody's.
    pub(crate) fn record_lost(&mut self, blocks: &[LostBlock]) {
        for LostBlock { address, .. } in blocks {
            if self.arena_at(Address(*address)).is_ok() {
                self.lost.insert(*address);
            }
        }
    }

    // The error that names these pages, of which there is one at least.
    fn corrupt(&self, bad: &[(&WakePart, u64)]) -> Error {
        let address = |(part, page): &(&WakePart, u64)| address_of(part, *page);
        let (part, page) = bad[0];
        let block = self.arenas[part.arena_id].live_block_in(&(page..page + PAGE));
        Error::Corrupt {
            tag: self.name_of(part.arena_id),
            block: address_of(part, block.unwrap_or(page)),
            page: address(&bad[0]),
            others: bad[1..].iter().map(address).collect(),
        }
    }

    // The blocks of callers with bytes on these pages, each once, by address.
    fn blocks_on(&self, bad: &[(&WakePart, u64)]) -> Vec<LostBlock> {
        let mut lost = Vec::new();
        let mut live = self.live_ranges();
        live.sort_unstable_by_key(|block| block.start);
        for block in live {
            let is_on = |(part, page): &&(&WakePart, u64)| {
                let start = address_of(part, *page).0;
                block.start < start + PAGE && start < block.end
            };
            if let Some((part, _)) = bad.iter().find(is_on) {
                let (tag, size) = (self.name_of(part.arena_id), Bytes(block.end - block.start));
                lost.push(LostBlock { tag, address: block.start, size });
            }
        }
        lost
    }

    fn name_of(&self, arena_id: ArenaId) -> String {
        self.tags[arena_id.tag()].name.to_string()
    }
}

fn address_of(part: &WakePart, offset: u64) -> Address {
    part.reservation.address().plus(Bytes(offset))
}

#[cfg(test)]
mod tests;
