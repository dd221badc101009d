//! Copies: the right bytes, at any offset, over any border, on several streams.

use crate::noise::first_other;
use lowtide_device::{Bytes, Error};

use super::fixture::{
    NamedCase, PAGE, START, device, host_memory, noise, only, pages, prepared, read, ready, write,
};
use crate::suite::Target;

pub(super) const CASES: &[NamedCase] = &[
    ("bytes_go_out_and_come_back", bytes_go_out_and_come_back),
    ("copies_take_any_offset_and_size", copies_take_any_offset_and_size),
    ("copies_cross_from_chunk_to_chunk", copies_cross_from_chunk_to_chunk),
    ("a_copy_within_the_device_needs_no_host", a_copy_within_the_device_needs_no_host),
    ("copies_cross_registrations", copies_cross_registrations),
    ("a_kernel_copies_what_it_is_given_and_nothing_beside", a_kernel_copies_in),
    ("streams_work_side_by_side", streams_work_side_by_side),
    ("a_stream_works_in_order", a_stream_works_in_order),
    ("a_mark_lets_go_of_what_came_before", a_mark_lets_go_of_what_came_before),
    ("a_dropped_stream_finishes_its_work", a_dropped_stream_finishes_its_work),
    ("host_memory_ends_where_it_ends", host_memory_ends_where_it_ends),
    ("callers_prepare_host_memory_on_their_own_threads", callers_prepare_host_memory),
];

fn bytes_go_out_and_come_back(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(8));
    let bytes = noise(2, pages(8));
    write(&device, &stream, (&reservation, START), &bytes);
    assert!(read(&device, &stream, (&reservation, START), pages(8)) == bytes);
}

fn copies_take_any_offset_and_size(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(2));
    let mut expected = noise(3, pages(2));
    write(&device, &stream, (&reservation, START), &expected);
    for (offset, size) in
        [(1, 1), (511, 1025), (PAGE.0 - 3, 7), (PAGE.0 * 2 - 5, 5), (4096, 12_289)]
    {
        let piece = noise(offset + 4, Bytes(size));
        write(&device, &stream, (&reservation, Bytes(offset)), &piece);
        let range = offset as usize..(offset + size) as usize;
        expected[range].copy_from_slice(&piece);
    }
    assert!(read(&device, &stream, (&reservation, START), pages(2)) == expected);
    stream
        .copy_out((&reservation, START), (&host_memory(&device, PAGE), START), Bytes::ZERO)
        .unwrap();
    stream.synchronize().unwrap();
}

fn copies_cross_from_chunk_to_chunk(target: Target) {
    let device = device(target);
    let (stream, reservation) = (device.stream().unwrap(), device.reserve(pages(6)).unwrap());
    for (offset, size) in [(0, 1), (1, 3), (4, 2)] {
        reservation.map(pages(offset), device.create(pages(size)).unwrap()).unwrap();
    }
    reservation.open(START, pages(6)).unwrap();
    let bytes = noise(5, pages(6));
    write(&device, &stream, (&reservation, START), &bytes);
    assert!(read(&device, &stream, (&reservation, START), pages(6)) == bytes);
}

fn a_copy_within_the_device_needs_no_host(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(4));
    let (other, bytes) = (ready(&device, pages(2)), noise(7, pages(4)));
    write(&device, &stream, (&reservation, START), &bytes);
    for (from, to, size) in [(0, 0, pages(2)), (PAGE.0 + 3, 5, Bytes(PAGE.0 + 7))] {
        stream.copy_within((&reservation, Bytes(from)), (&other, Bytes(to)), size).unwrap();
        let refused = [&reservation, &other].map(|used| used.unmap(START, used.size()));
        assert!(refused.iter().all(Result::is_err), "both are in use");
        stream.synchronize().unwrap();
        let expected = &bytes[from as usize..(from + size.0) as usize];
        assert!(read(&device, &stream, (&other, Bytes(to)), size) == expected);
    }
    let within =
        |to: u64| stream.copy_within((&reservation, START), (&reservation, Bytes(to)), PAGE);
    assert!([0, 1, PAGE.0 - 1].into_iter().all(|to| within(to).is_err()), "they overlap");
    within(PAGE.0).unwrap();
    stream.synchronize().unwrap();
    assert!(read(&device, &stream, (&reservation, PAGE), PAGE) == bytes[..PAGE.as_usize()]);
    reservation.unmap(START, pages(4)).unwrap();
    assert!(
        stream.copy_within((&reservation, START), (&other, START), PAGE).is_err(),
        "not mapped"
    );
}

