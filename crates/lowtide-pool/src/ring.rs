//! A ring: a little device memory through which packed pieces go.
//!
//! A copy engine reads and writes host memory faster than a kernel does. So a piece is packed into
//! device memory and copied from there, or copied there and unpacked. Each stream that packs has a
//! place of its own, and its order is enough: no stream waits for another. The memory is had for one
//! turn, and only where the device has plenty; without it, kernels use host memory themselves.

use lowtide_device::{Bytes, Device, Reservation, Result};

use crate::backup::PAGE;
use crate::carry::PACKING_STREAMS;
use crate::piece::PIECE;
use crate::policy::Policy;
use crate::slab::Form;

const PLACE: u64 = PIECE / PAGE * Form::Packed.bytes();
const SIZE: Bytes = Bytes((PLACE * PACKING_STREAMS as u64).next_multiple_of(PAGE));

/// Device memory with a place for each stream that packs.
pub(crate) struct Ring {
    reservation: Reservation,
}

impl Ring {
    /// Makes a ring, where the policy packs and the device has room for it beside what is needed. Without
    /// one, or where it is refused, a turn does as well, only slower.
    pub(crate) fn open(device: &Device, policy: &Policy, needed: Bytes) -> Option<Ring> {
        if !policy.packing || !device.packs() {
            return None;
        }
        // Twice, because others allocate, too, and a wake must not fail for it.
        let has_room = |free: Bytes| free.saturating_sub(needed) >= Bytes(2 * SIZE.0);
        if !device.usage().is_ok_and(|usage| has_room(usage.free)) {
            return None;
        }
        let ring = Ring::made(device);
        ring.inspect_err(|error| tracing::info!(%error, "no ring for packed pieces")).ok()
    }

    fn made(device: &Device) -> Result<Ring> {
        let reservation = device.reserve(SIZE)?;
        reservation.map(Bytes::ZERO, device.create(SIZE)?)?;
        reservation.open(Bytes::ZERO, SIZE)?;
        Ok(Ring { reservation })
    }

    /// Returns the place of a stream.
    pub(crate) fn place(&self, stream: usize) -> (&Reservation, Bytes) {
        (&self.reservation, Bytes(stream as u64 * PLACE))
    }
}
