//! Memory is counted by the device: what is created is in use, what is dropped is not.

use lowtide_device::{Bytes, Device, DeviceKind, Error, processes};
use std::time::{Duration, Instant};

use super::fixture::{NamedCase, PAGE, START, device, pages, ready};
use crate::keys;
use crate::suite::Target;

pub(super) const CASES: &[NamedCase] = &[
    ("a_device_says_what_it_is", a_device_says_what_it_is),
    ("a_reservation_costs_no_memory", a_reservation_costs_no_memory),
    ("a_chunk_is_in_use_until_it_is_dropped", a_chunk_is_in_use_until_it_is_dropped),
    ("a_mapped_chunk_goes_with_its_reservation", a_mapped_chunk_goes_with_its_reservation),
    ("more_than_there_is_is_out_of_memory", more_than_there_is_is_out_of_memory),
    ("the_device_can_be_filled_and_emptied", the_device_can_be_filled_and_emptied),
    ("absurd_sizes_are_refused", absurd_sizes_are_refused),
    ("absurd_host_memory_is_refused_before_it_is_taken", absurd_host_memory_is_refused),
    ("this_process_is_listed_with_its_memory", this_process_is_listed_with_its_memory),
];

/// Returns how much is in use, once it is as expected: a driver may take a moment to count what was
/// given back.
fn settled(device: &Device, expected: Bytes) -> Bytes {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let in_use = device.usage().unwrap().in_use();
        if in_use == expected || Instant::now() > deadline {
            return in_use;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn a_device_says_what_it_is(target: Target) {
    let device = device(target);
    let info = device.info();
    assert_eq!(info.page, PAGE);
    assert!(info.total >= pages(32), "{}", info.total);
    assert!(!info.name.is_empty());
    assert_eq!(info.uuid.is_some(), info.kind == DeviceKind::Cuda);
    let usage = device.usage().unwrap();
    assert!(usage.free <= usage.total);
    assert_eq!(usage.in_use() + usage.reserved + usage.free, usage.total);
}

fn a_reservation_costs_no_memory(target: Target) {
    let device = device(target);
    let before = device.usage().unwrap().in_use();
    let size = Bytes(device.info().total.0.next_multiple_of(PAGE.0) * 2);
    let reservation = device.reserve(size).unwrap();
    assert_eq!(reservation.size(), size);
    assert_eq!(reservation.mapped(), Bytes::ZERO);
    assert_eq!(device.usage().unwrap().in_use(), before, "twice the device was reserved");
}

fn a_chunk_is_in_use_until_it_is_dropped(target: Target) {
    let device = device(target);
    // The first chunk of a process may cost the driver something of its own.
    drop(device.create(PAGE).unwrap());
    let before = device.usage().unwrap().in_use();
    for size in [pages(1), pages(8), pages(256)] {
        let chunk = device.create(size).unwrap();
        assert_eq!(settled(&device, before + size), before + size, "{chunk:?}");
        drop(chunk);
        assert_eq!(settled(&device, before), before, "after {size}");
    }
}

fn a_mapped_chunk_goes_with_its_reservation(target: Target) {
    let device = device(target);
    drop(ready(&device, PAGE));
    let before = device.usage().unwrap().in_use();
    let reservation = ready(&device, pages(16));
    let clone = reservation.clone();
    drop(reservation);
    assert_eq!(settled(&device, before + pages(16)), before + pages(16), "a clone still has it");
    drop(clone);
    assert_eq!(settled(&device, before), before);
}

fn more_than_there_is_is_out_of_memory(target: Target) {
    let device = device(target);
    let before = device.usage().unwrap();
    let wanted = Bytes(before.total.0.next_multiple_of(PAGE.0)) + PAGE;
    match device.create(wanted).unwrap_err() {
        Error::OutOfMemory { device: id, requested, free, total } => {
            assert_eq!((id, requested, total), (device.info().id, wanted, before.total));
            assert!(free <= total);
        }
        other => panic!("{other}"),
    }
    assert_eq!(device.usage().unwrap().in_use(), before.in_use(), "a refusal takes nothing");
    drop(device.create(PAGE).unwrap());
}

fn the_device_can_be_filled_and_emptied(target: Target) {
    let device = device(target);
    drop(device.create(PAGE).unwrap());
    let before = device.usage().unwrap().in_use();
    let step = Bytes((device.info().total.0 / 8).next_multiple_of(PAGE.0));
    let mut chunks = Vec::new();
    let error = loop {
        match device.create(step) {
            Ok(chunk) => chunks.push(chunk),
            Err(error) => break error,
        }
        assert!(chunks.len() <= 8, "eight eighths were given and nothing said no");
    };
    assert!(error.is_out_of_memory(), "{error}");
    assert!(!chunks.is_empty());
    chunks.pop();
    drop(device.create(step).expect("what was given back can be had again"));
    drop(chunks);
    assert_eq!(settled(&device, before), before);
}

fn absurd_sizes_are_refused(target: Target) {
    let device = device(target);
    for size in [Bytes::ZERO, Bytes(1), Bytes(PAGE.0 + 1), Bytes(u64::MAX)] {
        for refused in [device.create(size).map(drop), device.reserve(size).map(drop)] {
            assert!(matches!(refused, Err(Error::BadSize { .. })), "{size:?}: {refused:?}");
        }
    }
    let absurd = Bytes((1 << 62) / PAGE.0 * PAGE.0);
    let refused = device.reserve(absurd).unwrap_err();
    assert!(!refused.to_string().is_empty());
    assert!(device.create(absurd).unwrap_err().is_out_of_memory());
    let reservation = ready(&device, PAGE);
    let stream = device.stream().unwrap();
    assert!(
        stream.digest((&reservation, Bytes(4096)), PAGE, keys::fixed()).is_err(),
        "half a page"
    );
    stream.fill((&reservation, START), 1, PAGE).unwrap();
    stream.synchronize().unwrap();
}

fn absurd_host_memory_is_refused(target: Target) {
    let device = device(target);
    let wanted = Bytes::gib(1 << 20);
    match device.host_memory(wanted).unwrap_err() {
        Error::NoHostHeadroom { requested, left, limit, .. } => {
            assert_eq!(requested, wanted);
            assert!(left < wanted);
            assert!(limit.to_string().starts_with("the "), "{limit}");
        }
        other => panic!("{other}"),
    }
    assert!(matches!(device.host_memory(Bytes::ZERO), Err(Error::BadSize { .. })));
}

fn this_process_is_listed_with_its_memory(target: Target) {
    let device = device(target);
    let chunk = device.create(pages(32)).unwrap();
    let all = processes::of(&device).unwrap();
    assert_eq!((all.id, &all.uuid), (Some(device.info().id), &device.info().uuid));
    let usage = all.usage;
    assert_eq!(all.sum(), (usage.total - usage.free).0.cast_signed(), "the rows add up");
    let own = all.processes.iter().find(|process| process.pid == std::process::id());
    let own = own.expect("this process uses some of it");
    assert!(own.held.is_none_or(|held| held >= chunk.size()), "{own}");
    assert!(own.to_string().contains(&format!("(pid {})", own.pid)), "{own}");
}