// Host memory is registered in parts of 512 MiB, and the driver takes no copy across two of them.
fn copies_cross_registrations(target: Target) {
    let device = device(target);
    let memory = host_memory(&device, Bytes::mib(514));
    let border = Bytes::mib(511);
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, pages(1)));
    let bytes = noise(6, PAGE);
    memory.write(border, &bytes).unwrap();
    stream.copy_in((&memory, border), (&reservation, START), PAGE).unwrap();
    stream.synchronize().unwrap();
    assert!(read(&device, &stream, (&reservation, START), PAGE) == bytes);
    memory.write(border, &vec![0; PAGE.as_usize()]).unwrap();
    stream.copy_out((&reservation, START), (&memory, border), PAGE).unwrap();
    stream.synchronize().unwrap();
    let mut back = vec![0; PAGE.as_usize()];
    memory.read(border, &mut back).unwrap();
    assert!(back == bytes);
}

fn a_kernel_copies_in(target: Target) {
    let device = device(target);
    assert!(device.copies_by_kernel());
    device.prepare_copies().unwrap();
    let memory = host_memory(&device, Bytes::mib(522));
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, pages(6)));
    let kib = |kib: u64| Bytes(kib << 10);
    // A part of what a block takes at once, all of a large range, and from two registrations.
    let copies = [
        (kib(0), kib(4), kib(4)),
        (kib(8), kib(0), kib(36)),
        (kib(2052), kib(1028), kib(9 << 10)),
        (Bytes::mib(511), kib(64), kib(4096)),
        (kib(0), kib(0), kib(0)),
    ];
    for ((from, to, size), seed) in copies.into_iter().zip(60..) {
        let bytes = noise(seed, size);
        let mut expected = vec![0x5a; pages(6).as_usize()];
        expected[to.as_usize()..(to + size).as_usize()].copy_from_slice(&bytes);
        memory.write(from, &bytes).unwrap();
        stream.fill((&reservation, START), 0x5a, pages(6)).unwrap();
        stream.copy_in_by_kernel((&memory, from), (&reservation, to), size).unwrap();
        assert!(size == START || reservation.unmap(START, pages(6)).is_err(), "it is in use");
        stream.synchronize().unwrap();
        let found = read(&device, &stream, (&reservation, START), pages(6));
        assert!(found == expected, "{size} from {from} to {to}");
    }
    let odd = Bytes(512);
    for (from, to, size) in [(odd, START, kib(4)), (START, odd, kib(4)), (START, START, odd)] {
        let refused = stream.copy_in_by_kernel((&memory, from), (&reservation, to), size);
        assert!(matches!(refused, Err(Error::BadSize { .. })), "{refused:?}");
    }
    let beyond = stream.copy_in_by_kernel((&memory, START), (&reservation, pages(5)), pages(2));
    assert!(matches!(beyond, Err(Error::BadRange { .. })), "{beyond:?}");
}

