//! What happens when no cached block fits: free chunks move under the new block, and the device is
//! asked for the rest.
//!
//! Plan under the lock (where the block goes, which chunks move), apply without it (the driver's
//! part), commit under it again. A plan that fails midway leaves only free memory behind, in
//! another place.

use std::ops::Range;

use lowtide_device::{Address, Bytes, Chunk, DeviceInfo, Reservation};

use crate::arena::Run;
use crate::policy::Policy;
use crate::pool::{Books, Counts, Pool};
use crate::{Error, Result, Tag};

/// What is to be done at the driver.
struct Plan {
    arena: usize,
    run: Run,
    /// The size of new chunks.
    chunk: u64,
    moves: Vec<Move>,
}

/// A free chunk that leaves its place.
struct Move {
    arena: usize,
    block: u32,
    range: Range<u64>,
}

/// What was done.
#[derive(Default)]
struct Outcome {
    mapped: Vec<Range<u64>>,
    /// How many of the moves left their place.
    moved: usize,
    created: Bytes,
    destroyed: Bytes,
    /// Whether part of the run can be neither opened nor unmapped.
    lost: bool,
    error: Option<lowtide_device::Error>,
}

impl Pool {
    pub(crate) fn miss(&self, arena: usize, size: u64, stream: u32, tag: Tag) -> Result<Address> {
        // First by the policy. Where the device has no room, streams are waited for and every free
        // chunk makes room.
        for last in [false, true] {
            self.settle_streams(last)?;
            let mut books = self.books();
            if let Some(address) = books.take(arena, size, stream, tag) {
                return Ok(address);
            }
            let plan = books.plan(&self.policy, self.device.info(), (arena, size, stream), last)?;
            drop(books);
            let outcome = self.apply(&plan);
            let address = self.books().commit(&plan, &outcome, size, tag);
            match (address, outcome.error) {
                (Some(address), _) => return Ok(address),
                (None, Some(error)) if last || !error.is_out_of_memory() => {
                    return Err(error.into());
                }
                (None, _) => {}
            }
        }
        unreachable!("the last round returns")
    }

    /// What streams have passed becomes anybody's. The fence is asked without the lock; what is
    /// freed meanwhile has a later number and waits for the next time.
    pub(crate) fn settle_streams(&self, wait: bool) -> Result<()> {
        let Some(fence) = &self.fence else { return Ok(()) };
        let streams = self.books().streams();
        for (index, id, frees) in streams {
            if wait {
                fence.wait(id)?;
            } else if !fence.has_passed(id) {
                continue;
            }
            let mut books = self.books();
            for arena in &mut books.arenas {
                arena.settle_stream(index, frees);
            }
        }
        Ok(())
    }

    pub(crate) fn give_free_chunks_back(&self, keep: Bytes) -> Result<Bytes> {
        let mut books = self.books();
        let enough = books.counts.cached().saturating_sub(keep);
        let moves = books.moves(enough.0, u64::MAX, |_| true);
        drop(books);
        let mut outcome = Outcome::default();
        let chunks = self.unmap(&moves, &mut outcome);
        outcome.destroyed = chunks.iter().map(Chunk::size).sum();
        drop(chunks);
        self.books().settle(&moves, &outcome);
        tracing::debug!(given_back = %outcome.destroyed, "trimmed");
        outcome.error.map_or(Ok(outcome.destroyed), |error| Err(error.into()))
    }

