//! Packing: pages of bf16 values are stored on the host in three quarters of their size.
//!
//! This file alone knows the forms in which a page is stored: which pages pack, how a piece of either form
//! goes over the link, how a packed page is checked, and how large a slot for it is. Each page decides for
//! itself; one that does not pack is copied as it is.
//!
//! A copy engine reads and writes host memory faster than a kernel does. So a piece is packed into a ring,
//! which is a little device memory, and copied from there; or it is copied there and unpacked. Each stream
//! that packs has a place of its own in the ring, and its order is enough: no stream waits for another. The
//! memory is had for one turn, and only where the device has plenty. Without it a sleep packs nothing, and in
//! a wake kernels read host memory themselves.

use std::ops::Range;
use std::sync::Arc;

use lowtide_device::digest::{Keys, PAGE_BYTES};
use lowtide_device::packing::{self, PACKED_BYTES, PackedFault};
use lowtide_device::{
    Bytes, Device, HostMemory, PendingDigests, PendingLooks, Reservation, Result, Stream,
};

use crate::policy::{PAGE, PIECE, Policy};

/// The number of streams that pack and unpack through the ring: one copies while a kernel of another runs.
pub(crate) const PACKING_STREAMS: usize = 3;

/// The size of a packed piece.
const PACKED_PIECE: u64 = PIECE / PAGE * Form::Packed.bytes();

/// A location on the device.
pub(crate) type OnDevice<'a> = (&'a Reservation, Bytes);

/// A location in host memory that the device knows.
pub(crate) type OnHost<'a> = (&'a Arc<HostMemory>, Bytes);

/// Returns whether pages are packed: the policy says so, and the device can.
pub(crate) fn is_on(device: &Device, policy: &Policy) -> bool {
    policy.packing && device.packs()
}

/// Looks at pages on the device. Returns for each the base with which it packs, if it does.
pub(crate) fn look(
    stream: &Stream,
    of: &Reservation,
    ranges: &[Range<u64>],
) -> Result<Vec<Option<u8>>> {
    let looks = stream.look_ranges(of, ranges).and_then(PendingLooks::wait)?;
    Ok(looks.into_iter().map(|look| look.packs().then_some(look.base)).collect())
}

/// The form in which a page is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// As it is on the device.
    Raw,
    /// Packed ([`lowtide_device::packing`]).
    Packed,
}

impl Form {
    /// Returns the form of a page that packs with this base, or does not pack.
    pub(crate) fn of(base: Option<u8>) -> Form {
        if base.is_some() { Form::Packed } else { Form::Raw }
    }

    /// Returns the size of a slot.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Form::Raw => PAGE,
            Form::Packed => PACKED_BYTES as u64,
        }
    }

    /// Returns the content of a stored page, or what is wrong with a packed one by itself.
    pub(crate) fn content(self, stored: Vec<u8>) -> Result<Vec<u8>, PackedFault> {
        if self == Form::Raw {
            return Ok(stored);
        }
        packing::check(&stored)?;
        let mut content = vec![0; PAGE_BYTES];
        packing::unpack(&stored, &mut content);
        Ok(content)
    }
}

/// The form of the neighbouring pages of a piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceForm {
    pub(crate) form: Form,
    pages: usize,
    /// The bases of the pages, where they are packed on the way out.
    bases: [u8; (PIECE / PAGE) as usize],
}

impl PieceForm {
    /// Returns the form of so many pages.
    pub(crate) fn new(form: Form, pages: usize) -> PieceForm {
        PieceForm { form, pages, bases: Default::default() }
    }

    /// Returns the form of pages that are packed with these bases, or not at all.
    pub(crate) fn with_bases(
        form: Form,
        bases: impl ExactSizeIterator<Item = Option<u8>>,
    ) -> PieceForm {
        let mut piece = PieceForm::new(form, bases.len());
        for (to, base) in piece.bases.iter_mut().zip(bases) {
            *to = base.unwrap_or_default();
        }
        piece
    }

    /// Returns the size on the device.
    pub(crate) fn size(&self) -> Bytes {
        Bytes(self.pages as u64 * PAGE)
    }

    /// Returns the size on the host.
    pub(crate) fn host_size(&self) -> Bytes {
        Bytes(self.pages as u64 * self.form.bytes())
    }

