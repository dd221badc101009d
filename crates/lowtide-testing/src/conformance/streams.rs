//! Streams and the device around them: their ids, whether they are done, and how many calls it
//! took.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::noise::first_other;
use lowtide_device::Bytes;

use super::fixture::{
    NamedCase, PAGE, START, device, host_memory, noise, only, pages, prepared, ready, write,
};
use crate::suite::Target;

pub(super) const CASES: &[NamedCase] = &[
    ("no_stream_has_the_id_of_another", no_stream_has_the_id_of_another),
    ("a_stream_that_has_passed_lets_go", a_stream_that_has_passed_lets_go),
    ("threads_share_a_stream", threads_share_a_stream),
    ("a_device_waits_for_all_its_streams", a_device_waits_for_all_its_streams),
    ("calls_are_counted_one_by_one", calls_are_counted_one_by_one),
];

// Handles of streams that have ended come back; ids do not.
fn no_stream_has_the_id_of_another(target: Target) {
    let (one, two) = (device(target), device(target));
    let mut seen = HashSet::new();
    for _ in 0..16 {
        let streams = [one.stream().unwrap(), two.stream().unwrap(), one.stream().unwrap()];
        for stream in &streams {
            assert!(seen.insert(stream.id()), "{} came back", stream.id());
            assert_eq!(stream.id(), stream.id());
        }
    }
}

fn a_stream_that_has_passed_lets_go(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(8));
    assert!(stream.has_passed().unwrap(), "nothing was given to it");
    let (bytes, memory) = (noise(12, pages(8)), host_memory(&device, pages(8)));
    write(&device, &stream, (&reservation, START), &bytes);
    for _ in 0..16 {
        stream.copy_out((&reservation, START), (&memory, START), pages(8)).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(300);
    // Until it says so nothing is let go of, however far the work is.
    while {
        assert!(reservation.unmap(START, pages(8)).is_err(), "it did not say that it has passed");
        assert!(memory.read(START, &mut [0]).is_err());
        !stream.has_passed().unwrap()
    } {
        assert!(Instant::now() < deadline, "it never passes");
    }
    let mut back = vec![0; bytes.len()];
    memory.read(START, &mut back).unwrap();
    assert!(back == bytes, "it said too early that it has passed");
    only(reservation.unmap(START, pages(8)).unwrap());
}

// A thread that has waited for its own copy finds its memory let go, even if others waited for that
// point too.
fn threads_share_a_stream(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(4));
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (device, stream, reservation) = (&device, &stream, &reservation);
            scope.spawn(move || {
                let (memory, at) = (device.host_memory_here(PAGE).unwrap(), pages(thread.into()));
                for turn in 0..200 {
                    stream.fill((reservation, at), thread ^ turn, PAGE).unwrap();
                    stream.copy_out((reservation, at), (&memory, START), PAGE).unwrap();
                    stream.wait(&stream.mark().unwrap()).unwrap();
                    let mut byte = [0];
                    memory.read(Bytes(123_456), &mut byte).unwrap();
                    assert_eq!(byte, [thread ^ turn]);
                }
            });
        }
    });
}

fn a_device_waits_for_all_its_streams(target: Target) {
    let device = device(target);
    let reservation = ready(&device, pages(8));
    let ended = device.stream().unwrap();
    ended.fill((&reservation, START), 1, pages(8)).unwrap();
    drop(ended);
    let streams: Vec<_> = (0..4).map(|_| device.stream().unwrap()).collect();
    let memories: Vec<_> = (0..4).map(|_| host_memory(&device, pages(2))).collect();
    for (index, (stream, memory)) in streams.iter().zip(&memories).enumerate() {
        let at = pages(2 * index as u64);
        for byte in 0..20 {
            stream.fill((&reservation, at), byte + index as u8, pages(2)).unwrap();
        }
        stream.copy_out((&reservation, at), (memory, START), pages(2)).unwrap();
    }
    device.synchronize().unwrap();
    for (index, (stream, memory)) in streams.iter().zip(&memories).enumerate() {
        assert!(stream.has_passed().unwrap(), "stream {index} was not waited for");
        let mut bytes = vec![0; pages(2).as_usize()];
        memory.read(START, &mut bytes).unwrap();
        assert_eq!(first_other(&bytes, 19 + index as u8), None, "stream {index}");
    }
    device.synchronize().expect("with nothing to wait for");
}

fn calls_are_counted_one_by_one(target: Target) {
    let device = device(target);
    let (stream, memory) = (device.stream().unwrap(), host_memory(&device, PAGE));
    let mut seen = device.calls();
    let mut counted = |expected: u64, what: &str| {
        let now = device.calls();
        assert_eq!(now - std::mem::replace(&mut seen, now), expected, "{what}");
    };
    counted(0, "asking for the count");
    let reservation = ready(&device, pages(2));
    counted(4, "reserve, create, map, open");
    stream.fill((&reservation, START), 1, PAGE).unwrap();
    stream.copy_out((&reservation, START), (&memory, START), PAGE).unwrap();
    stream.copy_in((&memory, START), (&reservation, PAGE), PAGE).unwrap();
    counted(3, "three pieces of work");
    stream.synchronize().unwrap();
    assert!(stream.has_passed().unwrap());
    device.synchronize().unwrap();
    counted(3, "waiting and asking");
    assert!(reservation.unmap(START, PAGE).is_err(), "it would cut the mapping");
    assert!(stream.fill((&reservation, pages(2)), 1, Bytes(1)).is_err(), "past the end");
    let _ = (stream.id(), device.info(), reservation.mapped());
    counted(0, "what was refused before the driver was asked, and what is known");
    drop(reservation);
    counted(3, "unmap, destroy, release");
}
