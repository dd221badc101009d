//! The pages that changed since they were last saved: what a sleep has to copy.
//!
//! Every page's digest is taken on the device. A page whose digest is that of its backup is saved
//! already, and one that is all zeros needs no backup page. For the rest the host's memory is
//! checked, before anything moves, and backup pages are taken.

use std::ops::Range;
use std::sync::LazyLock;

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{Bytes, Device, PendingDigests, PendingLooks, Reservation, Stream};

use crate::backups::slab::{Form, PAGE};
use crate::backups::{BackupLocation, BackupPage, Backups, Saved, SavedPages};
use crate::copy::piece::{Bases, PIECE, Piece};
use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::Policy;
use crate::state::arenas::ArenaId;
use crate::{Error, Result};

/// Digests that are taken before a limit is asked again: some milliseconds of a GPU's time.
const DIGESTED_AT_ONCE: u64 = 4 << 30;

/// Pages of an arena that are to be saved.
pub(crate) struct ToSave<'a> {
    pub(crate) arena_id: ArenaId,
    pub(crate) reservation: &'a Reservation,
    /// Runs of whole pages.
    pub(crate) pages: &'a [Range<u64>],
    /// Runs of pages that have left the device before: their backups stay.
    pub(crate) left: &'a [Range<u64>],
}

/// The bytes of pages, by what a sleep does with them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PageTally {
    pub(crate) copied: Bytes,
    pub(crate) unchanged: Bytes,
    pub(crate) zero: Bytes,
}

/// A page that must be copied, and where to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changed {
    pub(crate) arena_id: ArenaId,
    pub(crate) offset: u64,
    digest: Digest,
    to: BackupPage,
    /// The base with which it is packed; none where it is copied as it is.
    base: Option<u8>,
}

impl Changed {
    /// Returns the page and its backup page, which has the content once the copy has arrived.
    pub(crate) fn target(&self) -> ((ArenaId, u64), BackupPage) {
        ((self.arena_id, self.offset), self.to)
    }

    fn form(&self) -> Form {
        if self.base.is_some() { Form::Packed } else { Form::Raw }
    }
}

/// The plan of a sleep: what is copied, and the digest of every page.
pub(crate) struct SleepPlan {
    pub(crate) tally: PageTally,
    pub(crate) changed: Vec<Changed>,
    /// By part, in the order of its pages.
    pub(crate) digests: Vec<Vec<Digest>>,
}

/// Stands for the backup page of a changed page that has none yet.
const NOWHERE: BackupPage = BackupPage { slab: u32::MAX, page: u32::MAX, form: Form::Raw };

/// Finds out what changed and makes room for it on the host.
pub(crate) struct Planner<'a> {
    pub(crate) device: &'a Device,
    pub(crate) stream: &'a Stream,
    pub(crate) policy: &'a Policy,
    /// Arenas that are awake, whose backups only save time: they make room where there is none.
    pub(crate) others: &'a [ArenaId],
    pub(crate) limit: Limit<'a>,
}

