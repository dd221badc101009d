//! Packing: the device computes what the host computes, byte by byte, and writes nothing beside it.

use std::sync::Arc;

use crate::noise::first_other;
use lowtide_device::digest::PAGE_BYTES;
use lowtide_device::packing::{self, Look, PACKED_AT_ONCE, PACKED_BYTES};
use lowtide_device::{Bytes, Error, HostMemory};

use super::fixture::{
    NamedCase, PAGE, START, device, host_memory, noise, only, pages, prepared, read, ready, write,
};
use crate::Dice;
use crate::suite::Target;
use crate::weights::PAGE_KINDS;

pub(super) const CASES: &[NamedCase] = &[
    ("the_device_packs_as_the_host_does", the_device_packs_as_the_host_does),
    ("neighbours_are_packed_at_once_and_come_back", neighbours_are_packed_at_once_and_come_back),
    ("packed_pages_may_lie_on_the_device", packed_pages_may_lie_on_the_device),
    ("a_corrupt_packed_page_writes_only_its_page", a_corrupt_packed_page_writes_only_its_page),
    ("packing_pins_what_it_uses", packing_pins_what_it_uses),
    ("packed_pages_that_are_not_right_are_refused", packed_pages_that_are_not_right_are_refused),
];

const PACKED: Bytes = Bytes(PACKED_BYTES as u64);

fn content(memory: &Arc<HostMemory>, at: Bytes, size: Bytes) -> Vec<u8> {
    let mut bytes = vec![0; size.as_usize()];
    memory.read(at, &mut bytes).unwrap();
    bytes
}

fn packed_of(page: &[u8], base: u8) -> Vec<u8> {
    let mut packed = vec![0; PACKED_BYTES];
    packing::pack(page, base, &mut packed);
    packed
}

fn the_device_packs_as_the_host_does(target: Target) {
    let device = device(target);
    let count = PAGE_KINDS.len() as u64;
    let (stream, reservation) = (device.stream().unwrap(), ready(&device, pages(count)));
    let made: Vec<Vec<u8>> =
        PAGE_KINDS.iter().zip(20..).map(|(kind, seed)| kind.page(seed)).collect();
    for (page, number) in made.iter().zip(0..) {
        write(&device, &stream, (&reservation, pages(number)), page);
    }
    let looks = stream.look_ranges(&reservation, &[0..pages(count).0]).unwrap().wait().unwrap();
    let (memory, other) = (host_memory(&device, PACKED), ready(&device, PAGE));
    for (((look, page), kind), number) in looks.iter().zip(&made).zip(PAGE_KINDS).zip(0..) {
        assert_eq!(*look, packing::look(page), "{}", kind.name);
        let from = (&reservation, pages(number));
        memory.write(START, &vec![0xa5; PACKED_BYTES]).unwrap();
        // Also where the page does not pack: a page may change between the look and this.
        stream.pack(from, (&memory, START), &[look.base]).unwrap();
        stream.synchronize().unwrap();
        let packed = packed_of(page, look.base);
        assert!(content(&memory, START, PACKED) == packed, "{}", kind.name);
        stream.fill((&other, START), 0x5a, PAGE).unwrap();
        stream.unpack((&memory, START), (&other, START), 1).unwrap();
        let mut expected = vec![0; PAGE_BYTES];
        packing::unpack(&packed, &mut expected);
        let found = read(&device, &stream, (&other, START), PAGE);
        assert!(found == expected && (found == *page) == kind.packs, "{}", kind.name);
    }
}

fn neighbours_are_packed_at_once_and_come_back(target: Target) {
    let device = device(target);
    let (stream, count) = (device.stream().unwrap(), PACKED_AT_ONCE);
    let all = pages(count as u64);
    let (reservation, other) = (ready(&device, all), ready(&device, all));
    let bytes: Vec<u8> =
        (0..count).flat_map(|page| PAGE_KINDS[page % 6].page(page as u64)).collect();
    write(&device, &stream, (&reservation, START), &bytes);
    let looks = stream.look_ranges(&reservation, &[0..all.0]).unwrap().wait().unwrap();
    let bases: Vec<u8> = looks.iter().map(|look: &Look| look.base).collect();
    // Not at the beginning: packed pages lie wherever there is room.
    let (at, size) = (Bytes(5 * 4096), Bytes(PACKED.0 * count as u64));
    let memory = host_memory(&device, at + size + Bytes(4096));
    memory.write(START, &vec![0xa5; (at + size).as_usize() + 4096]).unwrap();
    stream.pack((&reservation, START), (&memory, at), &bases).unwrap();
    stream.synchronize().unwrap();
    for beside in [START, at + size] {
        let beside = content(&memory, beside, Bytes(4096));
        assert!(first_other(&beside, 0xa5).is_none(), "nothing is written beside them");
    }
    stream.unpack((&memory, at), (&other, START), count).unwrap();
    assert!(read(&device, &stream, (&other, START), all) == bytes);
}

