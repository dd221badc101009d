//! Streams: work in order, later, with everything it touches kept alive until it is done.
//!
//! A copy pins its range of the reservation and its host memory. The pins go when the stream is known
//! to have passed the copy, by [`Stream::synchronize`], [`Stream::wait`] or [`Stream::has_passed`]. So
//! no safe call can unmap memory that a copy uses; on a GPU that would cost the whole context.
//!
//! Every wait here is for one stream or one event. None is for a whole context, which would end a
//! graph capture in it.
#![allow(unsafe_code, reason = "calls the back end, whose preconditions are kept here")]

mod packed;
mod pending;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::{BackendStream, RawMark};
use crate::facts::{RangeProblem, SizeRule};
use crate::page::digest::{Keys, PAGE_BYTES};
use crate::safe::host_memory::HostPiece;
use crate::safe::in_flight::{InFlight, Pins, WorkNumber};
use crate::safe::shared::Shared;
use crate::safe::staging::Staging;
use crate::{Address, Bytes, Error, HostMemory, Reservation, Result};

pub use packed::{PackedPages, PendingLooks};
pub use pending::PendingDigests;

use pending::Pending;

/// A queue of device work. Dropping it waits for the work it was given.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// # fn main() -> lowtide_device::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(8)), ..HostOptions::default() })?;
/// let (reservation, size) = (device.reserve(Bytes::mib(2))?, Bytes::mib(2));
/// reservation.map(Bytes::ZERO, device.create(size)?)?;
/// reservation.open(Bytes::ZERO, size)?;
/// let (stream, memory) = (device.stream()?, device.host_memory(size)?);
/// memory.write(Bytes::ZERO, b"weights")?;
/// stream.copy_in((&memory, Bytes::ZERO), (&reservation, Bytes::ZERO), size)?;
/// let copied = stream.mark()?;
/// stream.wait(&copied)?;
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    device: Arc<Shared>,
    raw: Arc<dyn BackendStream>,
    in_flight: InFlight,
}

/// A point in a stream: everything given before it.
pub struct Mark {
    device: Arc<Shared>,
    stream: Arc<dyn BackendStream>,
    raw: RawMark,
    given: WorkNumber,
}

impl Stream {
    pub(crate) fn new(device: &Arc<Shared>) -> Result<Stream> {
        let raw = Arc::from(device.backend.stream()?);
        Ok(Stream { device: Arc::clone(device), raw, in_flight: InFlight::default() })
    }

    /// Returns a number that no other stream of this kind of device has or had in this process.
    /// (A driver's handles come back with other streams; this number does not.)
    pub fn id(&self) -> u64 {
        self.raw.id()
    }

    /// Copies from the device to host memory, later.
    ///
    /// # Errors
    /// [`crate::Error::BadRange`] if either range is not mapped, open and in bounds, or the driver's
    /// error.
    pub fn copy_out(
        &self,
        (from, offset): (&Reservation, Bytes),
        (to, host_offset): (&Arc<HostMemory>, Bytes),
        size: Bytes,
    ) -> Result<()> {
        self.copy("copy_out", (from, offset), (to, host_offset), size, |from, to, size| {
            // SAFETY: both ranges are pinned until the stream has passed; a piece lies within one
            // registration.
            unsafe { self.raw.copy_out(from, to, size) }
        })
    }

    // Gives a copy between the device and the host, piece by piece of registered memory.
    fn copy(
        &self,
        operation: &'static str,
        (reservation, offset): (&Reservation, Bytes),
        (memory, host_offset): (&Arc<HostMemory>, Bytes),
        size: Bytes,
        copy: impl Fn(Address, *mut u8, Bytes) -> Result<()>,
    ) -> Result<()> {
        let space = &reservation.space;
        space.same_device(operation, "stream", &self.device)?;
        space.same_device(operation, "host memory", memory.device())?;
        let range = space.pin(operation, offset, size)?;
        let host = memory.pin(operation, host_offset, size)?;
        let mut pieces = host.pieces(host_offset, size).into_iter();
        self.give(Pins { ranges: vec![range], host: Some(host) }, || {
            pieces.try_for_each(|HostPiece { at, size, before }| {
                copy(space.address_of(offset + before), at, size)
            })
        })
    }

