//! What happens when no cached block fits: free chunks move under the new block, and the device is
//! asked for the rest.
//!
//! Plan under the lock (where the block goes, which chunks move), apply without it (the driver's
//! part), commit under it again. A plan that fails midway leaves only free memory behind, in
//! another place.

use std::ops::Range;

use lowtide_device::{Address, Bytes, Chunk, DeviceInfo, NotUnmapped, Reservation};

use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::{Policy, equal_part};
use crate::pool::Pool;
use crate::pool::moves::{FreeChunk, Move};
use crate::pool::pressure::{Pressure, PressureAnswer, ROUNDS_MOST};
use crate::state::arena::Run;
use crate::state::{BlockRequest, PoolCounts, Spare, State};
use crate::{Error, Result};

/// The number of times that an allocation waits for jobs of other threads, before it is refused.
const WAITS_MOST: u32 = 8;

/// The driver calls that a request needs.
struct Plan {
    reservation: Reservation,
    run: Run,
    new_chunks: NewChunks,
    moves: Vec<Move>,
}

/// The sizes of new chunks.
#[derive(Clone, Copy)]
struct NewChunks {
    small: u64,
    /// Up to so much where only this block is: until its last whole page. Zero: no chunk is large.
    large: u64,
    large_until: u64,
    page: u64,
}

/// The result of one try.
enum Tried {
    Done(Address),
    /// A sleep has begun.
    Turned,
    Full(lowtide_device::Error),
}

/// The driver calls that were made.
#[derive(Default)]
struct Applied {
    mapped: Vec<Range<u64>>,
    /// The number of moves that left their place.
    moved: usize,
    /// Where those of `mapped` start that are large.
    large: Vec<u64>,
    /// Those of `mapped` that can be neither opened nor unmapped for now.
    stuck: Vec<Range<u64>>,
    error: Option<lowtide_device::Error>,
}

impl Pool {
    /// Serves a request that no cached block fits; `None` where the tag's phase changed meanwhile.
    pub(crate) fn miss(&self, request: &BlockRequest, limit: Limit<'_>) -> Result<Option<Address>> {
        let mut round = 0;
        loop {
            let error = match self.try_miss(request, limit)? {
                Tried::Done(address) => {
                    if round > 0 {
                        self.shared.callbacks.have_helped();
                    }
                    return Ok(Some(address));
                }
                Tried::Turned => return Ok(None),
                Tried::Full(error) => error,
            };
            let free = self.shared.device.usage()?.free;
            let pressure = Pressure { requested: Bytes(request.size()), free, round };
            let asks = round < ROUNDS_MOST;
            if !asks || self.ask_for_memory(&pressure) == PressureAnswer::Nothing {
                let cached = self.snapshot().cached_bytes;
                return Err(Error::OutOfMemory {
                    requested: pressure.requested,
                    cached,
                    source: error,
                });
            }
            limit.ask(TurnStep::Waiting, Progress::default)?;
            round += 1;
        }
    }

