//! A forked child has its parent's handles: whatever it does, the parent's memory stays. What the child
//! makes itself works.
#![allow(unsafe_code, reason = "forks")]

use std::ptr;
use std::sync::Mutex;

use lowtide_device::process::Generation;
use lowtide_device::{Bytes, Device, Error, HostOptions, HostPages, Result};
use lowtide_testing::forks::{beside, in_child, wait_for_child};

const PAGE: Bytes = Bytes::mib(2);
const START: Bytes = Bytes::ZERO;

fn host() -> Device {
    Device::host(HostOptions { budget: Some(Bytes::mib(16)), small_pages: true }).unwrap()
}

fn is_refused<T>(outcome: Result<T>) -> bool {
    matches!(outcome.err(), Some(Error::Forked))
}

#[test]
fn a_forked_child_leaves_its_parents_memory_alone() {
    let device = host();
    let (reservation, memory) = (device.reserve(PAGE).unwrap(), device.host_memory(PAGE).unwrap());
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    reservation.open(START, PAGE).unwrap();
    let (stream, chunk) = (device.stream().unwrap(), device.create(PAGE).unwrap());
    stream.fill((&reservation, START), 7, PAGE).unwrap();
    let mark = stream.mark().unwrap();
    stream.synchronize().unwrap();
    let pages = HostPages::new(PAGE).unwrap();
    let there = Generation::current();

    in_child(|| {
        let checks = vec![
            is_refused(device.create(PAGE)),
            is_refused(device.reserve(PAGE)),
            is_refused(device.stream()),
            is_refused(device.usage()),
            is_refused(device.synchronize()),
            is_refused(device.host_memory_here(PAGE)),
            is_refused(stream.synchronize()),
            is_refused(stream.has_passed()),
            is_refused(stream.mark()),
            is_refused(stream.wait(&mark)),
            is_refused(stream.fill((&reservation, START), 9, PAGE)),
            is_refused(stream.copy_out((&reservation, START), (&memory, START), PAGE)),
            is_refused(memory.read(START, &mut [0])),
            is_refused(memory.write(START, &[0])),
            is_refused(pages.read(START, PAGE, |_| ())),
            is_refused(reservation.open(START, PAGE)),
            is_refused(reservation.unmap(START, PAGE).map_err(Error::from)),
            is_refused(reservation.map(PAGE, chunk).map_err(Error::from)),
            reservation.mappings().is_empty() && device.leftovers() == 0,
            !there.is_current() && Generation::current().is_current(),
        ];
        drop((mark, stream, reservation, memory, pages, device.clone()));
        checks
    });
    assert!(there.is_current());

    assert_eq!(
        device.usage().unwrap().in_use(),
        Bytes::ZERO,
        "the parent gave all of it back itself"
    );
}

#[test]
fn a_parents_bytes_outlive_its_child() {
    let device = host();
    let (reservation, memory) = (device.reserve(PAGE).unwrap(), device.host_memory(PAGE).unwrap());
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    reservation.open(START, PAGE).unwrap();
    let stream = device.stream().unwrap();
    stream.fill((&reservation, START), 7, PAGE).unwrap();
    stream.synchronize().unwrap();
    let mut own = Some((device, reservation, memory, stream));
    in_child(|| {
        drop(own.take());
        Vec::new()
    });
    let (device, reservation, memory, stream) = own.unwrap();
    stream.copy_out((&reservation, START), (&memory, START), PAGE).unwrap();
    stream.synchronize().unwrap();
    let mut bytes = vec![0; PAGE.as_usize()];
    memory.read(START, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "the child gave the parent's pages back");
    assert_eq!(device.usage().unwrap().in_use(), PAGE);
}

fn works(byte: u8) -> Result<bool> {
    let device = host();
    let (reservation, memory) = (device.reserve(PAGE)?, device.host_memory(PAGE)?);
    reservation.map(START, device.create(PAGE)?)?;
    reservation.open(START, PAGE)?;
    let stream = device.stream()?;
    stream.fill((&reservation, START), byte, PAGE)?;
    stream.copy_out((&reservation, START), (&memory, START), PAGE)?;
    stream.synchronize()?;
    let mut bytes = [0; 3];
    memory.read(Bytes(9), &mut bytes)?;
    drop((stream, reservation));
    Ok(bytes == [byte; 3] && device.usage()?.in_use() == Bytes::ZERO)
}

