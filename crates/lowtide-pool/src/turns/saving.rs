//! Saving: pages on their way to the host, and the chunks that they leave behind.
//!
//! A chunk is given back as soon as every page of it has arrived and a second look found every page
//! as it was, so that the driver's part is done while the link is busy. A page that changed meanwhile
//! is taken again, a few times. Memory whose content may be lost goes last, while the last copies run.

use std::collections::BTreeMap;

use lowtide_device::Bytes;

use crate::backups::Backups;
use crate::copy::carriers::Carriers;
use crate::copy::feed::Feed;
use crate::copy::handover::Way;
use crate::copy::piece::Piece;
use crate::copy::retry::unmap;
use crate::copy::ring::Ring;
use crate::error::TurnStep;
use crate::lock::limit::Limit;
use crate::turns::changes::{self, Changed, Planner, SleepPlan};
use crate::turns::leaving::{CopiedBackups, Leaving, SecondLook, Wrong};
use crate::turns::parts::{HeldChunks, SleepPart};
use crate::{Error, Result, copy};

/// Memory that may be lost is given up when no more than this part of the copies is left: late, in
/// case one fails, and early enough that the driver's part is done before the last one.
const LAST_PART: usize = 4;

/// Memory that may be lost is held until everything else has left, in case that fails; more than this
/// is not, unless a limit may stop the sleep. The driver needs a millisecond to clear it.
const HELD_MOST: Bytes = Bytes::gib(1);

/// The number of times that a page is copied before the sleep fails, because it changed each time.
const TAKES_MOST: u32 = 4;

/// Pages on their way to the host.
pub(crate) struct Saving<'a> {
    pub(crate) carriers: &'a Carriers,
    /// Makes room on the host for pages that are copied after all.
    pub(crate) planner: Planner<'a>,
    /// The arenas whose content is saved.
    pub(crate) parts: &'a [&'a SleepPart],
    /// The arenas whose content may be lost.
    pub(crate) lost: &'a [&'a SleepPart],
    /// Checks packed pages on the device.
    pub(crate) checks: bool,
    pub(crate) ring: Option<&'a Ring>,
    pub(crate) limit: Limit<'a>,
}

/// Memory that may be lost, before and after it left its addresses.
enum Lost {
    Mapped,
    Held(HeldChunks),
}

/// What one take has found: the chunks that were looked at again, with the pages that were wrong.
type Looks = BTreeMap<usize, Vec<Wrong>>;

impl Saving<'_> {
    /// Copies what changed and gives each chunk back once it is saved; then what may be lost. Returns
    /// how many pages were copied again.
    pub(crate) fn carry(&self, backups: &mut Backups, plan: SleepPlan) -> Result<usize> {
        let SleepPlan { mut changed, digests, .. } = plan;
        let mut chunks = Leaving::all(self.parts, digests);
        let mut waiting: Vec<usize> = (0..chunks.len()).collect();
        let (mut lost, mut again, mut takes) = (Lost::Mapped, 0, 0);
        loop {
            takes += 1;
            let mut looks = Looks::new();
            let runs = runs(&changed, &chunks);
            let take = Take { saving: self, chunks: &chunks, runs: &runs };
            let mut outcome = take.carry(backups, waiting, &mut looks, &mut lost);
            for (chunk, run) in &runs {
                if looks.contains_key(chunk) {
                    changes::confirm(backups, run);
                } else {
                    changes::give_up(backups, run);
                }
            }
            (waiting, changed) = take_again(backups, &mut chunks, &looks);
            if outcome.is_ok() && changed.is_empty() {
                return Ok(again);
            }
            again += changed.len();
            if outcome.is_ok() {
                outcome = match changed.first() {
                    Some(page) if takes == TAKES_MOST => {
                        Err(keeps_changing(&chunks[waiting[0]], page, takes))
                    }
                    _ => self.planner.house(backups, &mut changed),
                };
            }
            if let Err(error) = outcome {
                changes::give_up(backups, &changed);
                if let Lost::Held(held) = lost {
                    held.put_back();
                }
                return Err(error);
            }
        }
    }
}

// The first chunk that waits has the first page that changed.
fn keeps_changing(Leaving { part, .. }: &Leaving<'_>, page: &Changed, takes: u32) -> Error {
    let page = part.reservation.address().plus(Bytes(page.offset));
    Error::KeepsChanging { tag: part.name.to_string(), page, takes }
}

// The pages that were wrong, to be copied, and their chunks, to be looked at once more.
fn take_again(
    backups: &mut Backups,
    chunks: &mut [Leaving<'_>],
    looks: &Looks,
) -> (Vec<usize>, Vec<Changed>) {
    let (mut waiting, mut changed) = (Vec::new(), Vec::new());
    for (number, wrong) in looks.iter().filter(|(_, wrong)| !wrong.is_empty()) {
        let Leaving { part, pages, .. } = &mut chunks[*number];
        waiting.push(*number);
        for (index, now) in wrong {
            let (offset, digest) = &mut pages[*index];
            *digest = *now;
            changed.push(changes::again(backups, part.arena_id, *offset, *now));
        }
    }
    (waiting, changed)
}

/// One pass over pages that are to be copied and chunks that are to leave.
struct Take<'a> {
    saving: &'a Saving<'a>,
    chunks: &'a [Leaving<'a>],
    /// Neighbouring pages within a chunk, with the chunk's number.
    runs: &'a [(usize, &'a [Changed])],
}