    // First by the policy. Where the device has no room, streams are waited for and every free
    // chunk makes room; and where another thread is at work on chunks of its own, what it leaves is
    // waited for, too: it may have had all of them in its hands.
    fn try_miss(&self, request: &BlockRequest, limit: Limit<'_>) -> Result<Tried> {
        let (mut last, mut waits, mut hole) = (false, 0, None);
        loop {
            let wants = (!last).then_some(request.stream);
            self.settle_streams_for(wants, last, limit)?;
            if last && let Err(error) = self.give_stuck_back() {
                tracing::warn!(%error, "memory that nobody can use stays mapped");
            }
            if !last {
                self.ask_for_spare(request)?;
            }
            let _change = self.shared.monitor.change("an allocation");
            let mut state = self.state()?;
            if !state.is_awake(request.arena_id) {
                return Ok(Tried::Turned);
            }
            state.clear_shelves();
            // Where a large chunk made room for this block, it goes there and no other chunk is parted.
            let place = hole.take();
            if place.is_none() {
                if let Some(claimed) = state.claim_parted(request) {
                    drop(state);
                    hole = self.give_parted_back(request, &claimed)?;
                    continue;
                }
                if let Some(address) = state.take(request, true) {
                    return Ok(Tried::Done(address));
                }
            }
            let others = state.tags.jobs();
            let device = self.shared.device.info();
            let plan = state.plan(&self.shared.policy, device, request, (last, place))?;
            drop(state);
            let applied = self.apply(&plan);
            let mut state = self.state()?;
            let address = state.commit(&plan, &applied, request);
            self.shared.monitor.notify();
            let full = applied.error.as_ref().is_some_and(lowtide_device::Error::is_out_of_memory);
            let jobs = state.tags.jobs();
            if last && full && waits < WAITS_MOST && others + jobs > 0 {
                waits += 1;
                let has_ended =
                    |tags: &mut crate::state::tags::Tags| jobs == 0 || tags.jobs() != jobs;
                drop(self.shared.monitor.wait_until(state, limit, has_ended)?);
                continue;
            }
            drop(state);
            match (address, applied.error) {
                (Some(address), _) => return Ok(Tried::Done(address)),
                (None, Some(error)) if !error.is_out_of_memory() => return Err(error.into()),
                (None, Some(error)) if last => return Ok(Tried::Full(error)),
                (None, _) => last = true,
            }
        }
    }

    // Asks the device how much it has to spare, unless an answer is there or the request needs none.
    fn ask_for_spare(&self, request: &BlockRequest) -> Result<()> {
        let (policy, device) = (&self.shared.policy, &self.shared.device);
        let state = self.state()?;
        let is_due =
            state.spare.is_old() && state.unwanted_growth(request.size(), request.size()) > 0;
        drop(state);
        if !is_due {
            return Ok(());
        }
        let kept =
            (device.info().total.0 / 1000).saturating_mul(policy.numbers.kept_free_thousandths);
        let left = match device.usage() {
            Ok(usage) => usage.free.saturating_sub(Bytes(kept)).0,
            Err(error) => {
                tracing::debug!(%error, "the device does not say what is free: chunks move");
                0
            }
        };
        self.state()?.spare = Spare::answered(left);
        Ok(())
    }

    // Gives a large chunk back of which the block would get a part, and returns where it was. Where that is refused,
    // the block gets the part; and where the device has nothing else for the block, because others may be quicker to
    // take what is given back.
    fn give_parted_back(&self, request: &BlockRequest, claimed: &Move) -> Result<Option<u64>> {
        let free = self.shared.device.usage().map_or(Bytes::ZERO, |usage| usage.free);
        let has_gone = free.0 >= request.size() && {
            let unmapped = claimed.unmap();
            unmapped.inspect_err(|error| tracing::debug!(%error, "a large chunk stays")).is_ok()
        };
        let mut state = self.state()?;
        state.arenas[request.arena_id].mix(&claimed.range);
        state.settle_moves(std::slice::from_ref(claimed), usize::from(has_gone));
        drop(state);
        self.shared.monitor.notify();
        Ok(has_gone.then_some(claimed.range.start))
    }

    fn apply(&self, plan: &Plan) -> Applied {
        let mut applied = Applied::default();
        let mut spare = applied.unmap(&plan.moves);
        spare.sort_by_key(Chunk::size);
        for missing in &plan.run.missing {
            if applied.error.is_none() {
                let filled = self.fill(plan, missing, &mut spare, &mut applied);
                applied.error = filled.err();
            }
        }
        applied
    }