fn streams_work_side_by_side(target: Target) {
    let device = device(target);
    let reservation = ready(&device, pages(8));
    let bytes = noise(7, pages(8));
    let (from, to) = (host_memory(&device, pages(8)), host_memory(&device, pages(8)));
    from.write(START, &bytes).unwrap();
    let streams: Vec<_> = (0..4).map(|_| device.stream().unwrap()).collect();
    for page in 0..8 {
        let stream = &streams[page as usize % 4];
        stream.copy_in((&from, pages(page)), (&reservation, pages(page)), PAGE).unwrap();
        stream.copy_out((&reservation, pages(page)), (&to, pages(page)), PAGE).unwrap();
    }
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    let mut back = vec![0; bytes.len()];
    to.read(START, &mut back).unwrap();
    assert!(back == bytes);
}

fn a_stream_works_in_order(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(4));
    for byte in 0..50 {
        stream.fill((&reservation, START), byte, pages(4)).unwrap();
    }
    let found = read(&device, &stream, (&reservation, START), pages(4));
    assert_eq!(first_other(&found, 49), None);
}

fn a_mark_lets_go_of_what_came_before(target: Target) {
    let device = device(target);
    let (first, second) = (ready(&device, PAGE), ready(&device, PAGE));
    let stream = device.stream().unwrap();
    stream.fill((&first, START), 1, PAGE).unwrap();
    let mark = stream.mark().unwrap();
    stream.fill((&second, START), 2, PAGE).unwrap();
    assert!(first.unmap(START, PAGE).is_err(), "the mark was not waited for");
    stream.wait(&mark).unwrap();
    only(first.unmap(START, PAGE).unwrap());
    assert!(second.unmap(START, PAGE).is_err(), "given after the mark");
    stream.synchronize().unwrap();
    only(second.unmap(START, PAGE).unwrap());
    drop(stream);
    drop(mark);
}

fn a_dropped_stream_finishes_its_work(target: Target) {
    let device = device(target);
    let reservation = ready(&device, pages(8));
    let stream = device.stream().unwrap();
    stream.fill((&reservation, START), 9, pages(8)).unwrap();
    drop(stream);
    let stream = device.stream().unwrap();
    let found = read(&device, &stream, (&reservation, START), pages(8));
    assert_eq!(first_other(&found, 9), None);
    only(reservation.unmap(START, pages(8)).expect("a dropped stream uses nothing"));
}

fn host_memory_ends_where_it_ends(target: Target) {
    let device = device(target);
    let memory = host_memory(&device, Bytes(5000));
    memory.write(Bytes(4990), &[1; 10]).unwrap();
    let mut back = [0; 10];
    memory.read(Bytes(4990), &mut back).unwrap();
    assert_eq!(back, [1; 10]);
    assert!(memory.read(Bytes(4991), &mut back).is_err());
    assert!(memory.write(Bytes(u64::MAX), &[1]).is_err());
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, PAGE));
    assert!(stream.copy_in((&memory, START), (&reservation, START), Bytes(5001)).is_err());
    stream.copy_in((&memory, START), (&reservation, START), Bytes(5000)).unwrap();
    stream.synchronize().unwrap();
}

// One of them has two registrations, so that the last is seen to be there too.
fn callers_prepare_host_memory(target: Target) {
    let device = device(target);
    let sizes = [Bytes::mib(514), Bytes::mib(6)];
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, PAGE));
    let memories: Vec<_> = std::thread::scope(|scope| {
        let device = &device;
        let threads = sizes.map(|size| scope.spawn(move || device.host_memory_here(size).unwrap()));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (memory, size) in memories.iter().zip(sizes) {
        assert_eq!(memory.size(), size);
        let (bytes, last) = (noise(size.0, PAGE), size - PAGE);
        write(&device, &stream, (&reservation, START), &bytes);
        stream.copy_out((&reservation, START), (memory, last), PAGE).unwrap();
        assert!(memory.read(last, &mut [0]).is_err(), "a copy is in flight");
        stream.synchronize().unwrap();
        let mut back = vec![0; bytes.len()];
        memory.read(last, &mut back).unwrap();
        assert!(back == bytes);
    }
    assert!(device.host_memory_here(Bytes::ZERO).is_err());
}