    // Takes chunks from their places, until one is refused.
    fn unmap(&self, moves: &[Move], outcome: &mut Outcome) -> Vec<Chunk> {
        let reservations = self.books().arenas.each_ref().map(|arena| arena.reservation.clone());
        let mut chunks = Vec::with_capacity(moves.len());
        for Move { arena, range, .. } in moves {
            let (at, size) = (Bytes(range.start), Bytes(range.end - range.start));
            match reservations[*arena].unmap(at, size) {
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

    fn apply(&self, plan: &Plan) -> Outcome {
        let mut outcome = Outcome::default();
        let mut spare = self.unmap(&plan.moves, &mut outcome);
        spare.sort_by_key(Chunk::size);
        let reservation = self.books().arenas[plan.arena].reservation.clone();
        for missing in &plan.run.missing {
            if outcome.error.is_none() {
                let filled = self.fill(&reservation, missing, plan.chunk, &mut spare, &mut outcome);
                outcome.error = filled.err();
            }
        }
        outcome.destroyed += spare.iter().map(Chunk::size).sum();
        outcome
    }

    // Maps chunks from the front of a range on: those that move, largest first, then new ones.
    fn fill(
        &self,
        reservation: &Reservation,
        missing: &Range<u64>,
        chunk: u64,
        spare: &mut Vec<Chunk>,
        outcome: &mut Outcome,
    ) -> lowtide_device::Result<()> {
        let (mut at, mut filled) = (missing.start, Ok(()));
        while at < missing.end && filled.is_ok() {
            let room = missing.end - at;
            let fitting = spare.iter().rposition(|spare| spare.size().0 <= room);
            let next = match fitting {
                Some(index) => Ok(spare.remove(index)),
                None => self.create(chunk.min(room), spare, outcome),
            };
            filled = next.and_then(|next| {
                let size = next.size();
                reservation.map(Bytes(at), next).map_err(|refused| {
                    outcome.destroyed += size;
                    refused.error
                })?;
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
    fn create(
        &self,
        size: u64,
        spare: &mut Vec<Chunk>,
        outcome: &mut Outcome,
    ) -> lowtide_device::Result<Chunk> {
        loop {
            match self.device.create(Bytes(size)) {
                Ok(chunk) => {
                    outcome.created += chunk.size();
                    return Ok(chunk);
                }
                Err(error) if error.is_out_of_memory() => match spare.pop() {
                    Some(largest) => outcome.destroyed += largest.size(),
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }
}

// Memory that cannot be opened is no use: it goes, if the device takes it.
fn take_back(reservation: &Reservation, range: Range<u64>, outcome: &mut Outcome) {
    match reservation.unmap(Bytes(range.start), Bytes(range.end - range.start)) {
        Ok(chunks) => {
            outcome.destroyed += chunks.iter().map(|(_, chunk)| chunk.size()).sum();
            outcome.mapped.retain(|mapped| !range.contains(&mapped.start));
        }
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
        (arena, size, stream): (usize, u64, u32),
        last: bool,
    ) -> Result<Plan> {
        let best = self.arenas[arena].best_run(size, stream);
        let (missing, start) = best.ok_or(Error::NoAddresses { size: Bytes(size) })?;
        let run = self.arenas[arena].claim_run(start, size);
        let moves = if last {
            self.moves(u64::MAX, missing, |_| true)
        } else {
            self.moves_by(policy, size, missing)
        };
        let tight = (self.counts.physical.0 + missing) * 2 > device.total.0;
        let chunk = policy.chunk_for(size, device.page.0, tight);
        Ok(Plan { arena, run, chunk, moves })
    }

    // Memory does not grow beyond the most that was ever live while large free chunks can move, and
    // not beyond that and some slack while any can.
    fn moves_by(&mut self, policy: &Policy, size: u64, missing: u64) -> Vec<Move> {
        let Counts { live, live_peak, physical, physical_peak, .. } = self.counts;
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
        for (index, arena) in self.arenas.iter().enumerate() {
            let chunks = arena.free_chunks().into_iter();
            free.extend(chunks.map(|chunk| (chunk.end - chunk.start, index, chunk)));
        }
        let most = missing.checked_next_power_of_two().unwrap_or(u64::MAX);
        free.sort_by_key(|(size, ..)| std::cmp::Reverse((*size).min(most)));
        let (mut moves, mut sum) = (Vec::new(), 0);
        for (size, arena, range) in free {
            if sum >= enough || !worth(size) {
                break;
            }
            let block = self.arenas[arena].claim_chunk(&range);
            moves.push(Move { arena, block, range });
            sum += size;
        }
        moves
    }

    fn commit(&mut self, plan: &Plan, outcome: &Outcome, size: u64, tag: Tag) -> Option<Address> {
        let arena = &mut self.arenas[plan.arena];
        let whole = if outcome.lost {
            arena.abandon_run(&outcome.mapped);
            false
        } else {
            arena.settle_run(&plan.run, &outcome.mapped, size, tag.0)
        };
        self.settle(&plan.moves, outcome);
        whole.then(|| self.hand_out(plan.arena, plan.run.block, size, tag))
    }

    fn settle(&mut self, moves: &[Move], outcome: &Outcome) {
        for (index, moved) in moves.iter().enumerate() {
            self.arenas[moved.arena].settle_chunk(moved.block, index < outcome.moved);
        }
        let counts = &mut self.counts;
        counts.physical = counts.physical + outcome.created - outcome.destroyed;
        counts.physical_peak = counts.physical_peak.max(counts.physical);
    }
}
