//! Figures of copies to the device, rested and right after much memory was given back.
//!
//! The driver clears memory that was given back, with the engine that copies in. A kernel that reads host
//! memory is not in its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::{Bytes, Device, HostMemory, Reservation, Stream};

use crate::raw::Raw;
use crate::suite::Target;

const PIECE: u64 = 8 << 20;
/// The host memory that pieces take turns in.
const SLOTS: u64 = 64;
/// The memory that is given back before a copy, in chunks of a wake's size.
const CHUNK: Bytes = Bytes::mib(256);

struct World {
    device: Device,
    reservation: Reservation,
    memory: Arc<HostMemory>,
    pieces: u64,
    released: u64,
}

/// Who copies a piece.
#[derive(Clone, Copy)]
enum Mover {
    Engine,
    Kernel,
}

pub(super) fn copies_in_are_measured(target: Target) {
    let device = target.device().expect("the suite runs only where the target can be opened");
    loading(&device);
    let on_gpu = target == Target::Cuda;
    let (pieces, released) = if on_gpu { (512, 140) } else { (8, 0) };
    let size = Bytes(pieces * PIECE);
    let reservation = device.reserve(size).unwrap();
    reservation.map(Bytes::ZERO, device.create(size).unwrap()).unwrap();
    reservation.open(Bytes::ZERO, size).unwrap();
    let memory = device.host_memory(Bytes(pieces.min(SLOTS) * PIECE)).unwrap();
    let world = World { device, reservation, memory, pieces, released };
    println!(
        "\n{} in pieces of 8 MiB; at once: right after {} were given back",
        size,
        Bytes(released * CHUNK.0)
    );
    world.measure("engine, 1 stream", &[(Mover::Engine, 1)]);
    world.measure("engine, 2 streams", &[(Mover::Engine, 2)]);
    world.measure("kernel, 1 stream", &[(Mover::Kernel, 1)]);
    world.measure("kernel, 2 streams", &[(Mover::Kernel, 2)]);
    world.measure("kernel, 4 streams", &[(Mover::Kernel, 4)]);
    world.measure("engine and kernel", &[(Mover::Engine, 1), (Mover::Kernel, 2)]);
    world.measure("engine and kernel, 1 stream each", &[(Mover::Engine, 1), (Mover::Kernel, 1)]);
    if on_gpu {
        other_calls(&world);
    }
}

