//! Digests: the device computes what the host computes, page by page, and sees every change.

use std::ops::Range;

use lowtide_device::digest::{Keys, PAGE_BYTES};
use lowtide_device::{Bytes, Error, RangeProblem};

use super::fixture::{NamedCase, PAGE, START, device, noise, only, pages, prepared, write};
use crate::keys;
use crate::suite::Target;

pub(super) const CASES: &[NamedCase] = &[
    ("the_device_digests_as_the_host_does", the_device_digests_as_the_host_does),
    ("a_single_bit_changes_both_halves", a_single_bit_changes_both_halves),
    ("pages_of_many_chunks_come_in_order", pages_of_many_chunks_come_in_order),
    ("digests_that_nobody_waits_for_do_no_harm", digests_that_nobody_waits_for_do_no_harm),
    ("several_ranges_are_one_piece_of_work", several_ranges_are_one_piece_of_work),
    ("each_range_is_pinned", each_range_is_pinned),
    ("ranges_that_are_not_right_are_refused", ranges_that_are_not_right_are_refused),
];

fn the_device_digests_as_the_host_does(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(6));
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
        let pending = stream.digest((&reservation, START), pages(6), &keys).unwrap();
        let mark = stream.mark().unwrap();
        stream.fill((&reservation, START), 1, pages(6)).unwrap();
        assert_eq!(pending.wait_for(&mark).unwrap(), expected, "before the fill, seed {seed}");
    }
    stream.fill((&reservation, START), 0, pages(6)).unwrap();
    let zero = keys::fixed().digest(&vec![0; PAGE_BYTES]);
    let digests =
        stream.digest((&reservation, START), pages(6), keys::fixed()).unwrap().wait().unwrap();
    assert_eq!(digests, [zero; 6]);
}

fn a_single_bit_changes_both_halves(target: Target) {
    let (device, stream, reservation) = prepared(target, PAGE);
    let digest =
        || stream.digest((&reservation, START), PAGE, keys::fixed()).unwrap().wait().unwrap()[0];
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
        stream.digest((&reservation, START), pages(count), keys::fixed()).unwrap().wait().unwrap();
    let expected: Vec<_> =
        (0..count as u8).map(|byte| keys::fixed().digest(&vec![byte; PAGE_BYTES])).collect();
    assert_eq!(digests, expected);
}

fn digests_that_nobody_waits_for_do_no_harm(target: Target) {
    let (_device, stream, reservation) = prepared(target, PAGE);
    stream.fill((&reservation, START), 3, PAGE).unwrap();
    drop(stream.digest((&reservation, START), PAGE, keys::fixed()).unwrap());
    let digests =
        stream.digest((&reservation, START), PAGE, keys::fixed()).unwrap().wait().unwrap();
    assert_eq!(digests, [keys::fixed().digest(&vec![3; PAGE_BYTES])]);
}

fn range(pages: Range<u64>) -> Range<u64> {
    pages.start * PAGE.0..pages.end * PAGE.0
}

fn several_ranges_are_one_piece_of_work(target: Target) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), device.reserve(pages(12)).unwrap());
    for (offset, size) in [(0, 3), (3, 1), (8, 4)] {
        reservation.map(pages(offset), device.create(pages(size)).unwrap()).unwrap();
        reservation.open(pages(offset), pages(size)).unwrap();
        for page in offset..offset + size {
            stream.fill((&reservation, pages(page)), page as u8, PAGE).unwrap();
        }
    }
    // Backwards, with a page twice and a range of nothing, over a border of chunks.
    let ranges = [range(9..12), range(2..4), range(10..11), range(1..1), range(0..1)];
    let expected: Vec<_> =
        [9, 10, 11, 2, 3, 10, 0].map(|byte| keys::fixed().digest(&vec![byte; PAGE_BYTES])).to_vec();
    let digests = || stream.digest_ranges(&reservation, &ranges, keys::fixed()).unwrap();
    assert_eq!(digests().wait().unwrap(), expected);
    let before = device.calls();
    let pending = digests();
    assert_eq!(device.calls() - before, 1, "the kernel is loaded and the staging is there");
    assert_eq!(pending.wait().unwrap(), expected);

    let before = device.calls();
    let nothing = stream.digest_ranges(&reservation, &[], keys::fixed()).unwrap();
    assert_eq!(device.calls(), before, "for nothing the driver is not asked");
    assert_eq!(nothing.wait().unwrap(), []);
    drop(stream.digest_ranges(&reservation, &[], keys::fixed()).unwrap());
    assert_eq!(
        stream.digest((&reservation, START), START, keys::fixed()).unwrap().wait().unwrap(),
        []
    );
}

fn each_range_is_pinned(target: Target) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), device.reserve(pages(3)).unwrap());
    for page in 0..3 {
        reservation.map(pages(page), device.create(PAGE).unwrap()).unwrap();
    }
    reservation.open(START, pages(3)).unwrap();
    let ranges = [range(2..3), range(0..1)];
    let pending = stream.digest_ranges(&reservation, &ranges, keys::fixed()).unwrap();
    for page in [0, 2] {
        assert!(reservation.unmap(pages(page), PAGE).is_err(), "page {page} is being read");
    }
    only(reservation.unmap(pages(1), PAGE).expect("nobody reads what lies between"));
    assert_eq!(pending.wait().unwrap().len(), 2);
    for page in [0, 2] {
        only(reservation.unmap(pages(page), PAGE).unwrap());
    }
}

fn ranges_that_are_not_right_are_refused(target: Target) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), device.reserve(pages(4)).unwrap());
    reservation.map(START, device.create(pages(2)).unwrap()).unwrap();
    reservation.open(START, pages(2)).unwrap();
    let refused = |bad: Range<u64>| {
        let ranges = [range(0..1), bad];
        stream.digest_ranges(&reservation, &ranges, keys::fixed()).map(drop).unwrap_err()
    };
    let backwards = Range { start: PAGE.0, end: 0 };
    for bad in [0..PAGE.0 - 1, 4096..4096 + PAGE.0, 0..u64::MAX, backwards] {
        let error = refused(bad.clone());
        assert!(matches!(error, Error::BadSize { .. }), "{bad:?}: {error}");
    }
    for (bad, expected) in [
        (range(1..3), RangeProblem::NotMapped),
        (range(3..5), RangeProblem::OutOfBounds),
        (range(1 << 40..(1 << 40) + 1), RangeProblem::OutOfBounds),
    ] {
        match refused(bad.clone()) {
            Error::BadRange { problem, .. } => assert_eq!(problem, expected, "{bad:?}"),
            other => panic!("{bad:?}: {other}"),
        }
    }
    let half = Bytes(1 << 63);
    let error = stream.digest((&reservation, half), half, keys::fixed()).map(drop).unwrap_err();
    assert!(matches!(error, Error::BadRange { .. }), "{error}");
    only(reservation.unmap(START, pages(2)).expect("what is refused pins nothing"));
}
