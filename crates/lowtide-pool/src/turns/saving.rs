//! Saving: pages on their way to the host, and the chunks that they leave behind.
//!
//! A chunk is given back as soon as every page of it has arrived and its second digest found every page
//! as it was, so that the driver's part is done while the link is busy. A page that changed meanwhile
//! is taken again, a few times. Memory whose content may be lost goes last, while the last copies run.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_device::Bytes;

use crate::backups::Backups;
use crate::backups::changed::Changed;
use crate::copy::packing::Ring;
use crate::copy::piece::Piece;
use crate::copy::queue::{Arrivals, Direction};
use crate::copy::streams::{CopyStreams, unmap};
use crate::copy::transfer::Transfer;
use crate::error::TurnStep;
use crate::lock::limit::Limit;
use crate::turns::parts::{HeldChunks, SleepPart};
use crate::turns::plan::{Planner, SleepPlan};
use crate::turns::second_digest::{CheckedBackups, DepartingChunk, SecondDigest, Wrong};
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
    pub(crate) streams: &'a CopyStreams,
    /// Makes room on the host for pages that are copied after all.
    pub(crate) planner: Planner<'a>,
    /// The arenas whose content is saved.
    pub(crate) parts: &'a [&'a SleepPart],
    /// The arenas whose content may be lost.
    pub(crate) lost: &'a [&'a SleepPart],
    pub(crate) limit: Limit<'a>,
}

/// Memory that may be lost, before and after it left its addresses.
enum Lost {
    Mapped,
    Held(HeldChunks),
}

/// What one take has found: the chunks that were digested again, with the pages that were wrong.
type Checked = BTreeMap<usize, Vec<Wrong>>;

impl Saving<'_> {
    /// Copies what changed and gives each chunk back once it is saved; then what may be lost. Returns
    /// how many pages were copied again.
    pub(crate) fn copy(&self, backups: &mut Backups, plan: SleepPlan) -> Result<usize> {
        let SleepPlan { mut changed, digests, ring, .. } = plan;
        let mut chunks = DepartingChunk::all(self.parts, digests);
        let mut waiting: BTreeSet<usize> = (0..chunks.len()).collect();
        let (mut lost, mut again, mut takes) = (Lost::Mapped, 0, 0);
        loop {
            takes += 1;
            let mut checked = Checked::new();
            let runs = runs(&changed, &chunks);
            let take = Take { saving: self, chunks: &chunks, runs: &runs, ring: ring.as_ref() };
            let mut outcome = take.copy(backups, waiting, &mut checked, &mut lost);
            for (chunk, run) in &runs {
                if checked.contains_key(chunk) {
                    backups.confirm(run);
                } else {
                    backups.give_up_all(run);
                }
            }
            (waiting, changed) = take_again(backups, &mut chunks, &checked);
            if outcome.is_ok() && changed.is_empty() {
                return Ok(again);
            }
            again += changed.len();
            if outcome.is_ok() {
                outcome = match changed.first() {
                    Some(page) if takes == TAKES_MOST => {
                        let first = waiting.first().expect("its chunk waits");
                        Err(keeps_changing(&chunks[*first], page, takes))
                    }
                    _ => self.planner.house(backups, &mut changed),
                };
            }
            if let Err(error) = outcome {
                backups.give_up_all(&changed);
                if let Lost::Held(held) = lost {
                    held.put_back();
                }
                return Err(error);
            }
        }
    }
}

// The first chunk that waits has the first page that changed.
fn keeps_changing(
    DepartingChunk { part, .. }: &DepartingChunk<'_>,
    page: &Changed,
    takes: u32,
) -> Error {
    let page = part.reservation.address().plus(Bytes(page.offset));
    Error::KeepsChanging { tag: part.name.to_string(), page, takes }
}

// The pages that were wrong, to be copied, and their chunks, to be digested once more.
fn take_again(
    backups: &mut Backups,
    chunks: &mut [DepartingChunk<'_>],
    checked: &Checked,
) -> (BTreeSet<usize>, Vec<Changed>) {
    let (mut waiting, mut changed) = (BTreeSet::new(), Vec::new());
    for (number, wrong) in checked.iter().filter(|(_, wrong)| !wrong.is_empty()) {
        let DepartingChunk { part, pages, .. } = &mut chunks[*number];
        waiting.insert(*number);
        for (index, now) in wrong {
            let (offset, digest) = &mut pages[*index];
            *digest = *now;
            changed.push(backups.again(part.arena_id, *offset, *now));
        }
    }
    (waiting, changed)
}

/// One pass over pages that are to be copied and chunks that are to leave.
struct Take<'a> {
    saving: &'a Saving<'a>,
    chunks: &'a [DepartingChunk<'a>],
    /// Neighbouring pages within a chunk, with the chunk's number.
    runs: &'a [(usize, &'a [Changed])],
    ring: Option<&'a Ring>,
}

