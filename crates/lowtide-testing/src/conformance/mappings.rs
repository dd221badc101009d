//! Mappings: a chunk is in one place or in none, keeps its content when it moves, and a refusal
//! changes nothing.

use crate::noise::first_other;
use lowtide_device::{Bytes, Error, RangeProblem, Result};

use super::fixture::{
    NamedCase, PAGE, START, device, host_memory, noise, only, pages, read, ready, write,
};
use crate::keys;
use crate::suite::Target;

pub(super) const CASES: &[NamedCase] = &[
    ("content_moves_with_its_chunk", content_moves_with_its_chunk),
    ("a_refused_map_hands_the_chunk_back", a_refused_map_hands_the_chunk_back),
    ("nothing_touches_what_is_not_open", nothing_touches_what_is_not_open),
    ("a_mapping_is_not_cut", a_mapping_is_not_cut),
    ("an_unmap_may_span_chunks_and_holes", an_unmap_may_span_chunks_and_holes),
    ("access_is_given_anew_after_each_map", access_is_given_anew_after_each_map),
    ("work_in_flight_keeps_its_mapping", work_in_flight_keeps_its_mapping),
    ("things_of_two_devices_do_not_mix", things_of_two_devices_do_not_mix),
    ("threads_map_and_unmap_side_by_side", threads_map_and_unmap_side_by_side),
];

fn problem<T: std::fmt::Debug, E: Into<Error>>(result: Result<T, E>) -> RangeProblem {
    match result.map_err(Into::into) {
        Err(Error::BadRange { problem, .. }) => problem,
        other => panic!("a bad range was not refused: {other:?}"),
    }
}

fn content_moves_with_its_chunk(target: Target) {
    let device = device(target);
    let (stream, bytes) = (device.stream().unwrap(), noise(1, pages(2)));
    let from = ready(&device, pages(2));
    write(&device, &stream, (&from, START), &bytes);
    let chunk = only(from.unmap(START, pages(2)).unwrap());
    assert_eq!(from.mapped(), Bytes::ZERO);
    let to = device.reserve(pages(8)).unwrap();
    to.map(pages(4), chunk).unwrap();
    to.open(pages(4), pages(2)).unwrap();
    assert!(
        read(&device, &stream, (&to, pages(4)), pages(2)) == bytes,
        "the content changed on the way"
    );
    assert!(from.address() != to.address());
}

fn a_refused_map_hands_the_chunk_back(target: Target) {
    let device = device(target);
    let reservation = device.reserve(pages(4)).unwrap();
    reservation.map(pages(1), device.create(pages(2)).unwrap()).unwrap();
    let mut chunk = device.create(pages(2)).unwrap();
    for (offset, expected) in [
        (pages(0), RangeProblem::AlreadyMapped),
        (pages(2), RangeProblem::AlreadyMapped),
        (pages(3), RangeProblem::OutOfBounds),
        (Bytes(u64::MAX - PAGE.0 + 1), RangeProblem::OutOfBounds),
    ] {
        let refused = reservation.map(offset, chunk).unwrap_err();
        assert_eq!(problem::<(), _>(Err(refused.error)), expected, "at {offset:?}");
        chunk = refused.chunk;
    }
    let refused = reservation.map(Bytes(4096), chunk).unwrap_err();
    assert!(matches!(refused.error, Error::BadSize { .. }), "{}", refused.error);
    only(reservation.unmap(pages(1), pages(2)).unwrap());
    reservation.map(START, refused.chunk).unwrap();
    reservation.open(START, pages(2)).unwrap();
}

fn nothing_touches_what_is_not_open(target: Target) {
    let device = device(target);
    let reservation = device.reserve(pages(4)).unwrap();
    let (stream, memory) = (device.stream().unwrap(), host_memory(&device, pages(2)));
    let copy = |size| stream.copy_out((&reservation, START), (&memory, START), size);
    assert_eq!(problem(copy(PAGE)), RangeProblem::NotMapped);
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    assert_eq!(problem(copy(PAGE)), RangeProblem::NotOpen);
    reservation.open(START, PAGE).unwrap();
    copy(PAGE).unwrap();
    assert_eq!(problem(copy(pages(2))), RangeProblem::NotMapped, "the second page is a hole");
    assert_eq!(problem(stream.fill((&reservation, pages(4)), 1, PAGE)), RangeProblem::OutOfBounds);
    assert_eq!(problem(reservation.open(START, pages(2))), RangeProblem::NotMapped);
    assert_eq!(problem(reservation.unmap(pages(2), PAGE)), RangeProblem::NotMapped);
    stream.synchronize().expect("refusals leave the stream usable");
}

fn a_mapping_is_not_cut(target: Target) {
    let device = device(target);
    let reservation = ready(&device, pages(4));
    for (offset, size) in [(START, pages(2)), (pages(2), pages(2)), (pages(1), pages(2))] {
        assert_eq!(problem(reservation.unmap(offset, size)), RangeProblem::CutsMapping);
        assert_eq!(problem(reservation.open(offset, size)), RangeProblem::CutsMapping);
    }
    assert_eq!(reservation.mapped(), pages(4));
}

