//! A forked child has its parent's handles: whatever it does, the parent's memory stays.
#![allow(unsafe_code, reason = "forks")]

use lowtide_device::{Bytes, Device, HostOptions};

const PAGE: Bytes = Bytes::mib(2);
const START: Bytes = Bytes::ZERO;

#[test]
fn a_forked_child_leaves_its_parents_memory_alone() {
    let device =
        Device::host(HostOptions { budget: Some(Bytes::mib(16)), ..HostOptions::default() })
            .unwrap();
    let (reservation, memory) = (device.reserve(PAGE).unwrap(), device.host_memory(PAGE).unwrap());
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    reservation.open(START, PAGE).unwrap();
    let stream = device.stream().unwrap();
    stream.fill((&reservation, START), 7, PAGE).unwrap();
    stream.synchronize().unwrap();

    // SAFETY: the child touches only what is tested here, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = device.create(PAGE).is_err()
            && device.stream().is_err()
            && stream.synchronize().is_err()
            && stream.has_passed().is_err()
            && device.synchronize().is_err()
            && device.host_memory_here(PAGE).is_err()
            && stream.fill((&reservation, START), 9, PAGE).is_err()
            && memory.read(START, &mut [0]).is_err();
        drop((stream, reservation, memory, device));
        // SAFETY: ends the child without the test harness's exit handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's work was not refused, or it died");

    stream.copy_out((&reservation, START), (&memory, START), PAGE).unwrap();
    stream.synchronize().unwrap();
    let mut bytes = vec![0; PAGE.as_usize()];
    memory.read(START, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "the child gave the parent's pages back");
    assert_eq!(device.usage().unwrap().in_use(), PAGE);
}
