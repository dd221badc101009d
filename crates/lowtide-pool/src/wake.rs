//! Wake: memory comes back under the addresses that stayed, with its content, checked.
//!
//! The room is checked first. Then memory is made, mapped and opened chunk by chunk, and the pieces
//! of each are carried in at once, so that the link is never idle; behind them the digest of every
//! page is taken and held against the backup's. Until the last one is right the tags are not awake,
//! and whatever fails before that takes away what was mapped and leaves everything asleep.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use lowtide_device::digest::Keys;
use lowtide_device::{Bytes, Stream, processes};
use lowtide_types::{Phase, SleepPolicy, WakeReport};

use crate::backup::{BackupLocation, Backups, PAGE};
use crate::carry::Carriers;
use crate::limit::{Limit, Progress};
use crate::memory::Memory;
use crate::pool::Pool;
use crate::pressure::{Pressure, PressureAnswer, ROUNDS_MOST};
use crate::restoring::Restoring;
use crate::state::State;
use crate::tag::Scope;
use crate::turn::Turn;
use crate::turn_step::TurnStep;
use crate::wake_part::WakePart;
use crate::{Error, Result};

impl Pool {
    /// Wakes tags: the same bytes return to the same addresses, and every page is checked against its
    /// digest. Tags that are awake stay so. The memory of `Discard` tags comes back with undefined
    /// content.
    ///
    /// # Errors
    /// Whatever was refused, everything is asleep as before and nothing is lost: try again.
    /// [`Error::NoRoom`] names the processes that use the memory, [`Error::Corrupt`] the page that
    /// does not match its digest.
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
        let mut round = 0;
        loop {
            let Some(mut turn) = self.begin_turn(scope, Phase::Asleep, limit)? else {
                return Ok(WakeReport::default());
            };
            let tags: Vec<usize> = (0..turn.tags.len()).collect();
            let outcome = self.wake_tags(&mut turn, &tags, limit);
            // Who is asked for room may put other tags to sleep, which waits for this turn's end.
            drop(turn);
            match outcome {
                Err(Error::NoRoom { needed, free, .. }) if self.frees_some(needed, free, round) => {
                    limit.ask(TurnStep::Waiting, Progress::default)?;
                    round += 1;
                }
                Err(error) => return Err(error),
                Ok(report) => {
                    tracing::info!(?report, "awake");
                    return Ok(report);
                }
            }
        }
    }

    fn frees_some(&self, requested: Bytes, free: Bytes, round: u32) -> bool {
        let pressure = Pressure { requested, free, round };
        round < ROUNDS_MOST && self.shared.callbacks.ask(&pressure) == PressureAnswer::Retry
    }

    /// Brings back what has left and was not to be lost, after a sleep that failed.
    pub(crate) fn bring_back(&self, turn: &mut Turn<'_>) -> Result<()> {
        let gone = |index: &usize| {
            let turning = &turn.tags[*index];
            turning.becomes == Phase::Asleep && turning.policy == SleepPolicy::Offload
        };
        let tags: Vec<usize> = (0..turn.tags.len()).filter(gone).collect();
        self.wake_tags(turn, &tags, Limit::NONE).map(drop)
    }

    fn wake_tags(
        &self,
        turn: &mut Turn<'_>,
        tags: &[usize],
        limit: Limit<'_>,
    ) -> Result<WakeReport> {
        let _change = self.shared.monitor.change("a wake");
        let parts = self.state()?.plan_wake(turn, tags, self.shared.policy.wake_chunk_most.0);
        let outcome = self.apply_wake(turn, &parts, limit);
        if outcome.is_err() {
            // They may still be copying; what is not let go of now stays and is tried again.
            if let Some(error) = turn.carriers.as_ref().and_then(|carriers| carriers.settle().err())
            {
                tracing::error!(%error, "copies of a failed wake may still run");
            }
            parts.iter().for_each(WakePart::take_away);
        }
        self.state()?.commit_wake(turn, &parts, outcome.is_ok());
        if outcome.is_ok() && !self.shared.policy.keep_backups {
            for part in &parts {
                turn.backups.forget(part.room);
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
        let carriers = Carriers::ready(&mut turn.carriers, &self.shared.device)?;
        let restoring = Restoring::plan(&restored, &mut turn.backups);
        let wrong = restoring.carry(carriers, limit, make, make_empty)?;
        for (part, page) in &wrong {
            self.copy_again(&carriers.checks, part, *page, &mut turn.backups)?;
        }
        Ok(WakeReport { copied: restoring.copied(), copied_again: wrong.len(), ..report })
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

    // A page that was not right after its copy gets a second one, alone.
    fn copy_again(
        &self,
        stream: &Stream,
        part: &WakePart,
        page: u64,
        backups: &mut Backups,
    ) -> Result<()> {
        let (saved, size) = (backups.pages(part.room)[&page], Bytes(PAGE));
        let to = (&part.reservation, Bytes(page));
        match saved.location {
            BackupLocation::Zero => stream.fill(to, 0, size)?,
            BackupLocation::Page(from) => {
                let (memory, at) = match backups.memory(from.slab) {
                    Memory::Direct(memory) => (Arc::clone(memory), from.offset()),
                    Memory::Plain(pages) => {
                        let memory = self.shared.device.host_memory_here(size)?;
                        let fill = |bytes: &[u8]| memory.write(Bytes::ZERO, bytes);
                        pages.read(from.offset(), size, fill)??;
                        (memory, Bytes::ZERO)
                    }
                };
                stream.copy_in((&memory, at), to, size)?;
            }
        }
        let digests = stream.digest(to, size, Keys::of_this_process())?.wait()?;
        if digests[0] == saved.digest {
            tracing::warn!(page, "a page was right only after a second copy");
            return Ok(());
        }
        let state = self.state()?;
        let base = part.reservation.address();
        let block = state.rooms[part.room].arena.live_block_in(&(page..page + PAGE));
        Err(Error::Corrupt {
            tag: state.tags[part.room.tag()].name.to_string(),
            block: base.plus(Bytes(block.unwrap_or(page))),
            page: base.plus(Bytes(page)),
        })
    }
}

impl State {
    fn plan_wake(&self, turn: &Turn<'_>, tags: &[usize], chunk_most: u64) -> Vec<WakePart> {
        let mut parts = Vec::new();
        for turning in tags.iter().copied() {
            let tag = &turn.tags[turning];
            let restores = tag.policy == SleepPolicy::Offload;
            for room in tag.rooms() {
                let arena = &self.rooms[room].arena;
                parts.push(WakePart::plan(turning, room, restores, arena, chunk_most));
            }
        }
        parts
    }

    fn commit_wake(&mut self, turn: &mut Turn<'_>, parts: &[WakePart], woke: bool) {
        for part in parts {
            let arena = &mut self.rooms[part.room].arena;
            if woke {
                let mut chunks = part.chunks.clone();
                chunks.extend(part.kept.iter().cloned());
                arena.wake_up(&chunks);
                turn.tags[part.turning].becomes = Phase::Awake;
            } else {
                let stale = part.mapped_here();
                let mut mapped = stale.clone();
                mapped.extend(part.kept.iter().cloned());
                arena.fall_asleep(&mapped, &stale);
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use lowtide_device::{Address, Device, HostOptions};

    use super::*;
    use crate::room::RoomId;
    use crate::{Policy, StreamId, Tag};

    const STREAM: StreamId = StreamId(0);
    /// The registered part of the backups: nothing, the first page, all of it.
    const DIRECT: [Bytes; 3] = [Bytes::ZERO, Bytes(PAGE), Bytes(u64::MAX)];

    fn pool(policy: Policy) -> Pool {
        let options = HostOptions { budget: Some(Bytes::mib(32)), small_pages: true };
        Pool::builder(&Device::host(options).unwrap()).policy(policy).build().unwrap()
    }

    // The room of a tag's large blocks.
    fn large(tag: Tag) -> RoomId {
        RoomId::new(tag, false)
    }

    // Blocks of this size lie at odd MiB, so that two of them share a page.
    fn block(pool: &Pool, tag: Tag, byte: u8) -> Address {
        let size = Bytes::mib(5);
        let address = pool.alloc(size, STREAM, tag).unwrap();
        let (reservation, offset) = pool.place_of(address).unwrap();
        let stream = pool.device().stream().unwrap();
        stream.fill((&reservation, offset), byte, size).unwrap();
        stream.synchronize().unwrap();
        address
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
    fn flip(pool: &Pool, room: RoomId, page: u64, at: Bytes) {
        let mut state = pool.state().unwrap();
        let BackupLocation::Page(from) = state.backups.pages(room)[&page].location else {
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
            let (room, base) = (large(weights), blocks[0]);
            pool.sleep(Scope::Whole).unwrap();
            let asleep = pool.counts();
            // The second block begins at 5 MiB: its first page is the first block's last.
            for (page, at, named) in [
                (Bytes::ZERO, Bytes::ZERO, blocks[0]),
                (Bytes::mib(6), Bytes(777), blocks[1]),
                (Bytes::mib(4), Bytes(PAGE - 1), blocks[0]),
            ] {
                flip(&pool, room, page.0, at);
                for _ in 0..2 {
                    let refused = pool.wake(Scope::Whole).unwrap_err();
                    let Error::Corrupt { tag, block, page: wrong } = refused else {
                        panic!("{refused}")
                    };
                    let found = (tag.as_str(), block, wrong);
                    assert_eq!(found, ("weights", named, base.plus(page)));
                    assert_eq!(pool.phase(weights).unwrap(), Phase::Asleep);
                    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep);
                    assert_eq!(pool.counts(), asleep, "its backup is kept");
                    assert_eq!(pool.device().usage().unwrap().in_use(), Bytes::ZERO);
                    pool.check();
                }
                flip(&pool, room, page.0, at);
            }
            // A tag beside it is not held up.
            flip(&pool, room, 0, Bytes(5));
            pool.wake(Scope::Tags(&[Tag::default()])).unwrap();
            assert_is_full_of(3, &pool, other);
            assert!(matches!(pool.wake(Scope::Whole), Err(Error::Corrupt { .. })));
            flip(&pool, room, 0, Bytes(5));
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
            let room = large(Tag::default());
            let (stale, kept, chunks) = (Vec::new(), Vec::new(), Vec::new());
            let part =
                WakePart { turning: 0, room, restores: true, reservation, stale, kept, chunks };
            for page in [0, PAGE] {
                pool.copy_again(&stream, &part, page, &mut backups).unwrap();
            }
            pool.state().unwrap().backups = backups;
            assert_is_full_of(7, &pool, address);
            pool.check();
        }
    }
}