fn an_unmap_may_span_chunks_and_holes(target: Target) {
    let device = device(target);
    let reservation = device.reserve(pages(10)).unwrap();
    let stream = device.stream().unwrap();
    for (offset, size) in [(0, 1), (1, 2), (5, 1), (8, 2)] {
        reservation.map(pages(offset), device.create(pages(size)).unwrap()).unwrap();
        reservation.open(pages(offset), pages(size)).unwrap();
        stream.fill((&reservation, pages(offset)), offset as u8, pages(size)).unwrap();
    }
    stream.synchronize().unwrap();
    let chunks = reservation.unmap(START, pages(10)).unwrap();
    let offsets: Vec<_> = chunks.iter().map(|(offset, chunk)| (*offset, chunk.size())).collect();
    assert_eq!(
        offsets,
        [(0, 1), (1, 2), (5, 1), (8, 2)].map(|(at, size)| (pages(at), pages(size)))
    );
    assert_eq!(reservation.mapped(), Bytes::ZERO);
    for (offset, chunk) in chunks {
        reservation.map(offset, chunk).unwrap();
    }
    reservation.open(START, pages(3)).expect("one call opens neighbours");
    assert_eq!(read(&device, &stream, (&reservation, pages(1)), PAGE), vec![1; PAGE.as_usize()]);
}

fn access_is_given_anew_after_each_map(target: Target) {
    let device = device(target);
    let reservation = ready(&device, PAGE);
    let stream = device.stream().unwrap();
    let chunk = only(reservation.unmap(START, PAGE).unwrap());
    reservation.map(START, chunk).unwrap();
    assert_eq!(problem(stream.fill((&reservation, START), 1, PAGE)), RangeProblem::NotOpen);
}

fn work_in_flight_keeps_its_mapping(target: Target) {
    let device = device(target);
    let reservation = ready(&device, pages(4));
    let other = ready(&device, PAGE);
    let (stream, memory) = (device.stream().unwrap(), host_memory(&device, pages(4)));
    stream.copy_out((&reservation, START), (&memory, START), pages(4)).unwrap();
    assert_eq!(problem(reservation.unmap(START, pages(4))), RangeProblem::InUse);
    only(other.unmap(START, PAGE).expect("what no work uses can go"));
    assert_eq!(problem(memory.read(START, &mut [0])), RangeProblem::InUse);
    stream.synchronize().unwrap();
    memory.read(START, &mut [0]).unwrap();
    only(reservation.unmap(START, pages(4)).unwrap());
}

fn things_of_two_devices_do_not_mix(target: Target) {
    let refused = |result: Result<()>| {
        let error = result.expect_err("things of two devices were mixed");
        assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
    };
    let (own, other) = (device(target), device(target));
    let (reservation, memory) = (ready(&own, PAGE), host_memory(&own, PAGE));
    let (stream, foreign) = (own.stream().unwrap(), other.stream().unwrap());
    let space = own.reserve(PAGE).unwrap();
    let error = space.map(START, other.create(PAGE).unwrap()).unwrap_err();
    refused(Err(error.error));
    refused(foreign.fill((&reservation, START), 1, PAGE));
    refused(foreign.copy_in((&memory, START), (&reservation, START), PAGE));
    refused(foreign.digest((&reservation, START), PAGE, keys::fixed()).map(drop));
    let theirs = host_memory(&other, PAGE);
    refused(stream.copy_out((&reservation, START), (&theirs, START), PAGE));
    stream.copy_out((&reservation, START), (&memory, START), PAGE).unwrap();
    stream.synchronize().unwrap();
}

fn threads_map_and_unmap_side_by_side(target: Target) {
    let device = device(target);
    let before = device.usage().unwrap().in_use();
    let shared = device.reserve(pages(16)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (device, shared) = (&device, &shared);
            scope.spawn(move || {
                let (stream, own) = (device.stream().unwrap(), pages(4 * u64::from(thread)));
                for turn in 0..8u8 {
                    shared.map(own, device.create(pages(3)).unwrap()).unwrap();
                    shared.open(own, pages(3)).unwrap();
                    stream.fill((shared, own), thread * 16 + turn, pages(3)).unwrap();
                    let bytes = read(device, &stream, (shared, own + pages(2)), PAGE);
                    assert!(
                        first_other(&bytes, thread * 16 + turn).is_none(),
                        "thread {thread}, turn {turn}"
                    );
                    only(shared.unmap(own, pages(3)).unwrap());
                }
            });
        }
    });
    assert_eq!(shared.mapped(), Bytes::ZERO);
    // What a driver keeps for a context's first copies is its own affair; chunks are not.
    assert!(device.usage().unwrap().in_use() < before + pages(16));
}