#[test]
fn what_a_child_makes_itself_works_there_and_in_no_grandchild() {
    let inherited = host();
    in_child(|| {
        let own = host();
        let own_works = works(5).is_ok_and(|works| works) && own.usage().is_ok();
        // SAFETY: as in `in_child`.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            let refused = is_refused(own.usage()) && is_refused(inherited.usage());
            let works = works(6).is_ok_and(|works| works);
            // SAFETY: as in `in_child`.
            unsafe { libc::_exit(i32::from(!(refused && works))) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(grandchild, &raw mut status, 0) };
        vec![own_works, is_refused(inherited.usage()), status == 0, own.usage().is_ok()]
    });
}

// A fork that goes past the C library runs no handlers of it.
#[test]
fn a_raw_fork_is_noticed_too() {
    let device = host();
    // SAFETY: as in `in_child`; the child makes no use of the C library's own state.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
    if child == 0 {
        let refused = is_refused(device.usage());
        // SAFETY: as in `in_child`.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    wait_for_child(child);
}

static LEFT_TO_EXIT: Mutex<Option<HostPages>> = Mutex::new(None);
static MAPPED_THERE: Mutex<usize> = Mutex::new(0);

// Runs after every handler that is registered for exit.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_VERY_END: extern "C" fn() = drops_what_is_left;

extern "C" fn drops_what_is_left() {
    let Some(pages) = LEFT_TO_EXIT.lock().unwrap().take() else { return };
    drop(pages);
    let at = ptr::with_exposed_provenance::<u8>(*MAPPED_THERE.lock().unwrap());
    // SAFETY: the child mapped a page there; if it is gone, the child dies, which is the test.
    let byte = unsafe { at.read_volatile() };
    // SAFETY: ends the child here.
    unsafe { libc::_exit(i32::from(byte != 0x5a)) };
}

#[test]
fn an_exiting_child_does_not_unmap_what_lies_where_its_parents_pages_were() {
    let pages = HostPages::new(PAGE).unwrap();
    let at = pages.write(START, PAGE, |bytes| bytes.as_ptr().expose_provenance()).unwrap();
    // SAFETY: the child touches only what is tested here, and leaves by `exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let there = ptr::with_exposed_provenance_mut(at);
        // SAFETY: the pages were left out of the fork: these addresses are nobody's here.
        let mapped = unsafe { libc::mmap(there, PAGE.as_usize(), protection, flags, -1, 0) };
        // SAFETY: just mapped, writable.
        unsafe { mapped.cast::<u8>().write_volatile(0x5a) };
        *MAPPED_THERE.lock().unwrap() = at;
        *LEFT_TO_EXIT.lock().unwrap() = Some(pages);
        // SAFETY: runs the exit handlers, which is the point.
        unsafe { libc::exit(9) };
    }
    wait_for_child(child);
}

// Whatever lock a thread of the parent has at the moment of the fork, it has for ever in the child.
#[test]
fn a_child_hangs_on_no_lock_that_a_thread_of_its_parent_had() {
    let device = host();
    let (reservation, stream) = (device.reserve(PAGE).unwrap(), device.stream().unwrap());
    reservation.map(START, device.create(PAGE).unwrap()).unwrap();
    reservation.open(START, PAGE).unwrap();
    let noise = || {
        stream.fill((&reservation, START), 1, Bytes(64)).unwrap();
        assert_eq!(reservation.mapped(), PAGE);
        stream.synchronize().unwrap();
    };
    beside(noise, || {
        for _ in 0..100 {
            let copies = (device.clone(), reservation.clone());
            in_child(|| {
                let checks = vec![
                    reservation.mapped() == Bytes::ZERO,
                    is_refused(stream.fill((&reservation, START), 1, PAGE)),
                    !format!("{stream:?} {reservation:?} {device:?}").is_empty(),
                ];
                drop(copies);
                checks
            });
        }
    });
}