// A kernel is compiled by the driver when it is loaded, unless the driver's cache has it.
fn loading(device: &Device) {
    let timed = |what: &str, load: &dyn Fn() -> lowtide_device::Result<()>| {
        let began = Instant::now();
        load().unwrap();
        println!("\nloading the kernels for {what}: {:.1} ms", ms(began));
    };
    timed("digests", &|| device.prepare_digests());
    timed("copies", &|| device.prepare_copies());
    timed("packing", &|| device.prepare_packing());
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

impl World {
    // Takes memory as a wake does and gives it back, or rests.
    fn before(&self, rests: bool) {
        if rests || self.released == 0 {
            thread::sleep(Duration::from_millis(if self.released == 0 { 0 } else { 400 }));
            return;
        }
        let size = Bytes(self.released * CHUNK.0);
        let reservation = self.device.reserve(size).unwrap();
        for chunk in 0..self.released {
            let at = Bytes(chunk * CHUNK.0);
            reservation.map(at, self.device.create(CHUNK).unwrap()).unwrap();
        }
        reservation.open(Bytes::ZERO, size).unwrap();
        let stream = self.device.stream().unwrap();
        stream.fill((&reservation, Bytes::ZERO), 0x5a, size).unwrap();
        stream.synchronize().unwrap();
        // What the ones before gave back is cleared by now.
        thread::sleep(Duration::from_millis(400));
        drop(reservation.unmap(Bytes::ZERO, size).unwrap());
    }

    fn measure(&self, what: &str, lanes: &[(Mover, usize)]) {
        for rests in [true, false] {
            let (mut best, mut all, mut quarters, mut shares) =
                (f64::MAX, Vec::new(), [0.0; 4], Vec::new());
            for _ in 0..if self.released == 0 { 1 } else { 3 } {
                self.before(rests);
                let (time, marks, taken) = self.copy(lanes);
                all.push(time);
                if time < best {
                    (best, quarters, shares) = (time, marks, taken);
                }
            }
            all.sort_by(f64::total_cmp);
            println!(
                "{what}, {}: {:.1} ms (best {best:.1}; its quarters end at {quarters:.1?}; pieces by lane {shares:?})",
                if rests { "rested" } else { "at once" },
                all[all.len() / 2],
            );
        }
    }

    // Copies every piece; lanes take them from one queue. Returns the time, the times at which a quarter of
    // the pieces was given, and what each lane took.
    fn copy(&self, lanes: &[(Mover, usize)]) -> (f64, [f64; 4], Vec<u64>) {
        let next = AtomicU64::new(0);
        let streams: Vec<Vec<Stream>> = lanes
            .iter()
            .map(|(_, count)| (0..*count).map(|_| self.device.stream().unwrap()).collect())
            .collect();
        let quarters = [const { AtomicU32::new(0) }; 4];
        let began = Instant::now();
        let lane = |mover: Mover, streams: &[Stream]| {
            let (mut taken, mut in_flight) = (0, std::collections::VecDeque::new());
            loop {
                let piece = next.fetch_add(1, Relaxed);
                if piece >= self.pieces {
                    break;
                }
                let stream = &streams[taken as usize % streams.len()];
                self.give(mover, stream, piece);
                in_flight.push_back((stream, stream.mark().unwrap()));
                taken += 1;
                if in_flight.len() > streams.len().max(2) - 1 {
                    let (stream, mark) = in_flight.pop_front().expect("it was just added");
                    stream.wait(&mark).unwrap();
                }
                quarters[(piece * 4 / self.pieces) as usize]
                    .fetch_max(began.elapsed().as_micros() as u32, Relaxed);
            }
            for stream in streams {
                stream.synchronize().unwrap();
            }
            taken
        };
        let lane = &lane;
        let taken = thread::scope(|scope| {
            let threads: Vec<_> = lanes
                .iter()
                .zip(&streams)
                .map(|((mover, _), streams)| scope.spawn(move || lane(*mover, streams)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (ms(began), quarters.map(|us| f64::from(us.into_inner()) / 1e3), taken)
    }

    fn give(&self, mover: Mover, stream: &Stream, piece: u64) {
        let from = (&self.memory, Bytes(piece % SLOTS * PIECE));
        let to = (&self.reservation, Bytes(piece * PIECE));
        match mover {
            Mover::Engine => stream.copy_in(from, to, Bytes(PIECE)).unwrap(),
            Mover::Kernel => stream.copy_in_by_kernel(from, to, Bytes(PIECE)).unwrap(),
        }
    }
}

/// Copies a piece to an address of the device from one of the host, on a stream.
type Copy<'a> = &'a dyn Fn(u64, u64, u64) -> i32;

// The same copy asked for in other ways, in case one of them uses another engine.
fn other_calls(world: &World) {
    let (raw, mut context, mut host) = (Raw::load(), 0, 0);
    assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
    assert_eq!(raw.cuCtxSetCurrent(context), 0);
    assert_eq!(raw.cuMemHostAlloc(&mut host, SLOTS * PIECE, 0), 0);
    let to = world.reservation.address().0;
    let ways: [(&str, i32, Copy<'_>); 4] = [
        ("cuMemcpyHtoDAsync", 0, &|to, from, stream| {
            raw.cuMemcpyHtoDAsync_v2(to, from, PIECE, stream)
        }),
        ("cuMemcpyHtoDAsync, highest priority", -5, &|to, from, stream| {
            raw.cuMemcpyHtoDAsync_v2(to, from, PIECE, stream)
        }),
        ("cuMemcpyDtoDAsync from host memory", 0, &|to, from, stream| {
            raw.cuMemcpyDtoDAsync_v2(to, from, PIECE, stream)
        }),
        ("cuMemcpyAsync", 0, &|to, from, stream| raw.cuMemcpyAsync(to, from, PIECE, stream)),
    ];
    for (name, priority, copy) in ways {
        let mut stream = 0;
        assert_eq!(raw.cuStreamCreateWithPriority(&mut stream, 1, priority), 0);
        for rests in [true, false] {
            let mut all = Vec::new();
            for _ in 0..3 {
                world.before(rests);
                let began = Instant::now();
                for piece in 0..world.pieces {
                    let code = copy(to + piece * PIECE, host + piece % SLOTS * PIECE, stream);
                    assert_eq!(code, 0, "{name}");
                }
                assert_eq!(raw.cuStreamSynchronize(stream), 0);
                all.push(ms(began));
            }
            all.sort_by(f64::total_cmp);
            println!("{name}, {}: {:.1} ms", if rests { "rested" } else { "at once" }, all[1]);
        }
        assert_eq!(raw.cuStreamDestroy_v2(stream), 0);
    }
    assert_eq!(raw.cuMemFreeHost(host), 0);
    assert_eq!(raw.cuDevicePrimaryCtxRelease_v2(0), 0);
}