impl Take<'_> {
    fn carry(
        &self,
        backups: &Backups,
        waiting: Vec<usize>,
        looks: &mut Looks,
        lost: &mut Lost,
    ) -> Result<()> {
        let Saving { carriers, planner, checks, ring, limit, .. } = self.saving;
        let pieces: Vec<Piece> = self
            .runs
            .iter()
            .map(|(chunk, run)| {
                let reservation = &self.chunks[*chunk].part.reservation;
                changes::piece(run, *chunk, reservation, backups)
            })
            .collect();
        let feed = Feed::new(Way::Out, self.chunks.len(), &pieces).checking(*checks);
        let copied = || self.runs.iter().flat_map(|(_, run)| *run).map(Changed::target).collect();
        let look = SecondLook {
            stream: &carriers.checks,
            feed: &feed,
            backups: planner
                .policy
                .check_backups
                .then(|| CopiedBackups { backups, copied: copied() }),
        };
        let meanwhile = || self.let_go(&feed, &look, waiting, looks, lost);
        if pieces.is_empty() {
            return meanwhile();
        }
        feed.add(pieces);
        copy::carry(carriers, &feed, *ring, *limit, meanwhile)
    }

    // Gives chunks back as they arrive, each after a second look. The device computes the digests of
    // the next chunks while the driver takes the ones before.
    fn let_go(
        &self,
        feed: &Feed,
        look: &SecondLook<'_>,
        mut waiting: Vec<usize>,
        looks: &mut Looks,
        lost: &mut Lost,
    ) -> Result<()> {
        let Saving { limit, .. } = self.saving;
        let (mut all_right, mut seen) = (true, Vec::new());
        loop {
            let may_lose = all_right && matches!(lost, Lost::Mapped);
            let next = |left: &[usize]| {
                let pieces_left: usize = left.iter().sum();
                // Registered backups cannot be read while copies go to other pages of them.
                let is_early = look.backups.is_some() && pieces_left > 0;
                let batch = if is_early { Vec::new() } else { self.arrived(&waiting, left) };
                let is_late = !is_early && pieces_left * LAST_PART <= self.runs.len();
                let is_next = !batch.is_empty() || (is_late && may_lose) || waiting.is_empty();
                // What was looked at goes now, whether or not there is more.
                (is_next || !seen.is_empty()).then_some(batch)
            };
            let Some(batch) = feed.handover.wait_until(next) else {
                return Ok(()); // the thread that failed reports the error
            };
            if batch.is_empty() && seen.is_empty() {
                // Everything that has arrived was right so far.
                if may_lose {
                    *lost = self.lose()?;
                    continue;
                }
                return Ok(());
            }
            let progress = || feed.progress();
            limit.ask(TurnStep::CopyingOut, progress)?;
            let begun = look.begin(batch.iter().map(|chunk| &self.chunks[*chunk]).collect());
            for chunk in std::mem::take(&mut seen) {
                limit.ask(TurnStep::CopyingOut, progress)?;
                let Leaving { part, range, .. } = &self.chunks[chunk];
                drop(unmap(&part.reservation, range)?);
            }
            let found = begun.end()?;
            all_right &= found.iter().all(Vec::is_empty);
            looks.extend(batch.iter().copied().zip(found));
            waiting.retain(|chunk| !looks.contains_key(chunk));
            seen = batch;
            seen.retain(|chunk| looks[chunk].is_empty());
        }
    }

    // Chunks that are wholly on the host, as many as are looked at together.
    fn arrived(&self, waiting: &[usize], left: &[usize]) -> Vec<usize> {
        let (mut size, most) = (0, self.saving.planner.policy.checked_at_once.0);
        let arrived = waiting.iter().copied().filter(|chunk| left[*chunk] == 0);
        arrived
            .take_while(|chunk| {
                let is_first = size == 0;
                size += self.chunks[*chunk].size();
                is_first || size <= most
            })
            .collect()
    }

    fn lose(&self) -> Result<Lost> {
        let Saving { lost, limit, .. } = self.saving;
        let held = HeldChunks::unmap(lost.iter().copied(), *limit)?;
        let size: Bytes = lost.iter().map(|part| part.size()).sum();
        let goes_now = limit.is_none() && size > HELD_MOST;
        Ok(Lost::Held(if goes_now { HeldChunks::default() } else { held }))
    }
}

// Neighbouring pages that changed, each run within one chunk, with the chunk's number.
fn runs<'b>(changed: &'b [Changed], chunks: &[Leaving<'_>]) -> Vec<(usize, &'b [Changed])> {
    let mut runs = Vec::new();
    let mut chunk = 0;
    for run in changed.chunk_by(changes::neighbours) {
        let mut rest = run;
        while let Some(first) = rest.first() {
            while !chunks[chunk].holds(first) {
                chunk += 1;
            }
            let inside = rest.partition_point(|page| chunks[chunk].holds(page));
            runs.push((chunk, &rest[..inside]));
            rest = &rest[inside..];
        }
    }
    runs
}