    /// Copies from host memory to the device, later.
    ///
    /// # Errors
    /// As [`Stream::copy_out`].
    pub fn copy_in(
        &self,
        (from, host_offset): (&Arc<HostMemory>, Bytes),
        (to, offset): (&Reservation, Bytes),
        size: Bytes,
    ) -> Result<()> {
        self.copy("copy_in", (to, offset), (from, host_offset), size, |to, from, size| {
            // SAFETY: as in `copy_out`.
            unsafe { self.raw.copy_in(from, to, size) }
        })
    }

    /// Copies from host memory to the device like [`Stream::copy_in`], with a kernel that reads the host
    /// memory. The copy engine is a little faster, but not right after much memory was given back: the
    /// driver clears that memory with the same engine.
    ///
    /// # Errors
    /// As [`Stream::copy_out`]; [`Error::BadSize`] unless size and offsets are multiples of 4 KiB.
    ///
    /// ```
    /// use lowtide_device::{Bytes, Device, HostOptions};
    /// # fn main() -> lowtide_device::Result<()> {
    /// let device = Device::host(HostOptions { budget: Some(Bytes::mib(8)), ..HostOptions::default() })?;
    /// let (reservation, size) = (device.reserve(Bytes::mib(2))?, Bytes::mib(2));
    /// reservation.map(Bytes::ZERO, device.create(size)?)?;
    /// reservation.open(Bytes::ZERO, size)?;
    /// let (stream, memory) = (device.stream()?, device.host_memory(size)?);
    /// if device.copies_by_kernel() {
    ///     stream.copy_in_by_kernel((&memory, Bytes::ZERO), (&reservation, Bytes::ZERO), size)?;
    /// }
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_in_by_kernel(
        &self,
        (from, host_offset): (&Arc<HostMemory>, Bytes),
        (to, offset): (&Reservation, Bytes),
        size: Bytes,
    ) -> Result<()> {
        let is_whole = |bytes: &Bytes| bytes.is_multiple_of(Bytes::kib(4));
        if ![host_offset, offset, size].iter().all(is_whole) {
            let (device, operation) = (self.device.id(), "copy_in_by_kernel");
            return Err(Error::BadSize { device, operation, size, rule: SizeRule::KernelCopies });
        }
        self.copy("copy_in_by_kernel", (to, offset), (from, host_offset), size, |to, from, size| {
            // SAFETY: as in `copy_out`; registrations begin and end at whole pages.
            unsafe { self.raw.copy_in_by_kernel(from, to, size) }
        })
    }

    /// Copies between two ranges of the device, later.
    ///
    /// # Errors
    /// As [`Stream::copy_out`]; [`crate::Error::BadRange`] if the ranges overlap.
    ///
    /// ```
    /// use lowtide_device::{Bytes, Device, HostOptions};
    /// # fn main() -> lowtide_device::Result<()> {
    /// let device = Device::host(HostOptions { budget: Some(Bytes::mib(4)), ..HostOptions::default() })?;
    /// let (pages, stream) = (device.reserve(Bytes::mib(4))?, device.stream()?);
    /// pages.map(Bytes::ZERO, device.create(Bytes::mib(4))?)?;
    /// pages.open(Bytes::ZERO, Bytes::mib(4))?;
    /// stream.copy_within((&pages, Bytes::ZERO), (&pages, Bytes::mib(2)), Bytes::mib(2))?;
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_within(
        &self,
        (from, offset): (&Reservation, Bytes),
        (to, to_offset): (&Reservation, Bytes),
        size: Bytes,
    ) -> Result<()> {
        from.space.same_device("copy_within", "stream", &self.device)?;
        to.space.same_device("copy_within", "stream", &self.device)?;
        let read = from.space.pin("copy_within", offset, size)?;
        let written = to.space.pin("copy_within", to_offset, size)?;
        let (from, to) = (from.space.address_of(offset), to.space.address_of(to_offset));
        if from.0 < to.0 + size.0 && to.0 < from.0 + size.0 {
            return Err(Error::BadRange {
                device: self.device.id(),
                operation: "copy_within",
                offset: to_offset,
                size,
                problem: RangeProblem::Overlaps,
            });
        }
        self.give(Pins { ranges: vec![read, written], host: None }, || {
            // SAFETY: both ranges are pinned until the stream has passed, and do not overlap.
            unsafe { self.raw.copy_within(from, to, size) }
        })
    }

