//! A ring: a little device memory through which packed pieces go.
//!
//! A copy engine reads and writes host memory faster than a kernel does. So a piece is packed into
//! device memory and copied from there, or copied there and unpacked. Each stream that packs has a
//! place of its own, and its order is enough: no stream waits for another. The memory is had for one
//! turn, and only where the device has plenty; without it, kernels use host memory themselves.
//!
//! A sleep that checks what it packs has a second place for each stream: there the packed pages are
//! unpacked, and digested.

use lowtide_device::{Bytes, Device, Reservation, Result};

use crate::backups::slab::{Form, PAGE};
use crate::copy::piece::PIECE;
use crate::policy::Policy;

/// The number of streams that pack and unpack: one copies while a kernel of another runs.
pub(crate) const PACKING_STREAMS: usize = 3;

/// A packed piece.
const PLACE: u64 = PIECE / PAGE * Form::Packed.bytes();
const PLACES: u64 = (PLACE * PACKING_STREAMS as u64).next_multiple_of(PAGE);
/// Pieces that were unpacked to be checked, behind the places of packed ones.
const UNPACKED: u64 = PIECE * PACKING_STREAMS as u64;

/// Device memory with a place for each stream that packs.
pub(crate) struct Ring {
    reservation: Reservation,
    checks: bool,
}

impl Ring {
    /// Makes a ring, where the policy packs and the device has room for it beside what is needed. Without
    /// one, or where it is refused, a turn does as well, only slower. Where there is no room for a check,
    /// the ring is for packing only.
    pub(crate) fn open(
        device: &Device,
        policy: &Policy,
        needed: Bytes,
        checks: bool,
    ) -> Option<Ring> {
        if !policy.packing || !device.packs() {
            return None;
        }
        let free = device.usage().ok()?.free.saturating_sub(needed);
        // Twice, because others allocate, too, and a wake must not fail for it.
        let has_room = |checks: &bool| free >= Bytes(2 * size(*checks).0);
        let checks = [checks, false].into_iter().find(has_room)?;
        let ring = Ring::made(device, checks);
        ring.inspect_err(|error| tracing::info!(%error, "no ring for packed pieces")).ok()
    }

    fn made(device: &Device, checks: bool) -> Result<Ring> {
        let size = size(checks);
        let reservation = device.reserve(size)?;
        reservation.map(Bytes::ZERO, device.create(size)?)?;
        reservation.open(Bytes::ZERO, size)?;
        Ok(Ring { reservation, checks })
    }

    /// Returns where a stream has its packed pieces.
    pub(crate) fn place(&self, stream: usize) -> (&Reservation, Bytes) {
        (&self.reservation, Bytes(stream as u64 * PLACE))
    }

    /// Returns where a stream unpacks a piece to check it.
    pub(crate) fn unpacked(&self, stream: usize) -> Option<(&Reservation, Bytes)> {
        let at = Bytes(PLACES + stream as u64 * PIECE);
        self.checks.then_some((&self.reservation, at))
    }
}

fn size(checks: bool) -> Bytes {
    Bytes(PLACES + if checks { UNPACKED } else { 0 })
}
