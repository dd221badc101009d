//! Figures of a device: how fast it looks, packs and unpacks, beside the plain copy; and copies to it right
//! after memory was given back.
//!
//! They are printed, and nothing is asserted about time. On `host` they only show that this runs.

mod copying;

use std::sync::Arc;
use std::time::Instant;

use lowtide_device::digest::PAGE_BYTES;
use lowtide_device::packing::{Look, PACKED_AT_ONCE, PACKED_BYTES};
use lowtide_device::{Bytes, Device, HostMemory, Reservation, Stream};

use crate::suite::{Case, Target};
use crate::weights::PAGE_KINDS;

const PAGE: u64 = PAGE_BYTES as u64;
/// The pages that differ; the rest repeats them.
const MADE: u64 = 8;
/// The host memory that pieces take turns in.
const SLOTS: u64 = 8;

/// Returns the cases.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("packing_is_measured", packing_is_measured),
        Case::new("copies_in_are_measured", copying::copies_in_are_measured),
    ]
}

struct World {
    device: Device,
    reservation: Reservation,
    pages: u64,
    memory: Arc<HostMemory>,
}

impl World {
    fn new(target: Target) -> World {
        let device = target.device().expect("the suite runs only where the target can be opened");
        let pages = if target == Target::Cuda { 2048 } else { MADE };
        let size = Bytes(pages * PAGE);
        let reservation = device.reserve(size).unwrap();
        reservation.map(Bytes::ZERO, device.create(size).unwrap()).unwrap();
        reservation.open(Bytes::ZERO, size).unwrap();
        let memory = device.host_memory(Bytes(SLOTS * PACKED_AT_ONCE as u64 * PAGE)).unwrap();
        let stream = device.stream().unwrap();
        for page in 0..MADE {
            memory.write(Bytes(page * PAGE), &PAGE_KINDS[1].page(page)).unwrap();
        }
        for first in (0..pages).step_by(MADE as usize) {
            let to = (&reservation, Bytes(first * PAGE));
            stream.copy_in((&memory, Bytes::ZERO), to, Bytes(MADE * PAGE)).unwrap();
        }
        stream.synchronize().unwrap();
        World { device, reservation, pages, memory }
    }

    /// Measures work on every page, so many at a time, on so many streams in turn.
    fn measure(
        &self,
        what: &str,
        streams: usize,
        at_once: u64,
        work: impl Fn(&Stream, (&Reservation, Bytes), (&Arc<HostMemory>, Bytes), usize),
    ) {
        let streams: Vec<Stream> = (0..streams).map(|_| self.device.stream().unwrap()).collect();
        let mut times = Vec::new();
        let rounds = if self.pages > MADE { 5 } else { 1 };
        for _ in 0..rounds {
            let began = Instant::now();
            for (turn, first) in (0u64..).zip((0..self.pages).step_by(at_once as usize)) {
                let stream = &streams[turn as usize % streams.len()];
                let at = Bytes(turn % SLOTS * PACKED_AT_ONCE as u64 * PAGE);
                let on_device = (&self.reservation, Bytes(first * PAGE));
                work(stream, on_device, (&self.memory, at), at_once as usize);
            }
            for stream in &streams {
                stream.synchronize().unwrap();
            }
            times.push(began.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let gib = f64::from(((self.pages * PAGE) >> 20) as u32) / 1024.0;
        println!(
            "{what}, {} streams, {at_once} pages at once: {:.2} ms, {:.1} GiB/s of raw bytes (best {:.2} ms)",
            streams.len(),
            times[rounds / 2] * 1e3,
            gib / times[rounds / 2],
            times[0] * 1e3,
        );
    }
}

// Each stream has a place of its own on the device, so that its order is enough.
fn through_a_ring(world: &World, looks: &[Look]) {
    let place = Bytes(PACKED_AT_ONCE as u64 * PACKED_BYTES as u64);
    let size = Bytes((4 * place.0).next_multiple_of(PAGE));
    let ring = world.device.reserve(size).unwrap();
    ring.map(Bytes::ZERO, world.device.create(size).unwrap()).unwrap();
    ring.open(Bytes::ZERO, size).unwrap();
    for (streams, at_once) in [(2, 4), (3, 4), (4, 4), (2, 8), (3, 8)] {
        let at = |first: Bytes| Bytes(first.0 / PAGE / at_once % streams * place.0);
        let packed = |pages: usize| Bytes((pages * PACKED_BYTES) as u64);
        let count = streams as usize;
        world.measure("pack through a ring", count, at_once, |stream, from, to, pages| {
            let first = (from.1.0 / PAGE) as usize;
            let bases: Vec<u8> = looks[first..first + pages].iter().map(|look| look.base).collect();
            stream.pack(from, (&ring, at(from.1)), &bases).unwrap();
            stream.copy_out((&ring, at(from.1)), to, packed(pages)).unwrap();
        });
        world.measure("unpack through a ring", count, at_once, |stream, to, from, pages| {
            stream.copy_in(from, (&ring, at(to.1)), packed(pages)).unwrap();
            stream.unpack((&ring, at(to.1)), to, pages).unwrap();
        });
    }
}

fn packing_is_measured(target: Target) {
    let world = World::new(target);
    let stream = world.device.stream().unwrap();
    let looks = || {
        let all = 0..world.pages * PAGE;
        stream.look_ranges(&world.reservation, &[all]).unwrap().wait().unwrap()
    };
    let found = looks();
    let packed = found.iter().filter(|look| look.packs()).count();
    let escapes: u32 = found.iter().map(|look| look.escapes).sum();
    println!(
        "\n{packed} of {} pages pack, {PACKED_BYTES} bytes each; escapes of the fullest segment on average: {}",
        world.pages,
        escapes / found.len() as u32
    );
    world.measure("look", 1, world.pages, |_, _, _, _| drop(looks()));
    for streams in [1, 2, 4] {
        for at_once in [4, 8] {
            world.measure("copy out", streams, at_once, |stream, from, to, pages| {
                stream.copy_out(from, to, Bytes(pages as u64 * PAGE)).unwrap();
            });
            world.measure("pack", streams, at_once, |stream, from, to, pages| {
                let first = (from.1.0 / PAGE) as usize;
                let bases: Vec<u8> =
                    found[first..first + pages].iter().map(|look| look.base).collect();
                stream.pack(from, to, &bases).unwrap();
            });
        }
    }
    through_a_ring(&world, &found);
    world.measure("compare", 2, 4, |stream, of, packed, pages| {
        drop(stream.differs(packed, of, pages).unwrap());
    });
    for streams in [1, 2, 4] {
        for at_once in [4, 8] {
            world.measure("copy in", streams, at_once, |stream, to, from, pages| {
                stream.copy_in(from, to, Bytes(pages as u64 * PAGE)).unwrap();
            });
            world.measure("unpack", streams, at_once, |stream, to, from, pages| {
                stream.unpack(from, to, pages).unwrap();
            });
        }
    }
}
