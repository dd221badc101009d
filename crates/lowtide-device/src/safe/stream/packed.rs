//! Packing on a stream: looks, packing and unpacking.

use std::ops::Range;
use std::sync::Arc;

use super::Stream;
use super::pending::Pending;
use crate::facts::SizeRule;
use crate::page::digest::PAGE_BYTES;
use crate::page::packing::{Look, PACKED_AT_ONCE, PACKED_BYTES};
use crate::safe::in_flight::Pins;
use crate::safe::staging::Staging;
use crate::{Address, Bytes, Error, HostMemory, Reservation, Result};

/// Looks that a stream is taking. Dropping them waits for the stream.
pub struct PendingLooks<'a>(Pending<'a>);

/// Neighbouring packed pages, by where they begin: in registered host memory, or on the device.
#[derive(Clone, Copy)]
pub enum PackedPages<'a> {
    /// In host memory.
    Host(&'a Arc<HostMemory>, Bytes),
    /// On the device.
    Device(&'a Reservation, Bytes),
}

impl<'a> From<(&'a Arc<HostMemory>, Bytes)> for PackedPages<'a> {
    fn from((memory, offset): (&'a Arc<HostMemory>, Bytes)) -> PackedPages<'a> {
        PackedPages::Host(memory, offset)
    }
}

impl<'a> From<(&'a Reservation, Bytes)> for PackedPages<'a> {
    fn from((reservation, offset): (&'a Reservation, Bytes)) -> PackedPages<'a> {
        PackedPages::Device(reservation, offset)
    }
}

/// Packed pages: their address, and what pins them and their pages.
struct Packed {
    at: Address,
    pins: Pins,
}

impl Stream {
    /// Looks at every page of several ranges of bytes, in their order, later: whether it packs.
    ///
    /// # Errors
    /// As [`Stream::digest_ranges`].
    pub fn look_ranges(&self, of: &Reservation, ranges: &[Range<u64>]) -> Result<PendingLooks<'_>> {
        let pending = self.of_pages("look", of, ranges, |staging, count| {
            // SAFETY: the pages are pinned; the staging lives until the pending looks have waited.
            unsafe { self.raw.look(staging.list(), staging.words(), count) }
        });
        pending.map(PendingLooks)
    }

    /// Packs neighbouring pages of the device to neighbouring packed pages on the host or the device,
    /// later, each with the base of its look.
    ///
    /// # Errors
    /// As [`Stream::copy_out`]; [`Error::BadSize`] for more than [`PACKED_AT_ONCE`] pages, or packed
    /// pages that do not begin at a multiple of 4 KiB.
    ///
    /// ```
    /// use lowtide_device::packing::PACKED_BYTES;
    /// use lowtide_device::{Bytes, Device, HostOptions};
    /// # fn main() -> lowtide_device::Result<()> {
    /// let device = Device::host(HostOptions { budget: Some(Bytes::mib(8)), ..HostOptions::default() })?;
    /// let (reservation, stream) = (device.reserve(Bytes::mib(2))?, device.stream()?);
    /// reservation.map(Bytes::ZERO, device.create(Bytes::mib(2))?)?;
    /// reservation.open(Bytes::ZERO, Bytes::mib(2))?;
    /// let (page, packed) = ((&reservation, Bytes::ZERO), device.host_memory(Bytes(PACKED_BYTES as u64))?);
    /// let look = stream.look_ranges(&reservation, &[0..Bytes::mib(2).0])?.wait()?[0];
    /// if look.packs() {
    ///     stream.pack(page, (&packed, Bytes::ZERO), &[look.base])?;
    ///     stream.unpack((&packed, Bytes::ZERO), page, 1)?;
    /// }
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pack<'a>(
        &self,
        (from, offset): (&Reservation, Bytes),
        to: impl Into<PackedPages<'a>>,
        bases: &[u8],
    ) -> Result<()> {
        let count = bases.len();
        let Packed { at, pins } = self.packed("pack", (from, offset), to.into(), count)?;
        self.give(pins, || {
            // SAFETY: both ranges are pinned until the stream has passed.
            unsafe { self.raw.pack(from.space.address_of(offset), at, bases) }
        })
    }

    /// Unpacks neighbouring pages, later. Nothing but these pages is written, whatever the packed ones
    /// hold; whether they are right, their digests tell.
    ///
    /// # Errors
    /// As [`Stream::pack`].
    pub fn unpack<'a>(
        &self,
        from: impl Into<PackedPages<'a>>,
        (to, offset): (&Reservation, Bytes),
        count: usize,
    ) -> Result<()> {
        let Packed { at, pins } = self.packed("unpack", (to, offset), from.into(), count)?;
        self.give(pins, || {
            // SAFETY: both ranges are pinned until the stream has passed.
            unsafe { self.raw.unpack(at, to.space.address_of(offset), count) }
        })
    }

    fn packed(
        &self,
        operation: &'static str,
        (pages, offset): (&Reservation, Bytes),
        packed: PackedPages<'_>,
        count: usize,
    ) -> Result<Packed> {
        pages.space.same_device(operation, "stream", &self.device)?;
        let bad = || Error::BadSize {
            device: self.device.id(),
            operation,
            size: Bytes((count * PAGE_BYTES) as u64),
            rule: SizeRule::PackedPages(PACKED_AT_ONCE),
        };
        let (PackedPages::Host(_, begin) | PackedPages::Device(_, begin)) = packed;
        if count == 0 || count > PACKED_AT_ONCE || !begin.is_multiple_of(Bytes::kib(4)) {
            return Err(bad());
        }
        let size = Bytes((count * PACKED_BYTES) as u64);
        let range = pages.space.pin(operation, offset, Bytes((count * PAGE_BYTES) as u64))?;
        let mut pins = Pins { ranges: vec![range], host: None };
        let at = match packed {
            PackedPages::Host(memory, begin) => {
                pages.space.same_device(operation, "host memory", memory.device())?;
                let host = memory.pin(operation, begin, size)?;
                let pieces = host.pieces(begin, size);
                let [piece] = &pieces[..] else { return Err(bad()) };
                let at = Address(piece.at.expose_provenance() as u64);
                pins.host = Some(host);
                at
            }
            PackedPages::Device(reservation, begin) => {
                reservation.space.same_device(operation, "stream", &self.device)?;
                pins.ranges.push(reservation.space.pin(operation, begin, size)?);
                reservation.space.address_of(begin)
            }
        };
        Ok(Packed { at, pins })
    }
}

impl PendingLooks<'_> {
    /// Waits for the stream and reads the looks, page by page.
    ///
    /// # Errors
    /// The error of the stream's work.
    pub fn wait(self) -> Result<Vec<Look>> {
        let words = self.0.wait(Staging::read_words)?;
        Ok(words.into_iter().map(Look::from_word).collect())
    }
}
