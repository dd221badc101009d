//! The pages that changed since they were last saved: what a sleep has to copy.
//!
//! Every page's digest is taken on the device. A page whose digest is that of its backup is saved
//! already, and one that is all zeros needs no backup page. For the rest the host's memory is
//! checked, before anything moves, and backup pages are taken.

use std::ops::Range;
use std::sync::LazyLock;

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{Bytes, Device, PendingDigests};
use lowtide_types::SleepReport;

use crate::backups::changed::Changed;
use crate::backups::{BackupLocation, BackupPage, Backups, Saved, SavedPages};
use crate::copy::packing::{self, Form, Ring};
use crate::copy::streams::CopyStreams;
use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::{PAGE, Policy};
use crate::state::arenas::ArenaId;
use crate::turns::parts::SleepPart;
use crate::{Error, Result};

/// Digests that are taken before a limit is asked again: some milliseconds of a GPU's time.
const DIGESTED_AT_ONCE: u64 = 4 << 30;

/// The plan of a sleep: what is copied, and the digest of every page.
pub(crate) struct SleepPlan {
    /// The bytes of pages, by what the sleep does with them.
    pub(crate) report: SleepReport,
    pub(crate) changed: Vec<Changed>,
    /// By part, in the order of its pages.
    pub(crate) digests: Vec<Vec<Digest>>,
    /// Device memory to pack pages, where some are packed.
    pub(crate) ring: Option<Ring>,
}

/// Finds out what changed and makes room for it on the host.
pub(crate) struct Planner<'a> {
    pub(crate) device: &'a Device,
    pub(crate) streams: &'a CopyStreams,
    pub(crate) policy: &'a Policy,
    /// Arenas that are awake, whose backups only save time: they make room where there is none.
    pub(crate) others: &'a [ArenaId],
    pub(crate) limit: Limit<'a>,
}

impl Planner<'_> {
    /// Takes digests, decides what is copied, and takes backup pages for it. On failure nothing has
    /// moved.
    pub(crate) fn plan(&self, backups: &mut Backups, parts: &[&SleepPart]) -> Result<SleepPlan> {
        let digests = self.digests(parts)?;
        let (report, mut changed) = sort_out(backups, parts, &digests);
        let ring = self.choose_forms(parts, &mut changed);
        // A page that takes another form needs another slot.
        for page in &mut changed {
            if let Some(other) = page.to.take_if(|to| to.form != Form::of(page.base)) {
                backups.give(BackupLocation::Page(other));
            }
        }
        if let Err(error) = self.house(backups, &mut changed) {
            backups.give_up_all(&changed);
            return Err(error);
        }
        Ok(SleepPlan { report, changed, digests, ring })
    }

    /// Takes a backup page for each page that has none. Where there is no room, the backups of others
    /// are forgotten first.
    pub(crate) fn house(&self, backups: &mut Backups, changed: &mut [Changed]) -> Result<()> {
        match backups.house(changed, |backups, form, pages| self.take(backups, form, pages)) {
            Ok(()) => Ok(()),
            stopped @ Err(Error::Stopped { .. }) => stopped,
            Err(_) => {
                for arena_id in self.others {
                    backups.forget(*arena_id);
                }
                backups.shrink();
                backups.house(changed, |backups, form, pages| self.take(backups, form, pages))
            }
        }
    }

    fn take(&self, backups: &mut Backups, form: Form, pages: u64) -> Result<Vec<BackupPage>> {
        let direct_most = self.policy.direct_backups;
        let needed = backups.held() + backups.missing(form, pages, direct_most);
        if let Some(most) = self.policy.backup_most.filter(|most| needed > *most) {
            return Err(Error::BackupLimit { needed, most });
        }
        backups.take((form, pages), self.device, direct_most, self.limit)
    }

    // All at once; with a limit, in groups.
    fn digests(&self, parts: &[&SleepPart]) -> Result<Vec<Vec<Digest>>> {
        let (stream, keys) = (&self.streams.checks, Keys::of_this_process());
        if self.limit.is_none() {
            let ask =
                |part: &&SleepPart| stream.digest_ranges(&part.reservation, &part.pages, keys);
            let pending: Vec<_> = parts.iter().map(ask).collect::<Result<_, _>>()?;
            return Ok(pending.into_iter().map(PendingDigests::wait).collect::<Result<_, _>>()?);
        }
        let all = parts.iter().flat_map(|part| &part.pages);
        let total = Bytes(all.map(|pages| pages.end - pages.start).sum());
        let (mut done, mut digests) = (Bytes::ZERO, Vec::with_capacity(parts.len()));
        for part in parts {
            let mut of_part = Vec::new();
            for group in groups(&part.pages, DIGESTED_AT_ONCE) {
                self.limit.ask(TurnStep::Planning, || Progress { done, total })?;
                let pending = stream.digest_ranges(&part.reservation, &group, keys)?;
                of_part.extend(pending.wait()?);
                done += Bytes(group.iter().map(|pages| pages.end - pages.start).sum());
            }
            digests.push(of_part);
        }
        Ok(digests)
    }

    // Finds out which pages are packed, where the device has room for a ring. Where it does not say, none is.
    fn choose_forms(&self, parts: &[&SleepPart], changed: &mut [Changed]) -> Option<Ring> {
        if changed.is_empty() || !packing::is_on(self.device, self.policy) {
            return None;
        }
        let ring = self.streams.ring_of_sleep(self.policy)?;
        for of_arena in changed.chunk_by_mut(|one, next| one.arena_id == next.arena_id) {
            let part = parts.iter().find(|part| part.arena_id == of_arena[0].arena_id)?;
            let runs = of_arena.chunk_by(|one, next| one.offset + PAGE == next.offset);
            let ranges: Vec<_> =
                runs.map(|run| run[0].offset..run[run.len() - 1].offset + PAGE).collect();
            match packing::look(&self.streams.checks, &part.reservation, &ranges) {
                Ok(bases) => {
                    of_arena.iter_mut().zip(bases).for_each(|(page, base)| page.base = base);
                }
                Err(error) => tracing::warn!(%error, "pages are not packed"),
            }
        }
        changed.iter().any(|page| page.base.is_some()).then_some(ring)
    }
}