    // Maps chunks from the front of a range on: those that move, largest first, then new ones.
    fn fill(
        &self,
        Plan { reservation, new_chunks, .. }: &Plan,
        missing: &Range<u64>,
        spare: &mut Vec<Chunk>,
        applied: &mut Applied,
    ) -> lowtide_device::Result<()> {
        let (mut at, mut filled) = (missing.start, Ok(()));
        while at < missing.end && filled.is_ok() {
            let space = missing.end - at;
            let fitting = spare.iter().rposition(|spare| spare.size().0 <= space);
            let size = new_chunks.size_at(at).min(space);
            let next = match fitting {
                Some(index) => Ok(spare.remove(index)),
                None => self.create(size, spare),
            };
            filled = next.and_then(|next| {
                let size = next.size();
                reservation.map(Bytes(at), next).map_err(|refused| refused.error)?;
                applied.mapped.push(at..at + size.0);
                if fitting.is_none() && size.0 > new_chunks.small {
                    applied.large.push(at);
                }
                at += size.0;
                Ok(())
            });
        }
        if at == missing.start {
            return filled;
        }
        // What is mapped is opened even where not all of it could be had: it is cached then.
        match reservation.open(Bytes(missing.start), Bytes(at - missing.start)) {
            Ok(()) => filled,
            Err(error) => {
                applied.take_back(reservation, missing.start..at);
                Err(error)
            }
        }
    }

    // Where there is no room, chunks that fit nowhere make some.
    fn create(&self, size: u64, spare: &mut Vec<Chunk>) -> lowtide_device::Result<Chunk> {
        loop {
            match self.shared.device.create(Bytes(size)) {
                Err(error) if error.is_out_of_memory() => match spare.pop() {
                    Some(largest) => drop(largest),
                    None => return Err(error),
                },
                outcome => return outcome,
            }
        }
    }
}

impl NewChunks {
    fn size_at(&self, at: u64) -> u64 {
        let alone = self.large_until.saturating_sub(at);
        let large = if alone > 0 { equal_part(alone, self.large, self.page) } else { 0 };
        large.max(self.small)
    }
}

impl Applied {
    // Takes chunks from their places, until one is refused.
    fn unmap(&mut self, moves: &[Move]) -> Vec<Chunk> {
        let mut chunks = Vec::with_capacity(moves.len());
        for moved in moves {
            match moved.unmap() {
                Ok(chunk) => chunks.push(chunk),
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
            self.moved += 1;
        }
        chunks
    }

    // Memory that cannot be opened is no use: it goes, if the device takes it.
    fn take_back(&mut self, reservation: &Reservation, range: Range<u64>) {
        match reservation.unmap(Bytes(range.start), Bytes(range.end - range.start)) {
            Ok(_) => self.mapped.retain(|mapped| !range.contains(&mapped.start)),
            Err(NotUnmapped { taken, error }) => {
                tracing::error!(%error, "memory that nobody can use stays mapped for now");
                let is_taken =
                    |mapped: &Range<u64>| taken.iter().any(|(at, _)| at.0 == mapped.start);
                self.mapped.retain(|mapped| !is_taken(mapped));
                let stuck = self.mapped.iter().filter(|mapped| range.contains(&mapped.start));
                self.stuck.extend(stuck.cloned());
            }
        }
    }
}

impl State {
    fn plan(
        &mut self,
        policy: &Policy,
        device: &DeviceInfo,
        request: &BlockRequest,
        (last, hole): (bool, Option<u64>),
    ) -> Result<Plan> {
        let (size, owner) = (request.size(), self.owner_of(request.stream));
        let arena = &mut self.arenas[request.arena_id];
        let best = hole.and_then(|hole| arena.run_at(hole, request.fit(), owner));
        let best = best.or_else(|| arena.best_run(request.fit(), owner));
        let (missing, start) = best.ok_or_else(|| Error::no_addresses(Bytes(size), device))?;
        let run = arena.claim_run(start, size);
        let reservation = arena.reservation.clone();
        let moves = if last {
            self.moves(u64::MAX, missing, |_| true)
        } else {
            self.moves_by(policy, size, missing)
        };
        let tight = self.counts().physical.0.saturating_add(missing) > device.total.0 / 2;
        let small = policy.chunk_for(size, device.page.0, tight);
        let is_large = !tight
            && policy.apart.is_none()
            && moves.is_empty()
            && !self.arenas[request.arena_id].is_mixed();
        let new_chunks = NewChunks {
            small,
            large: policy.numbers.large_chunk_most.0,
            large_until: if is_large { (start + size) / device.page.0 * device.page.0 } else { 0 },
            page: device.page.0,
        };
        self.tags.begin_job(request.tag);
        Ok(Plan { reservation, run, new_chunks, moves })
    }

