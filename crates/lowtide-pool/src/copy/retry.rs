//! Calls of the device that are tried once more.

use std::ops::Range;

use lowtide_device::{Bytes, Chunk, Reservation};

/// Does what the device may refuse, and once more if it does: one refusal says little, and a turn
/// that is undone costs more than a second try.
pub(crate) fn twice<T, E>(mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    work().or_else(|_| work())
}

/// Takes one chunk from its place, at the second try if need be.
pub(crate) fn unmap(
    reservation: &Reservation,
    range: &Range<u64>,
) -> lowtide_device::Result<Chunk> {
    twice(|| unmap_once(reservation, range))
}

/// Takes one chunk from its place.
pub(crate) fn unmap_once(
    reservation: &Reservation,
    range: &Range<u64>,
) -> lowtide_device::Result<Chunk> {
    let (at, size) = (Bytes(range.start), Bytes(range.end - range.start));
    let taken = reservation.unmap(at, size)?;
    Ok(taken.into_iter().next().expect("one chunk is mapped there").1)
}
