//! Digests: the device computes what the host computes, page by page, and sees every change.

use lowtide_device::Bytes;
use lowtide_device::digest::{Keys, PAGE_BYTES};

use super::{Entry, PAGE, START, device, noise, pages, ready, write};
use crate::suite::Target;

pub(super) const CASES: &[Entry] = &[
    ("the_device_digests_as_the_host_does", the_device_digests_as_the_host_does),
    ("a_single_bit_changes_both_halves", a_single_bit_changes_both_halves),
    ("pages_of_many_chunks_come_in_order", pages_of_many_chunks_come_in_order),
    ("digests_that_nobody_waits_for_do_no_harm", digests_that_nobody_waits_for_do_no_harm),
];

fn the_device_digests_as_the_host_does(target: Target) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, pages(6)));
    for seed in [8, 9] {
        let (keys, bytes) = (Keys::from_seed(seed), noise(seed, pages(6)));
        write(&device, &stream, (&reservation, START), &bytes);
        let expected: Vec<_> = bytes.chunks(PAGE_BYTES).map(|page| keys.digest(page)).collect();
        let digests =
            stream.digest((&reservation, START), pages(6), &keys).unwrap().wait().unwrap();
        assert_eq!(digests, expected, "seed {seed}");
        let some =
            stream.digest((&reservation, pages(2)), pages(3), &keys).unwrap().wait().unwrap();
        assert_eq!(some, expected[2..5], "part of a chunk, seed {seed}");
    }
    stream.fill((&reservation, START), 0, pages(6)).unwrap();
    let zero = crate::keys().digest(&vec![0; PAGE_BYTES]);
    let digests =
        stream.digest((&reservation, START), pages(6), crate::keys()).unwrap().wait().unwrap();
    assert_eq!(digests, [zero; 6]);
}

fn a_single_bit_changes_both_halves(target: Target) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, PAGE));
    let digest =
        || stream.digest((&reservation, START), PAGE, crate::keys()).unwrap().wait().unwrap()[0];
    let bytes = noise(10, PAGE);
    write(&device, &stream, (&reservation, START), &bytes);
    let before = digest();
    for at in [0, 1, 4095, 4096, 65_537, PAGE_BYTES / 2, PAGE_BYTES - 1] {
        write(&device, &stream, (&reservation, Bytes(at as u64)), &[bytes[at] ^ 0x10]);
        let after = digest();
        assert!(
            before.0[0] != after.0[0] && before.0[1] != after.0[1],
            "byte {at}: {before:?} {after:?}"
        );
        write(&device, &stream, (&reservation, Bytes(at as u64)), &[bytes[at]]);
    }
    assert_eq!(digest(), before);
}

fn pages_of_many_chunks_come_in_order(target: Target) {
    let device = device(target);
    let count = 24;
    let (stream, reservation) = (device.stream().unwrap(), device.reserve(pages(count)).unwrap());
    for page in 0..count {
        reservation.map(pages(page), device.create(PAGE).unwrap()).unwrap();
    }
    reservation.open(START, pages(count)).unwrap();
    for page in 0..count {
        stream.fill((&reservation, pages(page)), page as u8, PAGE).unwrap();
    }
    let digests =
        stream.digest((&reservation, START), pages(count), crate::keys()).unwrap().wait().unwrap();
    let expected: Vec<_> =
        (0..count as u8).map(|byte| crate::keys().digest(&vec![byte; PAGE_BYTES])).collect();
    assert_eq!(digests, expected);
}

fn digests_that_nobody_waits_for_do_no_harm(target: Target) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, PAGE));
    stream.fill((&reservation, START), 3, PAGE).unwrap();
    drop(stream.digest((&reservation, START), PAGE, crate::keys()).unwrap());
    let digests =
        stream.digest((&reservation, START), PAGE, crate::keys()).unwrap().wait().unwrap();
    assert_eq!(digests, [crate::keys().digest(&vec![3; PAGE_BYTES])]);
}
