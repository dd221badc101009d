//! Wake: memory comes back under the addresses that stayed, with its content, checked.
//!
//! The arena is checked first. Then memory is made, mapped and opened chunk by chunk, and the pieces
//! of each are copied in at once, so that the link is never idle; behind them the digest of every
//! page is taken and held against the backup's. Until the last one is right the tags are not awake,
//! and whatever fails before that takes away what was mapped and leaves everything asleep.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use lowtide_device::digest::Keys;
use lowtide_device::{Address, Bytes, Stream, processes};
use lowtide_types::{LostBlock, Phase, SleepPolicy, WakeReport};

use crate::backups::slab::Memory;
use crate::backups::{BackupLocation, Backups};
use crate::copy::packing::PieceForm;
use crate::copy::streams::CopyStreams;
use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::{PAGE, Policy};
use crate::pool::Pool;
use crate::pool::pressure::{Pressure, PressureAnswer, ROUNDS_MOST};
use crate::state::State;
use crate::state::arenas::ArenaId;
use crate::state::tags::Scope;
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
                    tracing::info!(mapped = %report.mapped, copied = %report.copied, tags = report.tags, "awake");
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
            if let Some(error) =
                turn.copy_streams.as_ref().and_then(|streams| streams.settle().err())
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
            if turn.copy_streams.as_ref().is_some_and(|streams| streams.settle().is_ok()) {
                turn.copy_streams = None;
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
        let streams =
            CopyStreams::ready(&mut turn.copy_streams, &self.shared.device, &self.shared.policy)?;
        let restoring = Restoring::plan(&restored, &mut turn.backups);
        let ring = restoring.is_packed().then(|| streams.ring_of_wake(needed)).flatten();
        let wrong = restoring.copy(streams, ring.as_ref(), limit, make, make_empty)?;
        drop(ring);
        let mut bad = Vec::new();
        for (part, page) in &wrong {
            if !self.copy_again(&streams.checks, part, *page, &mut turn.backups)? {
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
                PieceForm::new(from.form, 1).copy_in(stream, (&memory, at), to, None, false)?;
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
mod tests {
    use lowtide_device::{Address, Device, HostOptions};

    use super::*;
    use crate::state::arenas::ArenaId;
    use crate::{Block, LostBlock, Policy, StreamId, Tag};

    const STREAM: StreamId = StreamId(0);
    /// The registered part of the backups: nothing, the first page, all of it.
    const DIRECT: [Bytes; 3] = [Bytes::ZERO, Bytes(PAGE), Bytes(u64::MAX)];

    fn pool(policy: Policy) -> Pool {
        let options = HostOptions { budget: Some(Bytes::mib(32)), small_pages: true };
        Pool::builder(&Device::host(options).unwrap()).policy(policy).build().unwrap()
    }

    // The arena of a tag's large blocks.
    fn large(tag: Tag) -> ArenaId {
        ArenaId::new(tag, false)
    }

    // Blocks of this size lie at odd MiB, so that two of them share a page.
    fn block(pool: &Pool, tag: Tag, byte: u8) -> Address {
        filled(pool, tag, byte).into_address()
    }

    fn assert_is_full_of(byte: u8, pool: &Pool, block: Address) {
        let size = Bytes::mib(5);
        let (reservation, offset) = pool.place_of(block).unwrap();
        let (stream, memory) =
            (pool.device().stream().unwrap(), pool.device().host_memory(size).unwrap());
        stream.copy_out((&reservation, offset), (&memory, Bytes::ZERO), size).unwrap();
        stream.synchronize().unwrap();
        let mut bytes = vec![0; size.as_usize()];
        memory.read(Bytes::ZERO, &mut bytes).unwrap();
        assert_eq!(bytes.iter().position(|found| *found != byte), None);
    }

    // Flips a bit of a saved page, or flips it back.
    fn flip(pool: &Pool, arena_id: ArenaId, page: u64, at: Bytes) {
        let mut state = pool.state().unwrap();
        let BackupLocation::Page(from) = state.backups.pages(arena_id)[&page].location else {
            panic!("nothing is stored of page {page}")
        };
        let (memory, at, mut byte) = (state.backups.memory(from.slab), from.offset() + at, [0]);
        memory.read(at, &mut byte).unwrap();
        memory.write(at, &[byte[0] ^ 0x20]).unwrap();
    }

    #[test]
    fn a_backup_with_one_wrong_bit_is_caught_and_named() {
        let kept = DIRECT.map(|direct_backups| (direct_backups, true));
        for (direct_backups, keep_backups) in kept.into_iter().chain([(DIRECT[1], false)]) {
            let pool = pool(Policy { keep_backups, direct_backups, ..Policy::default() });
            let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
            let blocks = [1, 2].map(|byte| block(&pool, weights, byte));
            let other = block(&pool, Tag::default(), 3);
            let (arena_id, base) = (large(weights), blocks[0]);
            pool.sleep(Scope::Whole).unwrap();
            let asleep = pool.counts();
            // The second block begins at 5 MiB: its first page is the first block's last.
            for (page, at, named) in [
                (Bytes::ZERO, Bytes::ZERO, blocks[0]),
                (Bytes::mib(6), Bytes(777), blocks[1]),
                (Bytes::mib(4), Bytes(PAGE - 1), blocks[0]),
            ] {
                flip(&pool, arena_id, page.0, at);
                for _ in 0..2 {
                    let refused = pool.wake(Scope::Whole).unwrap_err();
                    let Error::Corrupt { tag, block, page: wrong, others } = refused else {
                        panic!("{refused}")
                    };
                    let found = (tag.as_str(), block, wrong);
                    assert_eq!(found, ("weights", named, base.plus(page)));
                    assert_eq!(others, []);
                    assert_eq!(pool.phase(weights).unwrap(), Phase::Asleep);
                    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep);
                    assert_eq!(pool.counts(), asleep, "its backup is kept");
                    assert_eq!(pool.device().usage().unwrap().in_use(), Bytes::ZERO);
                    pool.check();
                }
                flip(&pool, arena_id, page.0, at);
            }
            // A tag beside it is not held up.
            flip(&pool, arena_id, 0, Bytes(5));
            pool.wake(Scope::Tags(&[Tag::default()])).unwrap();
            assert_is_full_of(3, &pool, other);
            assert!(matches!(pool.wake(Scope::Whole), Err(Error::Corrupt { .. })));
            flip(&pool, arena_id, 0, Bytes(5));
            assert_eq!(pool.wake(Scope::Whole).unwrap().copied_again, 0);
            assert_is_full_of(1, &pool, blocks[0]);
            assert_is_full_of(2, &pool, blocks[1]);
            pool.check();
        }
    }

    #[test]
    fn what_is_wrong_but_freed_holds_nothing_up() {
        let pool = pool(Policy::default());
        let blocks = [1, 2].map(|byte| block(&pool, Tag::default(), byte));
        pool.sleep(Scope::Whole).unwrap();
        flip(&pool, large(Tag::default()), Bytes::mib(8).0, Bytes::ZERO);
        assert!(matches!(pool.wake(Scope::Whole), Err(Error::Corrupt { .. })));
        pool.free(blocks[1], STREAM).unwrap();
        pool.wake(Scope::Whole).unwrap();
        assert_is_full_of(1, &pool, blocks[0]);
        pool.check();
    }

    #[test]
    fn a_page_that_is_wrong_on_the_device_is_copied_once_more() {
        for direct_backups in DIRECT {
            let pool = pool(Policy { direct_backups, ..Policy::default() });
            let address = block(&pool, Tag::default(), 7);
            pool.sleep(Scope::Whole).unwrap();
            pool.wake(Scope::Whole).unwrap();
            let (reservation, _) = pool.place_of(address).unwrap();
            let stream = pool.device().stream().unwrap();
            for page in [0, PAGE] {
                stream.fill((&reservation, Bytes(page + 9)), 0, Bytes(1)).unwrap();
            }
            let mut backups = std::mem::take(&mut pool.state().unwrap().backups);
            let arena_id = large(Tag::default());
            let (stale, kept, chunks) = (Vec::new(), Vec::new(), Vec::new());
            let part =
                WakePart { turning: 0, arena_id, restores: true, reservation, stale, kept, chunks };
            for page in [0, PAGE] {
                assert!(pool.copy_again(&stream, &part, page, &mut backups).unwrap());
            }
            pool.state().unwrap().backups = backups;
            assert_is_full_of(7, &pool, address);
            pool.check();
        }
    }

    // What a lost block says until all of it was written.
    fn assert_is_lost(block: &Block) {
        let mut byte = [0];
        let refused = [block.read(Bytes(9), &mut byte), block.write(Bytes(1), &[1, 2, 3])];
        for refused in refused {
            let Err(Error::Lost { tag, block: named }) = refused else { panic!("{refused:?}") };
            assert_eq!((tag.as_str(), named), ("weights", block.address()));
        }
    }

    fn filled(pool: &Pool, tag: Tag, byte: u8) -> Block {
        let block = pool.block_tagged(Bytes::mib(5), tag).unwrap();
        block.fill(byte).unwrap();
        block
    }

    fn lost(block: &Block) -> LostBlock {
        LostBlock { tag: "weights".to_owned(), address: block.address().0, size: block.size() }
    }

    #[test]
    fn a_bad_backup_page_loses_the_blocks_on_it_and_no_others() {
        for direct_backups in DIRECT {
            for keep_backups in [true, false] {
                let pool = pool(Policy { keep_backups, direct_backups, ..Policy::default() });
                let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
                let [one, two, three] = [1, 2, 3].map(|byte| filled(&pool, weights, byte));
                let other = filled(&pool, Tag::default(), 4);
                pool.sleep(Scope::Whole).unwrap();
                // The first two share this page.
                flip(&pool, large(weights), Bytes::mib(4).0, Bytes(3));
                let refused = pool.wake(Scope::Whole).unwrap_err().to_string();
                assert!(refused.contains("`wake_losing`"), "{refused}");
                let woke = pool.wake_losing(Scope::Whole, Limit::NONE).unwrap();
                assert_eq!(woke.lost, [lost(&one), lost(&two)]);
                assert_eq!((woke.tags, woke.copied_again), (2, 0));
                pool.check();
                assert_is_full_of(3, &pool, three.address());
                assert_is_full_of(4, &pool, other.address());
                assert_is_lost(&one);
                assert_is_lost(&two);
                // What it had before: the backup must not pass for unchanged.
                one.fill(1).unwrap();
                two.write(Bytes::ZERO, &vec![2; 5 << 20]).unwrap();
                for _ in 0..2 {
                    assert_is_full_of(1, &pool, one.address());
                    assert_is_full_of(2, &pool, two.address());
                    assert_is_full_of(3, &pool, three.address());
                    two.read(Bytes::ZERO, &mut [0]).unwrap();
                    pool.sleep(Scope::Whole).unwrap();
                    assert_eq!(pool.wake(Scope::Whole).unwrap().lost, []);
                    pool.check();
                }
            }
        }
    }

    #[test]
    fn a_block_stays_lost_through_a_sleep_until_it_is_written_or_freed() {
        let pool = pool(Policy::default());
        let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let [one, two, three] = [1, 2, 3].map(|byte| filled(&pool, weights, byte));
        pool.sleep(Scope::Whole).unwrap();
        for page in [Bytes::ZERO, Bytes::mib(8), Bytes::mib(12)] {
            flip(&pool, large(weights), page.0, Bytes(PAGE - 1));
        }
        let Err(Error::Corrupt { page, others, .. }) = pool.wake(Scope::Whole) else { panic!() };
        assert_eq!(page, one.address());
        assert_eq!(others, [8, 12].map(|mib| one.address().plus(Bytes::mib(mib))));
        // Nobody misses what is freed.
        let address = three.address();
        drop(three);
        let woke = pool.wake_losing(Scope::Whole, Limit::NONE).unwrap();
        assert_eq!(woke.lost, [lost(&one), lost(&two)]);
        pool.sleep(Scope::Whole).unwrap();
        assert_eq!(pool.wake(Scope::Whole).unwrap().lost, []);
        assert_is_lost(&one);
        assert_is_lost(&two);
        let place = two.address();
        drop(two);
        pool.check();
        let again = [(); 2].map(|()| pool.block_tagged(Bytes::mib(5), weights).unwrap());
        assert!(again.iter().any(|block| [place, address].contains(&block.address())));
        for block in &again {
            block.read(Bytes::ZERO, &mut [0]).unwrap();
        }
        assert_is_lost(&one);
        one.fill(0).unwrap();
        one.read(Bytes::ZERO, &mut [0]).unwrap();
        pool.check();
    }

    #[test]
    fn a_backup_that_went_bad_is_found_while_the_device_still_has_the_bytes() {
        for direct_backups in DIRECT {
            for check_backups in [true, false] {
                let pool = pool(Policy { direct_backups, check_backups, ..Policy::default() });
                let address = block(&pool, Tag::default(), 7);
                pool.sleep(Scope::Whole).unwrap();
                pool.wake(Scope::Whole).unwrap();
                flip(&pool, large(Tag::default()), PAGE, Bytes(5));
                let slept = pool.sleep(Scope::Whole).unwrap();
                assert_eq!((slept.copied, slept.copied_again), (Bytes::ZERO, check_backups.into()));
                pool.check();
                let woke = pool.wake(Scope::Whole);
                if check_backups {
                    woke.unwrap();
                    assert_is_full_of(7, &pool, address);
                } else {
                    assert!(matches!(woke, Err(Error::Corrupt { .. })), "{woke:?}");
                }
            }
        }
    }
}
