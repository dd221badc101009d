//! Copying pages ahead of time: through a ring on the device.
//!
//! The program writes to its pages while they are copied. So a piece is first copied into a little memory that
//! only lowtide has. Its digests, its packed form and the bytes that go to the host are all made from there:
//! the digest of a backup is always that of its content. If the live page were read more than once, a page
//! that changes in between and changes back would match a backup that is wrong.

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{
    Bytes, Device, Error, PendingDifferences, PendingLooks, Reservation, Result, Stream,
};

use crate::backups::BackupPage;
use crate::backups::slab::Memory;
use crate::backups::slab::{Form, PAGE};
use crate::copy::handover::Way;
use crate::copy::piece::{BUFFER, Bases, PIECE, Piece, StagedPiece, StagingBuffer};
use crate::policy::Policy;

/// Where packed pages begin in the ring, behind the pages themselves.
const PACKED_AT: Bytes = Bytes(PIECE);
const PACKED: u64 = PIECE / PAGE * Form::Packed.bytes();

/// A ring on the device, and a staging buffer.
#[derive(Clone)]
pub(crate) struct Copier {
    ring: Reservation,
    buffer: StagingBuffer,
    packs: bool,
}

/// A page in the ring, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopiedPage {
    /// Which page of the ring it is.
    index: u64,
    pub(super) digest: Digest,
    /// The base with which it is packed; none where it is copied as it is.
    base: Option<u8>,
    pub(super) to: BackupPage,
}

impl CopiedPage {
    pub(super) fn form(&self) -> Form {
        if self.base.is_some() { Form::Packed } else { Form::Raw }
    }

    /// Returns whether two pages go in one copy.
    pub(super) fn is_before(&self, next: &CopiedPage) -> bool {
        self.index + 1 == next.index
            && (self.to.slab, self.to.page + 1) == (next.to.slab, next.to.page)
    }
}

impl Copier {
    /// Makes a ring and a buffer, where the device has room for more than that.
    pub(super) fn open(device: &Device, policy: &Policy) -> Result<Option<Copier>> {
        let packs = policy.packing && device.packs();
        let packed = if packs { PACKED.next_multiple_of(PAGE) } else { 0 };
        let size = Bytes(PIECE + packed);
        // Twice, because others allocate, too, and no allocation must fail for it.
        if device.usage()?.free < Bytes(2 * size.0) {
            return Ok(None);
        }
        let ring = device.reserve(size)?;
        match device.create(size) {
            Ok(chunk) => ring.map(Bytes::ZERO, chunk)?,
            Err(Error::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        ring.open(Bytes::ZERO, size)?;
        Ok(Some(Copier { ring, buffer: device.host_memory_here(Bytes(BUFFER))?, packs }))
    }

    /// Copies neighbouring pages into the ring, at most a piece. Returns what they are there, or `None` where
    /// they are not mapped any more.
    pub(super) fn read(
        &self,
        stream: &Stream,
        from: (&Reservation, Bytes),
        pages: usize,
    ) -> Result<Option<Vec<CopiedPage>>> {
        let (ring, size) = ((&self.ring, Bytes::ZERO), Bytes(pages as u64 * PAGE));
        match stream.copy_within(from, ring, size) {
            Err(Error::BadRange { .. }) => return Ok(None),
            given => given?,
        }
        let digests = stream.digest(ring, size, Keys::of_this_process())?;
        let looks = self.packs.then(|| stream.look_ranges(&self.ring, &[0..size.0])).transpose()?;
        let digests = digests.wait()?;
        let looks = looks.map(PendingLooks::wait).transpose()?;
        let base = |page: usize| {
            let look = looks.as_ref()?.get(page)?;
            look.packs().then_some(look.base)
        };
        let nowhere = BackupPage { slab: u32::MAX, page: u32::MAX, form: Form::Raw };
        let page = |(page, digest)| CopiedPage {
            index: page as u64,
            digest,
            base: base(page),
            to: nowhere,
        };
        Ok(Some(digests.into_iter().enumerate().map(page).collect()))
    }

    /// Copies neighbouring pages of the ring to neighbouring slots, and waits until they are there. Returns for
    /// each whether its packed form is wrong.
    pub(super) fn send(
        &self,
        stream: &Stream,
        pages: &[CopiedPage],
        memory: &Memory,
        policy: &Policy,
    ) -> Result<Vec<bool>> {
        let (first, mut bases) = (pages[0], Bases::default());
        for (base, page) in bases.iter_mut().zip(pages) {
            *base = page.base.unwrap_or_default();
        }
        let piece = Piece {
            chunk: 0,
            reservation: self.ring.clone(),
            offset: first.index * PAGE,
            memory: memory.clone(),
            at: first.to.offset(),
            size: Bytes(pages.len() as u64 * PAGE),
            form: first.to.form,
            bases,
        };
        let (raw, packed) = ((&self.ring, Bytes(piece.offset)), (&self.ring, PACKED_AT));
        let to_host = match memory {
            Memory::Direct(memory) => (memory, piece.at),
            Memory::Plain(_) => (&self.buffer, piece.in_buffer()),
        };
        let compared = match piece.form {
            Form::Raw => {
                stream.copy_out(raw, to_host, piece.size)?;
                None
            }
            Form::Packed => {
                stream.pack(raw, packed, &piece.bases[..pages.len()])?;
                // All of them: it takes no part of the link.
                let compares = policy.compare_each > 0;
                let compared = compares.then(|| stream.differs(packed, raw, pages.len()));
                stream.copy_out(packed, to_host, piece.host_size())?;
                compared.transpose()?
            }
        };
        let differs = compared.map(PendingDifferences::wait).transpose()?;
        stream.synchronize()?;
        let is_wrong = differs.unwrap_or_else(|| vec![false; pages.len()]);
        if let Memory::Plain(pages) = memory {
            let staged = StagedPiece { pages: pages.clone(), piece };
            (0..staged.piece.parts())
                .try_for_each(|part| staged.copy(&self.buffer, Way::Out, part))?;
        }
        Ok(is_wrong)
    }
}
