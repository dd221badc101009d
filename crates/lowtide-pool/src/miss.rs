//! What happens when no cached block fits: free chunks move under the new block, and the device is
//! asked for the rest.
//!
//! Plan under the lock (where the block goes, which chunks move), apply without it (the driver's
//! part), commit under it again. A plan that fails midway leaves only free memory behind, in
//! another place.

use std::cell::Cell;
use std::ops::Range;
use std::slice;

use lowtide_device::{Address, Bytes, Chunk, DeviceInfo, Reservation};

use crate::arena::Run;
use crate::books::{Books, Counts, Request, tag_of};
use crate::policy::Policy;
use crate::pressure::{Answer, Pressure, ROUNDS_MOST};
use crate::streams::Seen;
use crate::tags::Phase;
use crate::{Error, Pool, Result};

/// How often an allocation waits for what other threads have in their hands, before it is refused.
const WAITS_MOST: u32 = 8;

thread_local! {
    /// Whether this thread is asking its caller, with chunks in its hands, whether to go on trimming:
    /// should the caller allocate meanwhile, it must not wait for itself.
    static TRIMMING: Cell<bool> = const { Cell::new(false) };
}

/// What is to be done at the driver.
struct Plan {
    reservation: Reservation,
    run: Run,
    /// The size of new chunks.
    chunk: u64,
    moves: Vec<Move>,
}

/// A free chunk that leaves its place.
struct Move {
    room: usize,
    reservation: Reservation,
    block: u32,
    range: Range<u64>,
}

/// What came of one try.
enum Tried {
    Done(Address),
    /// A sleep has begun.
    Turned,
    Full(lowtide_device::Error),
}

/// What was done.
#[derive(Default)]
struct Outcome {
    mapped: Vec<Range<u64>>,
    /// How many of the moves left their place.
    moved: usize,
    /// Whether part of the run can be neither opened nor unmapped.
    lost: bool,
    error: Option<lowtide_device::Error>,
}

/// Chunks in the hands of a trim: recorded when it ends, also where who is asked to go on panics.
struct Trim<'a> {
    pool: &'a Pool,
    moves: Vec<Move>,
    outcome: Outcome,
}

impl Drop for Trim<'_> {
    fn drop(&mut self) {
        TRIMMING.set(false);
        self.pool.books().settle(&self.moves, &self.outcome);
        self.pool.notify();
    }
}

impl Pool {
    /// `None` where the tag's phase changed meanwhile.
    pub(crate) fn miss(&self, request: &Request) -> Result<Option<Address>> {
        for round in 0.. {
            let error = match self.try_miss(request)? {
                Tried::Done(address) => return Ok(Some(address)),
                Tried::Turned => return Ok(None),
                Tried::Full(error) => error,
            };
            let free = self.shared.device.usage()?.free;
            let pressure = Pressure { requested: Bytes(request.size()), free, round };
            if round >= ROUNDS_MOST || self.shared.callbacks.ask(&pressure) == Answer::Nothing {
                return Err(error.into());
            }
        }
        unreachable!("rounds are limited")
    }

    // First by the policy. Where the device has no room, streams are waited for and every free
    // chunk makes room; and where another thread is at work on chunks of its own, what it leaves is
    // waited for, too: it may have had all of them in its hands.
    fn try_miss(&self, request: &Request) -> Result<Tried> {
        let (mut last, mut waits) = (false, 0);
        loop {
            self.settle_streams(last)?;
            let mut books = self.books();
            if !books.is_awake(request.room) {
                return Ok(Tried::Turned);
            }
            books.clear_shelves();
            if let Some(address) = books.take(request) {
                return Ok(Tried::Done(address));
            }
            let others = books.jobs();
            let plan = books.plan(&self.shared.policy, self.shared.device.info(), request, last)?;
            drop(books);
            let outcome = self.apply(&plan);
            let mut books = self.books();
            let address = books.commit(&plan, &outcome, request);
            self.notify();
            let full = outcome.error.as_ref().is_some_and(lowtide_device::Error::is_out_of_memory);
            let may_wait = waits < WAITS_MOST && !TRIMMING.get();
            if last && full && may_wait && others + books.jobs() > 0 {
                waits += 1;
                if books.jobs() > 0 {
                    drop(self.wait(books));
                }
                continue;
            }
            drop(books);
            match (address, outcome.error) {
                (Some(address), _) => return Ok(Tried::Done(address)),
                (None, Some(error)) if !error.is_out_of_memory() => return Err(error.into()),
                (None, Some(error)) if last => return Ok(Tried::Full(error)),
                (None, _) => last = true,
            }
        }
    }