    // Claims a large chunk of which the block would get a part.
    fn claim_parted(&mut self, request: &BlockRequest) -> Option<Move> {
        let (arena_id, owner) = (request.arena_id, self.owner_of(request.stream));
        let range = self.arenas[arena_id].parted_by(request.fit(), owner)?;
        self.claim(FreeChunk { arena_id, range })
    }

    // Where the device has memory to spare, no chunk moves. Otherwise memory does not grow beyond the most that was
    // ever live while large free chunks can move, and not beyond that and some slack while any can.
    fn moves_by(&mut self, policy: &Policy, size: u64, missing: u64) -> Vec<Move> {
        let unwanted = self.unwanted_growth(size, missing);
        let (grown, most_live) = (self.counts().physical.0 + missing, self.most_live(size));
        let is_spare = grown <= and_thousandths(most_live, policy.numbers.spare_thousandths);
        if unwanted == 0 || (is_spare && self.spare.take(missing)) {
            return Vec::new();
        }
        let mut too_much =
            grown.saturating_sub(and_thousandths(most_live, policy.numbers.slack_thousandths));
        self.moves(unwanted, missing, |chunk| {
            let worth = too_much > 0 || chunk.saturating_mul(policy.numbers.cheap_part) >= missing;
            too_much = too_much.saturating_sub(chunk);
            worth
        })
    }

    // The most that was ever live, once a block of this size is.
    fn most_live(&self, size: u64) -> u64 {
        let PoolCounts { live, live_peak, asleep, .. } = self.counts();
        live_peak.max(live - asleep + Bytes(size)).0
    }

    /// Returns by how much memory would grow beyond what was live, or taken since the last trim, if `missing` of a
    /// block came from the device.
    fn unwanted_growth(&self, size: u64, missing: u64) -> u64 {
        let wanted = self.most_live(size).max(self.taken_peak().0);
        (self.counts().physical.0 + missing).saturating_sub(wanted)
    }

    // Claims free chunks, those of about the missing size first, until it is enough or not worth it.
    fn moves(
        &mut self,
        enough: u64,
        missing: u64,
        mut worth: impl FnMut(u64) -> bool,
    ) -> Vec<Move> {
        if enough == 0 {
            return Vec::new();
        }
        let (mut moves, mut sum) = (Vec::new(), 0);
        for chunk in self.free_chunks(missing) {
            let size = chunk.size();
            if sum >= enough || !worth(size) {
                break;
            }
            moves.push(self.claim(chunk).expect("it was free, under the same lock"));
            sum += size;
        }
        moves
    }

    fn commit(
        &mut self,
        plan: &Plan,
        applied: &Applied,
        request: &BlockRequest,
    ) -> Option<Address> {
        let arena = &mut self.arenas[request.arena_id];
        let whole = if applied.stuck.is_empty() {
            let whole = arena.settle_run(&plan.run, &applied.mapped, request.size());
            arena.add_large(if whole { &applied.large } else { &[] });
            whole
        } else {
            arena.abandon_run(&plan.run, &applied.mapped, &applied.stuck);
            false
        };
        self.tags.end_job(request.tag);
        self.settle_moves(&plan.moves, applied.moved);
        whole.then(|| self.hand_out(request, plan.run.block))
    }
}

fn and_thousandths(size: u64, more: u64) -> u64 {
    size.saturating_add((size / 1000).saturating_mul(more))
}