// What is saved already stays; what is dead is forgotten; what changed keeps its backup page.
fn sort_out(
    backups: &mut Backups,
    parts: &[&SleepPart],
    digests: &[Vec<Digest>],
) -> (SleepReport, Vec<Changed>) {
    let zero = zero_digest();
    let (mut report, mut changed) = (SleepReport::default(), Vec::new());
    for (SleepPart { arena_id, pages, left, .. }, digests) in parts.iter().copied().zip(digests) {
        let offsets = pages.iter().flat_map(|run| run.clone().step_by(PAGE as usize));
        let mut before = std::mem::take(backups.pages(*arena_id));
        let mut after = SavedPages::new();
        for (offset, digest) in offsets.zip(digests.iter().copied()) {
            match before.remove(&offset) {
                Some(saved) if saved.digest == digest => {
                    report.unchanged += Bytes(PAGE);
                    after.insert(offset, saved);
                }
                saved if digest == zero => {
                    report.zero += Bytes(PAGE);
                    if let Some(saved) = saved {
                        backups.give(saved.location);
                    }
                    after.insert(offset, Saved { digest, location: BackupLocation::Zero });
                }
                saved => {
                    let to = match saved.map(|saved| saved.location) {
                        Some(BackupLocation::Page(page)) => Some(page),
                        _ => None,
                    };
                    report.copied += Bytes(PAGE);
                    changed.push(Changed { arena_id: *arena_id, offset, digest, to, base: None });
                }
            }
        }
        for (offset, saved) in before {
            if left.iter().any(|run| run.contains(&offset)) {
                after.insert(offset, saved);
            } else {
                backups.give(saved.location);
            }
        }
        *backups.pages(*arena_id) = after;
    }
    (report, changed)
}

/// Returns the digest of a page of zeros.
pub(crate) fn zero_digest() -> Digest {
    static ZERO: LazyLock<Digest> =
        LazyLock::new(|| Keys::of_this_process().digest(&vec![0; PAGE as usize]));
    *ZERO
}

// Runs of whole pages in groups of at most so many bytes, but at least a page, in order.
fn groups(runs: &[Range<u64>], most: u64) -> Vec<Vec<Range<u64>>> {
    let most = (most / PAGE).max(1) * PAGE;
    let (mut groups, mut group, mut left) = (Vec::new(), Vec::new(), most);
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let end = run.end.min(at + left);
            group.push(at..end);
            left -= end - at;
            at = end;
            if left == 0 {
                groups.push(std::mem::take(&mut group));
                left = most;
            }
        }
    }
    groups.extend((!group.is_empty()).then_some(group));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_grouped_in_order_and_none_is_left_out() {
        let runs = [0..PAGE, 2 * PAGE..7 * PAGE, 8 * PAGE..9 * PAGE];
        let by_three =
            [vec![0..PAGE, 2 * PAGE..4 * PAGE], vec![4 * PAGE..7 * PAGE], vec![8 * PAGE..9 * PAGE]];
        assert_eq!(groups(&runs, 3 * PAGE + 1), by_three);
        assert_eq!(groups(&runs, 1).len(), 7, "a page at least");
        assert_eq!(groups(&runs, 1 << 40), [runs.to_vec()]);
        assert!(groups(&[], PAGE).is_empty());
    }
}