impl Planner<'_> {
    /// Takes digests, decides what is copied, and takes backup pages for it. On failure nothing has
    /// moved.
    pub(crate) fn plan(&self, backups: &mut Backups, parts: &[ToSave<'_>]) -> Result<SleepPlan> {
        let digests = self.digests(parts)?;
        let (tally, mut changed) = sort_out(backups, parts, &digests);
        if self.policy.packing && self.device.packs() {
            self.look(parts, &mut changed);
        }
        // A page that takes another form needs another slot.
        for page in changed.iter_mut().filter(|page| page.to != NOWHERE) {
            if page.to.form != page.form() {
                backups.give(BackupLocation::Page(page.to));
                page.to = NOWHERE;
            }
        }
        if let Err(error) = self.house(backups, &mut changed) {
            give_up(backups, &changed);
            return Err(error);
        }
        Ok(SleepPlan { tally, changed, digests })
    }

    /// Takes a backup page for each page that has none. Where there is no room, the backups of others
    /// are forgotten first.
    pub(crate) fn house(&self, backups: &mut Backups, changed: &mut [Changed]) -> Result<()> {
        match self.take_backups(backups, changed) {
            Ok(()) => Ok(()),
            stopped @ Err(Error::Stopped { .. }) => stopped,
            Err(_) => {
                for arena_id in self.others {
                    backups.forget(*arena_id);
                }
                backups.shrink();
                self.take_backups(backups, changed)
            }
        }
    }

    // All at once; with a limit, in groups.
    fn digests(&self, parts: &[ToSave<'_>]) -> Result<Vec<Vec<Digest>>> {
        let keys = Keys::of_this_process();
        if self.limit.is_none() {
            let ask =
                |part: &ToSave<'_>| self.stream.digest_ranges(part.reservation, part.pages, keys);
            let pending: Vec<_> = parts.iter().map(ask).collect::<Result<_, _>>()?;
            return Ok(pending.into_iter().map(PendingDigests::wait).collect::<Result<_, _>>()?);
        }
        let all = parts.iter().flat_map(|part| part.pages);
        let total = Bytes(all.map(|pages| pages.end - pages.start).sum());
        let (mut done, mut digests) = (Bytes::ZERO, Vec::with_capacity(parts.len()));
        for part in parts {
            let mut of_part = Vec::new();
            for group in groups(part.pages, DIGESTED_AT_ONCE) {
                self.limit.ask(TurnStep::Planning, || Progress { done, total })?;
                let pending = self.stream.digest_ranges(part.reservation, &group, keys)?;
                of_part.extend(pending.wait()?);
                done += Bytes(group.iter().map(|pages| pages.end - pages.start).sum());
            }
            digests.push(of_part);
        }
        Ok(digests)
    }

    // Finds out which pages are packed. Where the device does not say, none is.
    fn look(&self, parts: &[ToSave<'_>], changed: &mut [Changed]) {
        for of_arena in changed.chunk_by_mut(|one, next| one.arena_id == next.arena_id) {
            let Some(part) = parts.iter().find(|part| part.arena_id == of_arena[0].arena_id) else {
                continue;
            };
            let runs = of_arena.chunk_by(|one, next| one.offset + PAGE == next.offset);
            let ranges: Vec<_> =
                runs.map(|run| run[0].offset..run[run.len() - 1].offset + PAGE).collect();
            let looks = self.stream.look_ranges(part.reservation, &ranges);
            match looks.and_then(PendingLooks::wait) {
                Ok(looks) => {
                    for (page, look) in of_arena.iter_mut().zip(looks) {
                        page.base = look.packs().then_some(look.base);
                    }
                }
                Err(error) => tracing::warn!(%error, "pages are not packed"),
            }
        }
    }

    fn take_backups(&self, backups: &mut Backups, changed: &mut [Changed]) -> Result<()> {
        for form in [Form::Raw, Form::Packed] {
            let is_homeless = |page: &Changed| page.to == NOWHERE && page.form() == form;
            let homeless = changed.iter().filter(|page| is_homeless(page)).count() as u64;
            let direct_most = self.policy.direct_backups;
            let needed = backups.held() + backups.missing(form, homeless, direct_most);
            if let Some(most) = self.policy.backup_most.filter(|most| needed > *most) {
                return Err(Error::BackupLimit { needed, most });
            }
            let taken = backups.take((form, homeless), self.device, direct_most, self.limit)?;
            let homeless = changed.iter_mut().filter(|page| is_homeless(page));
            homeless.zip(taken).for_each(|(page, taken)| page.to = taken);
        }
        Ok(())
    }
}

/// Records that the copy of these pages has arrived: from now on they are saved.
pub(crate) fn confirm(backups: &mut Backups, changed: &[Changed]) {
    for page in changed {
        let saved = Saved { digest: page.digest, location: BackupLocation::Page(page.to) };
        backups.pages(page.arena_id).insert(page.offset, saved);
    }
}

/// Prepares a page to be copied again, because it or its backup changed since it was saved: until the
/// copy has arrived, it is not saved. It is copied as it is, in case packing was wrong.
pub(crate) fn again(
    backups: &mut Backups,
    arena_id: ArenaId,
    offset: u64,
    digest: Digest,
) -> Changed {
    let to = match backups.pages(arena_id).remove(&offset).map(|saved| saved.location) {
        Some(BackupLocation::Page(page)) if page.form == Form::Raw => page,
        Some(packed @ BackupLocation::Page(_)) => {
            backups.give(packed);
            NOWHERE
        }
        Some(BackupLocation::Zero) | None => NOWHERE,
    };
    Changed { arena_id, offset, digest, to, base: None }
}

/// Gives back the backup pages of pages that will not be copied after all.
pub(crate) fn give_up(backups: &mut Backups, changed: &[Changed]) {
    for page in changed.iter().filter(|page| page.to != NOWHERE) {
        backups.give_up(page.to);
    }
    backups.shrink();
}

/// Returns whether two pages can go in one piece.
pub(crate) fn neighbours(one: &Changed, next: &Changed) -> bool {
    one.arena_id == next.arena_id
        && one.offset + PAGE == next.offset
        && one.to.slab == next.to.slab
        && one.to.page + 1 == next.to.page
        && !next.offset.is_multiple_of(PIECE)
}

/// Makes a piece of a run of neighbours.
pub(crate) fn piece(
    run: &[Changed],
    chunk: usize,
    reservation: &Reservation,
    backups: &Backups,
) -> Piece {
    let Changed { offset, to, .. } = run[0];
    let (memory, size) = (backups.memory(to.slab).clone(), Bytes(run.len() as u64 * PAGE));
    let (reservation, mut bases) = (reservation.clone(), Bases::default());
    for (base, page) in bases.iter_mut().zip(run) {
        *base = page.base.unwrap_or_default();
    }
    Piece { chunk, reservation, offset, memory, at: to.offset(), size, form: to.form, bases }
}

// What is saved already stays; what is dead is forgotten; what changed keeps its backup page.
fn sort_out(
    backups: &mut Backups,
    parts: &[ToSave<'_>],
    digests: &[Vec<Digest>],
) -> (PageTally, Vec<Changed>) {
    let zero = zero_digest();
    let (mut tally, mut changed) = (PageTally::default(), Vec::new());
    for (ToSave { arena_id, pages, left, .. }, digests) in parts.iter().zip(digests) {
        let offsets = pages.iter().flat_map(|run| run.clone().step_by(PAGE as usize));
        let mut before = std::mem::take(backups.pages(*arena_id));
        let mut after = SavedPages::new();
        for (offset, digest) in offsets.zip(digests.iter().copied()) {
            match before.remove(&offset) {
                Some(saved) if saved.digest == digest => {
                    tally.unchanged += Bytes(PAGE);
                    after.insert(offset, saved);
                }
                saved if digest == zero => {
                    tally.zero += Bytes(PAGE);
                    if let Some(saved) = saved {
                        backups.give(saved.location);
                    }
                    after.insert(offset, Saved { digest, location: BackupLocation::Zero });
                }
                saved => {
                    let to = match saved.map(|saved| saved.location) {
                        Some(BackupLocation::Page(page)) => page,
                        _ => NOWHERE,
                    };
                    tally.copied += Bytes(PAGE);
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
    (tally, changed)
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
