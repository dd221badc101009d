//! The work of a copy between the device and backups, as one lane of it does it.
//!
//! The copy engine's lane carries pieces both ways. On the way in a second lane may carry pieces from the
//! same queue: kernels that read host memory themselves. Right after a sleep the driver still clears the
//! memory that left, with the engine that copies in, which then takes twice as long
//! (docs/decisions/0005-sleep-and-wake.md). Whichever lane is faster takes more pieces.

use lowtide_device::digest::Keys;
use lowtide_device::{Bytes, HostMemory, Mark, PendingDifferences, PendingDigests, Stream};

use std::sync::Arc;

use crate::Result;
use crate::backups::slab::Form;
use crate::copy::carriers::Carriers;
use crate::copy::feed::{Feed, Job, Load, PackedCheck};
use crate::copy::handover::{LaneRoom, Way};
use crate::copy::lanes::Haul;
use crate::copy::piece::{BUFFER, DirectPiece, Piece, StagedPiece, StagingBuffer};
use crate::copy::retry::twice;
use crate::copy::ring::Ring;
use crate::copy::shares::Mover;
use crate::error::TurnStep;
use crate::lock::limit::Limit;

/// The work of one lane.
pub(crate) struct Lane<'a> {
    pub(crate) carriers: &'a Carriers,
    pub(crate) feed: &'a Feed,
    /// Device memory for packed pieces; without, kernels read and write host memory.
    pub(crate) ring: Option<&'a Ring>,
    pub(crate) limit: Limit<'a>,
    pub(crate) mover: Mover,
}

/// A piece on the link.
pub(crate) struct Sent<'a> {
    stream: &'a Stream,
    mark: Mark,
    /// Set where it was packed and is checked.
    check: Option<PendingCheck<'a>>,
}

/// A check of packed pages that the device is making.
enum PendingCheck<'a> {
    /// They were unpacked, as a wake does it, and the digests of the result are computed.
    Unpacked(PendingDigests<'a>),
    /// They are compared with their pages.
    Compared(PendingDifferences<'a>),
}

/// Where a piece begins on the host.
type OnHost<'b> = (&'b Arc<HostMemory>, Bytes);

impl<'a> Lane<'a> {
    fn send_piece(&self, piece: &Piece, on_host: OnHost<'_>) -> Result<(usize, &'a Stream)> {
        let on_device = (&piece.reservation, Bytes(piece.offset));
        let (number, stream) = self.carriers.stream(piece.form, self.mover);
        let (way, pages, packed) = (self.feed.handover.way(), piece.pages(), piece.host_size());
        let bases = &piece.bases[..pages];
        let ring = self.ring.filter(|_| self.mover == Mover::CopyEngine);
        twice(|| match (way, piece.form, ring) {
            (Way::Out, Form::Raw, _) => stream.copy_out(on_device, on_host, piece.size),
            (Way::In, Form::Raw, _) if self.mover == Mover::Kernels => {
                stream.copy_in_by_kernel(on_host, on_device, piece.size)
            }
            (Way::In, Form::Raw, _) => stream.copy_in(on_host, on_device, piece.size),
            (Way::Out, Form::Packed, None) => stream.pack(on_device, on_host, bases),
            (Way::In, Form::Packed, None) => stream.unpack(on_host, on_device, pages),
            (Way::Out, Form::Packed, Some(ring)) => {
                stream.pack(on_device, ring.place(number), bases)?;
                stream.copy_out(ring.place(number), on_host, packed)
            }
            (Way::In, Form::Packed, Some(ring)) => {
                stream.copy_in(on_host, ring.place(number), packed)?;
                stream.unpack(ring.place(number), on_device, pages)
            }
        })?;
        Ok((number, stream))
    }

    // Unpacks what has arrived on the host, as a wake will. Where there is no room for that, another kernel
    // compares it with the pages.
    fn check(
        &self,
        piece: &Piece,
        on_host: OnHost<'_>,
        (number, stream): (usize, &'a Stream),
    ) -> Result<PendingCheck<'a>> {
        let pages = piece.pages();
        let Some(unpacked) = self.ring.and_then(|ring| ring.unpacked(number)) else {
            let on_device = (&piece.reservation, Bytes(piece.offset));
            let compared = twice(|| stream.differs(on_host, on_device, pages))?;
            return Ok(PendingCheck::Compared(compared));
        };
        twice(|| stream.unpack(on_host, unpacked, pages))?;
        let digests = twice(|| stream.digest(unpacked, piece.size, Keys::of_this_process()))?;
        Ok(PendingCheck::Unpacked(digests))
    }
}

impl PendingCheck<'_> {
    fn wait_for(self, mark: &Mark) -> Result<Vec<PackedCheck>> {
        Ok(match self {
            PendingCheck::Unpacked(digests) => {
                digests.wait_for(mark)?.into_iter().map(PackedCheck::Unpacks).collect()
            }
            PendingCheck::Compared(differs) => {
                differs.wait_for(mark)?.into_iter().map(PackedCheck::Differs).collect()
            }
        })
    }
}

fn piece_of(load: &Load) -> &Piece {
    match load {
        Load::Direct(direct) => &direct.piece,
        Load::Staged(job) => &job.staged.piece,
    }
}

impl<'a> Haul<DirectPiece, StagedPiece, StagingBuffer> for Lane<'a> {
    type Sent = Sent<'a>;

    fn room(&self) -> LaneRoom {
        self.carriers.room(self.mover, self.feed)
    }

    fn go_on(&self) -> Result<()> {
        let step = match self.feed.handover.way() {
            Way::Out => TurnStep::CopyingOut,
            Way::In => TurnStep::CopyingIn,
        };
        self.limit.ask(step, || self.feed.progress())
    }

    fn buffer(&self) -> Result<StagingBuffer> {
        Ok(self.carriers.device().host_memory_here(Bytes(BUFFER))?)
    }

    fn send(&self, load: &Load) -> Result<Sent<'a>> {
        let on_host = match load {
            Load::Direct(direct) => (&direct.memory, direct.piece.at),
            Load::Staged(job) => (&job.buffer, job.staged.piece.in_buffer()),
        };
        let piece = piece_of(load);
        self.feed.shares.count(self.mover, piece.form);
        let sent = self.send_piece(piece, on_host)?;
        let checks = self.feed.checks && piece.form == Form::Packed;
        let check = checks.then(|| self.check(piece, on_host, sent)).transpose()?;
        let (_, stream) = sent;
        Ok(Sent { stream, mark: twice(|| stream.mark())?, check })
    }

    fn wait(&self, load: &Load, sent: Sent<'a>) -> Result<()> {
        let Sent { stream, mark, check } = sent;
        twice(|| stream.wait(&mark))?;
        if let Some(check) = check {
            self.feed.checked(piece_of(load), check.wait_for(&mark)?);
        }
        Ok(())
    }

    fn copy(&self, job: &Job, part: usize) -> Result<()> {
        Ok(job.staged.copy(&job.buffer, self.feed.handover.way(), part)?)
    }

    fn direct_arrived(&self, direct: &DirectPiece) {
        self.feed.arrived(&direct.piece);
    }

    fn staged_arrived(&self, staged: &StagedPiece) {
        self.feed.arrived(&staged.piece);
    }
}
