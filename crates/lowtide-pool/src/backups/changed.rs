//! Pages that are to be copied to the host: the slot that each gets, and the pieces in which they go.

use lowtide_device::Reservation;
use lowtide_device::digest::Digest;

use crate::Result;
use crate::backups::{BackupLocation, BackupPage, Backups, Saved};
use crate::copy::packing::{Form, PieceForm};
use crate::copy::piece::Piece;
use crate::policy::{PAGE, PIECE};
use crate::state::arenas::ArenaId;

/// A page that must be copied, and where to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changed {
    pub(crate) arena_id: ArenaId,
    pub(crate) offset: u64,
    pub(crate) digest: Digest,
    /// Its slot, which has the content once the copy has arrived.
    pub(crate) to: Option<BackupPage>,
    /// The base with which it is packed; none where it is copied as it is.
    pub(crate) base: Option<u8>,
}

impl Changed {
    pub(crate) fn form(&self) -> Form {
        Form::of(self.base)
    }

    /// Returns whether two pages can go in one piece.
    pub(crate) fn is_before(&self, next: &Changed) -> bool {
        let slot = |page: &Changed| page.to.map(|to| (to.slab, to.page));
        self.arena_id == next.arena_id
            && self.offset + PAGE == next.offset
            && slot(self).map(|(slab, page)| (slab, page + 1)) == slot(next)
            && !next.offset.is_multiple_of(PIECE)
    }
}

impl Backups {
    /// Takes a slot for each page that has none. `take` takes so many slots of a form, or fewer where there
    /// is no memory for them.
    pub(crate) fn house(
        &mut self,
        changed: &mut [Changed],
        take: impl Fn(&mut Backups, Form, u64) -> Result<Vec<BackupPage>>,
    ) -> Result<()> {
        for form in [Form::Raw, Form::Packed] {
            let is_homeless = |page: &Changed| page.to.is_none() && page.form() == form;
            let count = changed.iter().filter(|page| is_homeless(page)).count() as u64;
            let taken = take(self, form, count)?;
            let homeless = changed.iter_mut().filter(|page| is_homeless(page));
            homeless.zip(taken).for_each(|(page, taken)| page.to = Some(taken));
        }
        Ok(())
    }

    /// Records that the copy of these pages has arrived: from now on they are saved.
    pub(crate) fn confirm(&mut self, changed: &[Changed]) {
        for page in changed {
            let location =
                BackupLocation::Page(page.to.expect("a page that was copied has a slot"));
            self.pages(page.arena_id).insert(page.offset, Saved { digest: page.digest, location });
        }
    }

    /// Prepares a page to be copied again, because it or its backup changed since it was saved: until the
    /// copy has arrived, it is not saved. It is copied as it is, in case packing was wrong.
    pub(crate) fn again(&mut self, arena_id: ArenaId, offset: u64, digest: Digest) -> Changed {
        let to = match self.pages(arena_id).remove(&offset).map(|saved| saved.location) {
            Some(BackupLocation::Page(page)) if page.form == Form::Raw => Some(page),
            Some(location) => {
                self.give(location);
                None
            }
            None => None,
        };
        Changed { arena_id, offset, digest, to, base: None }
    }

    /// Gives back the slots of pages that will not be copied after all.
    pub(crate) fn give_up_all(&mut self, changed: &[Changed]) {
        changed.iter().filter_map(|page| page.to).for_each(|slot| self.give_up(slot));
        self.shrink();
    }

    /// Makes a piece of pages of which each is before the next.
    pub(crate) fn piece(&self, run: &[Changed], chunk: usize, reservation: &Reservation) -> Piece {
        let to = run[0].to.expect("a page that is copied has a slot");
        Piece {
            chunk,
            reservation: reservation.clone(),
            offset: run[0].offset,
            memory: self.memory(to.slab).clone(),
            at: to.offset(),
            form: PieceForm::with_bases(to.form, run.iter().map(|page| page.base)),
        }
    }
}