    /// Sets every byte of a range, later.
    ///
    /// # Errors
    /// As [`Stream::copy_out`].
    pub fn fill(&self, (to, offset): (&Reservation, Bytes), byte: u8, size: Bytes) -> Result<()> {
        to.space.same_device("fill", "stream", &self.device)?;
        let range = to.space.pin("fill", offset, size)?;
        self.give(Pins { ranges: vec![range], host: None }, || {
            // SAFETY: the range is pinned until the stream has passed.
            unsafe { self.raw.fill(to.space.address_of(offset), byte, size) }
        })
    }

    /// Computes the digest of every page of a range, on the device, later.
    ///
    /// # Errors
    /// As [`Stream::copy_out`]; the range must be whole pages.
    pub fn digest(
        &self,
        (of, offset): (&Reservation, Bytes),
        size: Bytes,
        keys: &Keys,
    ) -> Result<PendingDigests<'_>> {
        let range = of.space.range("digest", offset, size)?;
        self.digest_ranges(of, &[range], keys)
    }

    /// Computes the digest of every page of several ranges of bytes, in their order, as one piece of
    /// work: many small ranges cost as much as one. Without a range there are no digests.
    ///
    /// # Errors
    /// As [`Stream::digest`], for the first range that cannot be used; nothing is then computed.
    ///
    /// ```
    /// use lowtide_device::digest::Keys;
    /// use lowtide_device::{Bytes, Device, HostOptions};
    /// # fn main() -> lowtide_device::Result<()> {
    /// let device = Device::host(HostOptions { budget: Some(Bytes::mib(8)), ..HostOptions::default() })?;
    /// let (reservation, stream) = (device.reserve(Bytes::mib(8))?, device.stream()?);
    /// reservation.map(Bytes::ZERO, device.create(Bytes::mib(8))?)?;
    /// reservation.open(Bytes::ZERO, Bytes::mib(8))?;
    /// let (page, keys) = (Bytes::mib(2).0, Keys::of_this_process());
    /// let digests = stream.digest_ranges(&reservation, &[2 * page..4 * page, 0..page], keys)?;
    /// assert_eq!(digests.wait()?.len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn digest_ranges(
        &self,
        of: &Reservation,
        ranges: &[Range<u64>],
        keys: &Keys,
    ) -> Result<PendingDigests<'_>> {
        let launch = |staging: &Staging, count| {
            // SAFETY: the pages are pinned; the staging lives until the pending digests have waited.
            unsafe { self.raw.digest(staging.list(), staging.digests(), count, keys) }
        };
        self.of_pages("digest", of, ranges, launch).map(PendingDigests)
    }

    // Gives work on every page of some ranges, whose results come through staging memory.
    fn of_pages(
        &self,
        operation: &'static str,
        of: &Reservation,
        ranges: &[Range<u64>],
        launch: impl Fn(&Staging, usize) -> Result<()>,
    ) -> Result<Pending<'_>> {
        of.space.same_device(operation, "stream", &self.device)?;
        let (mut pins, mut pages) = (Vec::with_capacity(ranges.len()), Vec::new());
        for range in ranges {
            let size = self.whole_pages(operation, range)?;
            pins.push(of.space.pin(operation, Bytes(range.start), size)?);
            let offsets = range.clone().step_by(PAGE_BYTES);
            pages.extend(offsets.map(|offset| of.space.address_of(Bytes(offset))));
        }
        let count = pages.len();
        if count == 0 {
            let given = WorkNumber::default();
            return Ok(Pending { stream: self, staging: None, pages: 0, given });
        }
        let mut staging = self.device.take_staging(count)?;
        staging.write(&pages);
        self.give_staged(Pins { ranges: pins, host: None }, staging, count, launch)
    }

    // From here on the staging comes back through the pending results, whatever happens.
    fn give_staged(
        &self,
        pins: Pins,
        staging: Staging,
        pages: usize,
        launch: impl Fn(&Staging, usize) -> Result<()>,
    ) -> Result<Pending<'_>> {
        let given = WorkNumber::default();
        let mut pending = Pending { stream: self, staging: Some(staging), pages, given };
        self.give(pins, || pending.staging.iter().try_for_each(|staging| launch(staging, pages)))?;
        // Another thread may have given work meanwhile; a later number is right, too.
        pending.given = self.in_flight.given();
        Ok(pending)
    }

    fn whole_pages(&self, operation: &'static str, range: &Range<u64>) -> Result<Bytes> {
        let page = Bytes(PAGE_BYTES as u64);
        let size = range.end.checked_sub(range.start).map(Bytes);
        match size.filter(|_| Bytes(range.start).is_multiple_of(page)) {
            Some(size) if size.is_multiple_of(page) => Ok(size),
            _ => Err(Error::BadSize {
                device: self.device.id(),
                operation,
                size: size.unwrap_or_default(),
                rule: SizeRule::DigestPages(page),
            }),
        }
    }

    /// Marks the point up to which work has been given.
    ///
    /// # Errors
    /// The driver's error.
    pub fn mark(&self) -> Result<Mark> {
        self.device.check_process()?;
        let given = self.in_flight.given();
        let raw = self.raw.mark()?;
        Ok(Mark { device: Arc::clone(&self.device), stream: Arc::clone(&self.raw), raw, given })
    }

    /// Waits until the stream has passed a mark, and lets go of what only earlier work used. Waits for
    /// no other stream.
    ///
    /// # Errors
    /// The error of the work before the mark, or the driver's error.
    ///
    /// # Panics
    /// If the mark belongs to another stream.
    pub fn wait(&self, mark: &Mark) -> Result<()> {
        assert!(Arc::ptr_eq(&self.raw, &mark.stream), "a mark is waited for on its own stream");
        self.device.check_process()?;
        // SAFETY: the mark is of this stream and was not forgotten: it lives.
        unsafe { self.raw.wait(mark.raw) }?;
        self.in_flight.passed(mark.given);
        Ok(())
    }

    /// Waits for everything given to this stream so far, and for no other stream.
    ///
    /// # Errors
    /// The error of that work, or the driver's error.
    pub fn synchronize(&self) -> Result<()> {
        self.device.check_process()?;
        let given = self.in_flight.given();
        self.raw.synchronize()?;
        self.in_flight.passed(given);
        Ok(())
    }

    /// Returns whether everything given so far is done, without waiting. If it is, lets go of what that
    /// work used, as [`Stream::synchronize`] does.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn has_passed(&self) -> Result<bool> {
        self.device.check_process()?;
        let given = self.in_flight.given();
        let done = self.raw.is_done()?;
        if done {
            self.in_flight.passed(given);
        }
        Ok(done)
    }

    fn give(&self, pins: Pins, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.device.check_process()?;
        let given = work();
        self.in_flight.keep(pins);
        given
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.device.is_own() {
            // A thread of the parent may have been at work here when this process was forked.
            std::mem::forget((std::mem::take(&mut self.in_flight), Arc::clone(&self.raw)));
            return;
        }
        if !self.device.takes_back() {
            return;
        }
        let raw = Arc::clone(&self.raw);
        let mut pins = self.in_flight.take();
        self.device.give_back("stream", move |_| {
            std::mem::take(&mut pins).release_when_passed(raw.as_ref());
            // SAFETY: this was the stream's owner; marks hold it only to be forgotten.
            unsafe { raw.destroy() }
        });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.device.is_own() {
            return write!(f, "Stream({}, of a parent process)", self.device.id());
        }
        write!(f, "Stream({}, {} in flight)", self.device.id(), self.in_flight.count())
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let (stream, raw) = (Arc::clone(&self.stream), self.raw);
        self.device.give_back("mark", move |_| {
            // SAFETY: this owned the mark.
            unsafe { stream.forget(raw) }
        });
    }
}