    /// Gives the copy of a piece to the host to a stream. Where the ring checks, returns the digests of what
    /// the packed pages unpack to.
    ///
    /// # Panics
    /// For packed pages without a place in a ring.
    pub(crate) fn copy_out<'s>(
        &self,
        stream: &'s Stream,
        from: OnDevice<'_>,
        to: OnHost<'_>,
        place: Option<RingPlace<'_>>,
    ) -> Result<Option<PendingDigests<'s>>> {
        if self.form == Form::Raw {
            return stream.copy_out(from, to, self.size()).map(|()| None);
        }
        let RingPlace { packed, unpacked } = place.expect("pages are packed through a ring");
        stream.pack(from, packed, &self.bases[..self.pages])?;
        stream.copy_out(packed, to, self.host_size())?;
        let Some(unpacked) = unpacked else { return Ok(None) };
        stream.unpack(packed, unpacked, self.pages)?;
        stream.digest(unpacked, self.size(), Keys::of_this_process()).map(Some)
    }

    /// Gives the copy of a piece to the device to a stream. Without a place in a ring, a kernel reads packed
    /// pages from host memory; `by_kernel`, raw ones too.
    pub(crate) fn copy_in(
        &self,
        stream: &Stream,
        from: OnHost<'_>,
        to: OnDevice<'_>,
        place: Option<RingPlace<'_>>,
        by_kernel: bool,
    ) -> Result<()> {
        match (self.form, place) {
            (Form::Raw, _) if by_kernel => stream.copy_in_by_kernel(from, to, self.size()),
            (Form::Raw, _) => stream.copy_in(from, to, self.size()),
            (Form::Packed, None) => stream.unpack(from, to, self.pages),
            (Form::Packed, Some(RingPlace { packed, .. })) => {
                stream.copy_in(from, packed, self.host_size())?;
                stream.unpack(packed, to, self.pages)
            }
        }
    }
}

/// Device memory through which packed pieces go.
pub(crate) struct Ring {
    reservation: Reservation,
    parts: RingParts,
}

/// The parts of a ring, in their order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingParts {
    /// The number of streams that have a place for a packed piece.
    pub(crate) packed: usize,
    /// Set where each of them has a place to unpack a piece again, so that it can be checked.
    pub(crate) checks: bool,
    /// Set where there is a place for a snapshot of a piece that the program may change.
    pub(crate) snapshot: bool,
}

impl RingParts {
    fn unpacked_at(self) -> u64 {
        (self.packed as u64 * PACKED_PIECE).next_multiple_of(PAGE)
    }

    fn snapshot_at(self) -> u64 {
        self.unpacked_at() + if self.checks { self.packed as u64 * PIECE } else { 0 }
    }

    fn size(self) -> Bytes {
        Bytes(self.snapshot_at() + if self.snapshot { PIECE } else { 0 })
    }
}

/// The place of a stream in a ring.
#[derive(Clone, Copy)]
pub(crate) struct RingPlace<'a> {
    packed: OnDevice<'a>,
    /// Set where packed pieces are checked.
    unpacked: Option<OnDevice<'a>>,
}

impl Ring {
    /// Makes a ring, where the device has room for it beside what is needed.
    pub(crate) fn open(device: &Device, needed: Bytes, parts: RingParts) -> Option<Ring> {
        let (size, free) = (parts.size(), device.usage().ok()?.free.saturating_sub(needed));
        // Twice, because others allocate, too, and neither a wake nor an allocation must fail for it.
        if free < Bytes(2 * size.0) {
            return None;
        }
        let make = || {
            let reservation = device.reserve(size)?;
            reservation.map(Bytes::ZERO, device.create(size)?)?;
            reservation.open(Bytes::ZERO, size)?;
            Ok(Ring { reservation, parts })
        };
        make().inspect_err(|error: &lowtide_device::Error| tracing::info!(%error, "no ring")).ok()
    }

    /// Returns whether pages can be packed through it.
    pub(crate) fn packs(&self) -> bool {
        self.parts.packed > 0
    }

    /// Returns the place of a stream.
    pub(crate) fn place(&self, stream: usize) -> RingPlace<'_> {
        let number = (stream % self.parts.packed.max(1)) as u64;
        let at = |offset| (&self.reservation, Bytes(offset));
        let unpacked = || at(self.parts.unpacked_at() + number * PIECE);
        RingPlace { packed: at(number * PACKED_PIECE), unpacked: self.parts.checks.then(unpacked) }
    }

    /// Returns the place of a snapshot.
    pub(crate) fn snapshot(&self) -> OnDevice<'_> {
        debug_assert!(self.parts.snapshot, "it has a place for one");
        (&self.reservation, Bytes(self.parts.snapshot_at()))
    }
}