// As a piece goes through a ring: packed there, copied out, copied in, unpacked.
fn packed_pages_may_lie_on_the_device(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(2));
    let (ring, at, size) = (ready(&device, pages(3)), Bytes(4096), Bytes(2 * PACKED.0));
    let bytes = [PAGE_KINDS[1].page(50), PAGE_KINDS[3].page(51)];
    write(&device, &stream, (&reservation, START), &bytes.concat());
    let bases = [0, 1].map(|page| packing::look(&bytes[page]).base);
    let memory = host_memory(&device, size);
    stream.fill((&ring, START), 0xa5, pages(3)).unwrap();
    stream.pack((&reservation, START), (&ring, at), &bases).unwrap();
    stream.copy_out((&ring, at), (&memory, START), size).unwrap();
    assert!(ring.unmap(START, pages(3)).is_err(), "it is in use");
    stream.synchronize().unwrap();
    let expected = [0, 1].map(|page| packed_of(&bytes[page], bases[page])).concat();
    assert!(content(&memory, START, size) == expected);
    let around = read(&device, &stream, (&ring, START), pages(3));
    let after = (at + size).as_usize();
    assert!(around[..4096].iter().chain(&around[after..]).all(|byte| *byte == 0xa5));
    stream.fill((&reservation, START), 0, pages(2)).unwrap();
    stream.fill((&ring, START), 0, pages(3)).unwrap();
    stream.copy_in((&memory, START), (&ring, at), size).unwrap();
    stream.unpack((&ring, at), (&reservation, START), 2).unwrap();
    assert!(read(&device, &stream, (&reservation, START), pages(2)) == bytes.concat());
    let beyond = stream.unpack((&ring, pages(2)), (&reservation, START), 2).unwrap_err();
    assert!(matches!(beyond, Error::BadRange { .. }), "{beyond}");
    only(ring.unmap(START, pages(3)).expect("nobody uses it any more"));
}

fn a_corrupt_packed_page_writes_only_its_page(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(3));
    let (memory, mut dice) = (host_memory(&device, PACKED), Dice::new(31));
    let page = PAGE_KINDS[1].page(30);
    let good = packed_of(&page, packing::look(&page).base);
    for round in 0..12 {
        let mut bad = good.clone();
        match round {
            0 => bad = noise(32, PACKED),
            1 => bad.fill(0xff),
            2 => bad.fill(0),
            _ => {
                for _ in 0..20 {
                    let most = dice.pick(&[64, 12_288, PACKED_BYTES]);
                    bad[dice.index(most)] ^= 1 << dice.roll(8);
                }
            }
        }
        memory.write(START, &bad).unwrap();
        stream.fill((&reservation, START), 0x77, pages(3)).unwrap();
        stream.unpack((&memory, START), (&reservation, PAGE), 1).unwrap();
        for beside in [START, pages(2)] {
            let beside = read(&device, &stream, (&reservation, beside), PAGE);
            assert!(first_other(&beside, 0x77).is_none(), "round {round}");
        }
        let mut expected = vec![0; PAGE_BYTES];
        packing::unpack(&bad, &mut expected);
        let found = read(&device, &stream, (&reservation, PAGE), PAGE);
        assert!(found == expected, "round {round}: not as the host unpacks it");
        assert!(packing::check(&bad).is_err(), "round {round}");
    }
}

fn packing_pins_what_it_uses(target: Target) {
    let (device, stream, reservation) = prepared(target, PAGE);
    stream.fill((&reservation, START), 0, PAGE).unwrap();
    let memory = host_memory(&device, PACKED);
    stream.pack((&reservation, START), (&memory, START), &[100]).unwrap();
    stream.unpack((&memory, START), (&reservation, START), 1).unwrap();
    assert!(reservation.unmap(START, PAGE).is_err(), "it is in use");
    assert!(memory.read(START, &mut [0]).is_err(), "it is in use");
    drop(memory);
    drop(stream.look_ranges(&reservation, &[0..PAGE.0]).unwrap());
    stream.synchronize().unwrap();
    only(reservation.unmap(START, PAGE).expect("nobody uses it any more"));
}

fn packed_pages_that_are_not_right_are_refused(target: Target) {
    let (device, stream, reservation) = prepared(target, pages(9));
    let memory = host_memory(&device, Bytes(9 * PACKED.0));
    let pack = |at: u64, host: u64, bases: usize| {
        stream.pack((&reservation, Bytes(at)), (&memory, Bytes(host)), &vec![100; bases])
    };
    for (host, bases) in [(0, 0), (0, 9), (16, 1), (2048, 1)] {
        let error = pack(0, host, bases).unwrap_err();
        assert!(matches!(error, Error::BadSize { .. }), "{bases} at {host}: {error}");
    }
    for (at, host, bases) in [(8 * PAGE.0, 0, 2), (0, 8 * PACKED.0, 2), (0, 1 << 40, 1)] {
        let error = pack(at, host, bases).unwrap_err();
        assert!(matches!(error, Error::BadRange { .. }), "{bases} at {at}, {host}: {error}");
    }
    let to = (&reservation, pages(8));
    assert!(stream.unpack((&memory, START), to, 2).is_err());
    assert!(stream.look_ranges(&reservation, &[0..PAGE.0 - 1]).is_err());
    only(reservation.unmap(START, pages(9)).expect("what is refused pins nothing"));
    memory.read(START, &mut [0]).expect("what is refused pins nothing");
}
