//! What a sleep has to save: pages that changed since the last time.
//!
//! Every page's digest is taken on the device. A page whose digest is that of its backup is saved
//! already, and one that is all zeros needs no place. For the rest the host's room is checked, before
//! anything moves, and places are taken.

use std::ops::Range;
use std::sync::LazyLock;

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{Bytes, Device, Reservation, Stream, headroom};

use crate::backup::{Backups, PAGE, Pages, Place, Saved, Slot};
use crate::piece::{PIECE, Piece};
use crate::policy::Policy;
use crate::{Error, Result};

/// Pages of a room that are to be saved.
pub(crate) struct ToSave<'a> {
    pub(crate) room: usize,
    pub(crate) reservation: &'a Reservation,
    /// Runs of whole pages.
    pub(crate) pages: &'a [Range<u64>],
}

/// What was found out about the pages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) copied: Bytes,
    pub(crate) unchanged: Bytes,
    pub(crate) zero: Bytes,
}

/// A page that must be copied, and where to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changed {
    pub(crate) room: usize,
    pub(crate) offset: u64,
    digest: Digest,
    slot: Slot,
}

/// A page that has no slot yet.
const NOWHERE: Slot = Slot { slab: u32::MAX, page: u32::MAX };

/// Digests, decides, checks the room and takes places. On failure nothing has moved. Where there is
/// no room, what is kept of `others`, which are awake and only save time, is forgotten first.
pub(crate) fn plan(
    device: &Device,
    stream: &Stream,
    policy: &Policy,
    backups: &mut Backups,
    parts: &[ToSave<'_>],
    others: &[usize],
) -> Result<(Tally, Vec<Changed>)> {
    let digests = digests(stream, parts)?;
    let (tally, mut changed) = sort_out(backups, parts, &digests);
    let mut house = |backups: &mut Backups| house(device, policy, backups, &mut changed);
    let housed = house(backups).or_else(|_| {
        for room in others {
            backups.forget(*room);
        }
        backups.shrink();
        house(backups)
    });
    if let Err(error) = housed {
        give_up(backups, &changed);
        return Err(error);
    }
    Ok((tally, changed))
}

/// The copy of these pages has arrived: from now on they are saved.
pub(crate) fn confirm(backups: &mut Backups, changed: &[Changed]) {
    for page in changed {
        let saved = Saved { digest: page.digest, place: Place::Slot(page.slot) };
        backups.pages(page.room).insert(page.offset, saved);
    }
}

/// These pages will not be copied after all.
pub(crate) fn give_up(backups: &mut Backups, changed: &[Changed]) {
    for page in changed.iter().filter(|page| page.slot != NOWHERE) {
        backups.give(Place::Slot(page.slot));
    }
    backups.shrink();
}

/// Whether two pages can go in one piece.
pub(crate) fn neighbours(one: &Changed, next: &Changed) -> bool {
    one.room == next.room
        && one.offset + PAGE == next.offset
        && one.slot.slab == next.slot.slab
        && one.slot.page + 1 == next.slot.page
        && !next.offset.is_multiple_of(PIECE)
}

/// A run of neighbours as a piece of a chunk.
pub(crate) fn piece(
    number: usize,
    run: &[Changed],
    chunk: usize,
    reservation: &Reservation,
    backups: &Backups,
) -> Piece {
    let Changed { offset, slot, .. } = run[0];
    let (memory, size) = (backups.memory(slot.slab).clone(), Bytes(run.len() as u64 * PAGE));
    let reservation = reservation.clone();
    Piece { number, chunk, reservation, offset, memory, at: slot.offset(), size }
}

fn digests(stream: &Stream, parts: &[ToSave<'_>]) -> Result<Vec<Vec<Digest>>> {
    let keys = Keys::of_this_process();
    let ask = |part: &ToSave<'_>| stream.digest_ranges(part.reservation, part.pages, keys);
    let pending: Vec<_> = parts.iter().map(ask).collect::<Result<_, _>>()?;
    Ok(pending.into_iter().map(lowtide_device::PendingDigests::wait).collect::<Result<_, _>>()?)
}

// What is saved already stays; what is dead is forgotten; what changed keeps its place.
fn sort_out(
    backups: &mut Backups,
    parts: &[ToSave<'_>],
    digests: &[Vec<Digest>],
) -> (Tally, Vec<Changed>) {
    let zero = zero_digest();
    let (mut tally, mut changed) = (Tally::default(), Vec::new());
    for (ToSave { room, pages, .. }, digests) in parts.iter().zip(digests) {
        let offsets = pages.iter().flat_map(|run| run.clone().step_by(PAGE as usize));
        let mut before = std::mem::take(backups.pages(*room));
        let mut after = Pages::new();
        for (offset, digest) in offsets.zip(digests.iter().copied()) {
            match before.remove(&offset) {
                Some(saved) if saved.digest == digest => {
                    tally.unchanged += Bytes(PAGE);
                    after.insert(offset, saved);
                }
                saved if digest == zero => {
                    tally.zero += Bytes(PAGE);
                    if let Some(saved) = saved {
                        backups.give(saved.place);
                    }
                    after.insert(offset, Saved { digest, place: Place::Zero });
                }
                saved => {
                    let slot = match saved.map(|saved| saved.place) {
                        Some(Place::Slot(slot)) => slot,
                        _ => NOWHERE,
                    };
                    tally.copied += Bytes(PAGE);
                    changed.push(Changed { room: *room, offset, digest, slot });
                }
            }
        }
        for dead in before.into_values() {
            backups.give(dead.place);
        }
        *backups.pages(*room) = after;
    }
    (tally, changed)
}

/// The digest of a page of zeros.
fn zero_digest() -> Digest {
    static ZERO: LazyLock<Digest> =
        LazyLock::new(|| Keys::of_this_process().digest(&vec![0; PAGE as usize]));
    *ZERO
}

// A place for each page that has none.
fn house(
    device: &Device,
    policy: &Policy,
    backups: &mut Backups,
    changed: &mut [Changed],
) -> Result<()> {
    let homeless = changed.iter().filter(|page| page.slot == NOWHERE).count() as u64;
    let missing = Bytes(backups.missing(homeless) * PAGE);
    let needed = backups.held() + missing;
    if let Some(most) = policy.backup_most.filter(|most| needed > *most) {
        return Err(Error::BackupLimit { needed, most });
    }
    if missing > Bytes::ZERO {
        headroom::require(missing)?;
    }
    let mut slots = backups.take(homeless, device, policy.direct_backups)?.into_iter();
    for page in changed.iter_mut().filter(|page| page.slot == NOWHERE) {
        page.slot = slots.next().expect("as many slots as pages");
    }
    Ok(())
}