impl Take<'_> {
    fn copy(
        &self,
        backups: &Backups,
        waiting: BTreeSet<usize>,
        checked: &mut Checked,
        lost: &mut Lost,
    ) -> Result<()> {
        let Saving { streams, planner, limit, .. } = self.saving;
        let pieces: Vec<Piece> = self
            .runs
            .iter()
            .map(|(chunk, run)| {
                let reservation = &self.chunks[*chunk].part.reservation;
                backups.piece(run, *chunk, reservation)
            })
            .collect();
        let transfer = Transfer::new(Direction::Out, self.chunks.len(), &pieces);
        let copied = || {
            self.runs
                .iter()
                .flat_map(|(_, run)| *run)
                .map(|page| ((page.arena_id, page.offset), page.to))
                .collect()
        };
        let second = SecondDigest {
            stream: &streams.checks,
            transfer: &transfer,
            backups: planner
                .policy
                .check_backups
                .then(|| CheckedBackups { backups, copied: copied() }),
        };
        let meanwhile = || self.let_go(&transfer, &second, waiting, checked, lost);
        if pieces.is_empty() {
            return meanwhile();
        }
        transfer.queue.add(pieces);
        copy::run(streams, &transfer, self.ring, *limit, |_| meanwhile())
    }

    // Gives chunks back as they arrive, each after its second digest. The device computes the digests of
    // the next chunks while the driver takes the ones before.
    fn let_go(
        &self,
        transfer: &Transfer,
        second: &SecondDigest<'_>,
        mut waiting: BTreeSet<usize>,
        checked: &mut Checked,
        lost: &mut Lost,
    ) -> Result<()> {
        let Saving { limit, .. } = self.saving;
        let (mut all_right, mut seen) = (true, Vec::new());
        loop {
            let may_lose = all_right && matches!(lost, Lost::Mapped);
            let next = |arrivals: &mut Arrivals| {
                // Registered backups cannot be read while copies go to other pages of them.
                let is_early = second.backups.is_some() && arrivals.pieces_left > 0;
                let batch = if is_early { Vec::new() } else { self.arrived(&waiting, arrivals) };
                let is_late = !is_early && arrivals.pieces_left * LAST_PART <= self.runs.len();
                let is_next = !batch.is_empty() || (is_late && may_lose) || waiting.is_empty();
                // What was digested goes now, whether or not there is more.
                (is_next || !seen.is_empty()).then_some(batch)
            };
            let Some(batch) = transfer.queue.wait_until(next) else {
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
            let progress = || transfer.progress();
            limit.ask(TurnStep::CopyingOut, progress)?;
            let begun = second.begin(batch.iter().map(|chunk| &self.chunks[*chunk]).collect());
            for chunk in std::mem::take(&mut seen) {
                limit.ask(TurnStep::CopyingOut, progress)?;
                let DepartingChunk { part, range, .. } = &self.chunks[chunk];
                drop(unmap(&part.reservation, range)?);
            }
            let found = begun.end()?;
            all_right &= found.iter().all(Vec::is_empty);
            for (chunk, wrong) in batch.iter().zip(found) {
                waiting.remove(chunk);
                checked.insert(*chunk, wrong);
            }
            seen = batch;
            seen.retain(|chunk| checked[chunk].is_empty());
        }
    }

    // Takes chunks that are wholly on the host, as many as are digested together. Others than those that
    // wait have left before.
    fn arrived(&self, waiting: &BTreeSet<usize>, arrivals: &mut Arrivals) -> Vec<usize> {
        let (mut size, most) = (0, self.saving.planner.policy.numbers.checked_at_once.0);
        let mut batch = Vec::new();
        while let Some(chunk) = arrivals.chunks.pop_front() {
            if !waiting.contains(&chunk) {
                continue;
            }
            size += self.chunks[chunk].size();
            if size > most && !batch.is_empty() {
                arrivals.chunks.push_front(chunk);
                break;
            }
            batch.push(chunk);
        }
        // Those of an arena are digested by one piece of work.
        batch.sort_unstable();
        batch
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
fn runs<'b>(changed: &'b [Changed], chunks: &[DepartingChunk<'_>]) -> Vec<(usize, &'b [Changed])> {
    let mut runs = Vec::new();
    let mut chunk = 0;
    for run in changed.chunk_by(Changed::is_before) {
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
