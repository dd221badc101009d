//! What cases of the conformance suite have in common: devices that are ready, and bytes to move.

use std::sync::Arc;

use lowtide_device::{Bytes, Chunk, Device, HostMemory, Reservation, Stream};

use crate::suite::Target;

/// The page of every device so far.
pub(super) const PAGE: Bytes = Bytes::mib(2);
pub(super) const START: Bytes = Bytes::ZERO;

/// A case's name and body.
pub(super) type NamedCase = (&'static str, fn(Target));

pub(super) fn pages(count: u64) -> Bytes {
    Bytes(count * PAGE.0)
}

/// Opens a device of the target's kind.
pub(super) fn device(target: Target) -> Device {
    target.device().expect("the suite runs only where the target can be opened")
}

/// Reserves, maps and opens one chunk of this size.
pub(super) fn ready(device: &Device, size: Bytes) -> Reservation {
    let reservation = device.reserve(size).unwrap();
    reservation.map(START, device.create(size).unwrap()).unwrap();
    reservation.open(START, size).unwrap();
    reservation
}

/// Opens a device, with a stream and one chunk of this size that is ready.
pub(super) fn prepared(target: Target, size: Bytes) -> (Device, Stream, Reservation) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, size));
    (device, stream, reservation)
}

/// Returns bytes that differ from offset to offset and from seed to seed.
pub(super) fn noise(seed: u64, size: Bytes) -> Vec<u8> {
    crate::noise::noise(seed, size.as_usize())
}

/// Writes bytes to the device and waits.
pub(super) fn write(device: &Device, stream: &Stream, to: (&Reservation, Bytes), bytes: &[u8]) {
    let memory = host_memory(device, Bytes(bytes.len() as u64));
    memory.write(START, bytes).unwrap();
    stream.copy_in((&memory, START), to, Bytes(bytes.len() as u64)).unwrap();
    stream.synchronize().unwrap();
}

/// Reads bytes from the device and waits.
pub(super) fn read(
    device: &Device,
    stream: &Stream,
    from: (&Reservation, Bytes),
    size: Bytes,
) -> Vec<u8> {
    let memory = host_memory(device, size);
    stream.copy_out(from, (&memory, START), size).unwrap();
    stream.synchronize().unwrap();
    let mut bytes = vec![0; size.as_usize()];
    memory.read(START, &mut bytes).unwrap();
    bytes
}

pub(super) fn host_memory(device: &Device, size: Bytes) -> Arc<HostMemory> {
    device.host_memory(size).unwrap()
}

/// Returns the one chunk of an unmap.
pub(super) fn only(mut chunks: Vec<(Bytes, Chunk)>) -> Chunk {
    assert_eq!(chunks.len(), 1, "one chunk was mapped there");
    chunks.remove(0).1
}