    /// What streams have passed becomes anybody's. The fence is asked without the lock; what is
    /// freed meanwhile has a later number and waits for the next time.
    pub(crate) fn settle_streams(&self, wait: bool) -> Result<()> {
        let Some(fence) = &self.shared.fence else { return Ok(()) };
        let mut books = self.books();
        books.clear_shelves();
        let streams = books.streams.seen();
        drop(books);
        for seen in streams {
            if wait {
                fence.wait(seen.id)?;
            } else if !fence.has_passed(seen.id) {
                continue;
            }
            self.books().settle_stream(&seen);
        }
        Ok(())
    }

    pub(crate) fn give_free_chunks_back(
        &self,
        keep: Bytes,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Bytes> {
        let mut books = self.books();
        books.clear_shelves();
        let enough = books.cached_awake().saturating_sub(keep);
        let moves = books.moves(enough.0, u64::MAX, |_| true);
        books.count_jobs(&moves, 1);
        drop(books);
        let mut trim = Trim { pool: self, moves, outcome: Outcome::default() };
        let (mut given_back, mut go_on) = (Bytes::ZERO, || {
            TRIMMING.set(true);
            let goes_on = go_on();
            TRIMMING.set(false);
            goes_on
        });
        // One at a time: whoever says when to stop waits for the memory to be gone, too.
        for (index, chunk) in trim.moves.iter().enumerate() {
            let chunks = unmap(slice::from_ref(chunk), &mut trim.outcome, &mut go_on);
            given_back += chunks.iter().map(Chunk::size).sum();
            if trim.outcome.moved == index {
                break;
            }
        }
        let error = trim.outcome.error.take();
        drop(trim);
        tracing::debug!(%given_back, "trimmed");
        error.map_or(Ok(given_back), |error| Err(error.into()))
    }

    fn apply(&self, plan: &Plan) -> Outcome {
        let mut outcome = Outcome::default();
        let mut spare = unmap(&plan.moves, &mut outcome, &mut || true);
        spare.sort_by_key(Chunk::size);
        for missing in &plan.run.missing {
            if outcome.error.is_none() {
                let filled = self.fill(plan, missing, &mut spare, &mut outcome);
                outcome.error = filled.err();
            }
        }
        outcome
    }

    // Maps chunks from the front of a range on: those that move, largest first, then new ones.
    fn fill(
        &self,
        Plan { reservation, chunk, .. }: &Plan,
        missing: &Range<u64>,
        spare: &mut Vec<Chunk>,
        outcome: &mut Outcome,
    ) -> lowtide_device::Result<()> {
        let (mut at, mut filled) = (missing.start, Ok(()));
        while at < missing.end && filled.is_ok() {
            let room = missing.end - at;
            let fitting = spare.iter().rposition(|spare| spare.size().0 <= room);
            let next = match fitting {
                Some(index) => Ok(spare.remove(index)),
                None => self.create(room.min(*chunk), spare),
            };
            filled = next.and_then(|next| {
                let size = next.size();
                reservation.map(Bytes(at), next).map_err(|refused| refused.error)?;
                outcome.mapped.push(at..at + size.0);
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
                take_back(reservation, missing.start..at, outcome);
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

// Takes chunks from their places, until one is refused.
fn unmap(moves: &[Move], outcome: &mut Outcome, go_on: &mut dyn FnMut() -> bool) -> Vec<Chunk> {
    let mut chunks = Vec::with_capacity(moves.len());
    for Move { reservation, range, .. } in moves {
        if !go_on() {
            break;
        }
        let (at, size) = (Bytes(range.start), Bytes(range.end - range.start));
        match reservation.unmap(at, size) {
            Ok(taken) => chunks.extend(taken.into_iter().map(|(_, chunk)| chunk)),
            Err(refused) => {
                outcome.error = Some(refused.error);
                break;
            }
        }
        outcome.moved += 1;
    }
    chunks
}

// Memory that cannot be opened is no use: it goes, if the device takes it.
fn take_back(reservation: &Reservation, range: Range<u64>, outcome: &mut Outcome) {
    match reservation.unmap(Bytes(range.start), Bytes(range.end - range.start)) {
        Ok(_) => outcome.mapped.retain(|mapped| !range.contains(&mapped.start)),
        Err(refused) => {
            tracing::error!(error = %refused.error, "memory that nobody can use stays mapped");
            outcome.lost = true;
        }
    }
}

impl Books {
    fn plan(
        &mut self,
        policy: &Policy,
        device: &DeviceInfo,
        request: &Request,
        last: bool,
    ) -> Result<Plan> {
        let (size, owner) = (request.size(), self.owner_of(request.stream));
        let arena = &mut self.rooms[request.room].arena;
        let best = arena.best_run(size, owner);
        let (missing, start) = best.ok_or(Error::NoAddresses { size: Bytes(size) })?;
        let run = arena.claim_run(start, size);
        let reservation = arena.reservation.clone();
        let moves = if last {
            self.moves(u64::MAX, missing, |_| true)
        } else {
            self.moves_by(policy, size, missing)
        };
        let tight = (self.counts.physical.0 + missing) * 2 > device.total.0;
        let chunk = policy.chunk_for(size, device.page.0, tight);
        self.tags[request.tag].jobs += 1;
        self.count_jobs(&moves, 1);
        Ok(Plan { reservation, run, chunk, moves })
    }

    // Memory does not grow beyond the most that was ever live while large free chunks can move, and
    // not beyond that and some slack while any can.
    fn moves_by(&mut self, policy: &Policy, size: u64, missing: u64) -> Vec<Move> {
        let Counts { live, live_peak, physical, physical_peak, asleep, .. } = self.counts;
        let live = live - asleep;
        let most_live = live_peak.max(live + Bytes(size)).0;
        let with_slack = most_live + most_live / 1000 * policy.slack_thousandths;
        let wanted = (physical.0 + missing).saturating_sub(most_live.max(physical_peak.0));
        let mut too_much = (physical.0 + missing).saturating_sub(with_slack);
        self.moves(wanted, missing, |chunk| {
            let worth = too_much > 0 || chunk * policy.cheap_part >= missing;
            too_much = too_much.saturating_sub(chunk);
            worth
        })
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
        let mut free: Vec<(u64, usize, Range<u64>)> = Vec::new();
        for (index, room) in
            self.rooms.iter().enumerate().filter(|(index, _)| self.is_awake(*index))
        {
            let chunks = room.arena.free_chunks().into_iter();
            free.extend(chunks.map(|chunk| (chunk.end - chunk.start, index, chunk)));
        }
        let most = missing.checked_next_power_of_two().unwrap_or(u64::MAX);
        free.sort_by_key(|(size, ..)| std::cmp::Reverse((*size).min(most)));
        let (mut moves, mut sum) = (Vec::new(), 0);
        for (size, room, range) in free {
            if sum >= enough || !worth(size) {
                break;
            }
            let arena = &mut self.rooms[room].arena;
            let (block, reservation) = (arena.claim_chunk(&range), arena.reservation.clone());
            moves.push(Move { room, reservation, block, range });
            sum += size;
        }
        moves
    }

    /// Plans under way at the driver, counted once for each chunk they move.
    fn jobs(&self) -> usize {
        self.tags.known.iter().map(|known| known.jobs).sum()
    }

    // A sleep of a tag waits until nobody is at work on its memory.
    fn count_jobs(&mut self, moves: &[Move], by: isize) {
        for moved in moves {
            let jobs = &mut self.tags[tag_of(moved.room)].jobs;
            *jobs = jobs.checked_add_signed(by).expect("jobs end once");
        }
    }

    fn settle_stream(&mut self, seen: &Seen) {
        // Where a sleep or a wake is at work, nothing changes; the stream is kept for later.
        let mut all = true;
        for room in 0..self.rooms.len() {
            match self.tags[tag_of(room)].phase {
                Phase::Awake => self.rooms[room].arena.settle_stream(seen.number, seen.frees),
                Phase::Turning => all = false,
                Phase::Asleep => {}
            }
        }
        if all {
            self.streams.forget(seen);
        }
    }

    fn commit(&mut self, plan: &Plan, outcome: &Outcome, request: &Request) -> Option<Address> {
        let arena = &mut self.rooms[request.room].arena;
        let whole = if outcome.lost {
            arena.abandon_run(&outcome.mapped);
            false
        } else {
            arena.settle_run(&plan.run, &outcome.mapped, request.size())
        };
        self.tags[request.tag].jobs -= 1;
        self.settle(&plan.moves, outcome);
        whole.then(|| self.hand_out(request, plan.run.block))
    }

    fn settle(&mut self, moves: &[Move], outcome: &Outcome) {
        for (index, moved) in moves.iter().enumerate() {
            self.rooms[moved.room].arena.settle_chunk(moved.block, index < outcome.moved);
        }
        self.count_jobs(moves, -1);
        self.count_physical();
    }
}
