//! Copies between the device and backups: one path for sleeps, wakes and backups ahead of time.
//!
//! Registered memory is what the link runs at full speed with, but it costs the device page tables
//! for as long as it is registered: for the backups of a model more than a sleeping process should
//! hold. So most of them are plain pages, and there are a few registered staging buffers. One thread
//! submits copies to the driver and keeps the link busy; others copy between buffers and pages of the host.
//! A part of the backups is registered all the same: its pieces go over the link whenever no buffer
//! is ready for it, so that it is busy where the processor cannot keep up.

pub(crate) mod packing;
pub(crate) mod piece;
pub(crate) mod queue;
pub(crate) mod streams;
pub(crate) mod transfer;

use std::thread;

use crate::copy::packing::Ring;
use crate::copy::piece::Piece;
use crate::copy::queue::{CopyWork, Direction, Job, QueuedPiece, copy_all, copy_here, submit_all};
use crate::copy::streams::{CopyStreams, Engine};
use crate::copy::transfer::{Transfer, Work};
use crate::lock::limit::Limit;
use crate::{Error, Result};

/// More threads than this get in the way of the one that submits (measured on 16 cores: 4 reach half of
/// the link, 12 0.96 of it, 14 less).
const THREADS_MOST: usize = 12;

/// Copies the pieces of a transfer until it is closed and empty, while `meanwhile` runs. The first failure
/// of any thread ends everything, and so does the limit, which is asked before each piece and each
/// part of one. On the way in, `meanwhile` calls what it is given once every piece is in the queue: that copies where
/// the system starts too few threads.
pub(crate) fn run(
    streams: &CopyStreams,
    transfer: &Transfer,
    ring: Option<&Ring>,
    limit: Limit<'_>,
    meanwhile: impl FnOnce(&dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<()> {
    // Where there are many, some are left to the submitting thread and the caller's.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores - cores / 4).min(THREADS_MOST).min(transfer.parts);
    let queue = &transfer.queue;
    queue.lend(std::mem::take(&mut *streams.buffers()));
    let of_transfer = transfer.engines(streams);
    let engines = of_transfer.len();
    let work = |engine: &Engine| Work { streams, transfer, ring, limit, engine: *engine, engines };
    let all: Vec<Work<'_>> = of_transfer.iter().map(work).collect();
    let all = &all;
    let outcome = thread::scope(|scope| {
        let _panic = EndAll(transfer);
        let refused = |source| {
            let operation = "starting a thread to copy";
            queue.end_if_failed(Err(lowtide_device::Error::Os { operation, source }.into()));
        };
        // The first ones submit, one for each engine; the others copy.
        let run = |number: usize| {
            let _panic = EndAll(transfer);
            queue.end_if_failed(match all.get(number) {
                Some(work) => submit_all(queue, work),
                None => copy_all(queue, &all[0]),
            });
        };
        let mut is_enough = true;
        for number in 0..all.len() + threads {
            let named = thread::Builder::new().name("lowtide-copy".to_owned());
            if let Err(error) = named.spawn_scoped(scope, move || run(number)) {
                is_enough = number > all.len();
                if !is_enough && queue.direction() == Direction::Out {
                    refused(error);
                }
                break;
            }
        }
        let here = || if is_enough { Ok(()) } else { copy_here(queue, &all[0]) };
        let outcome = match meanwhile(&here) {
            // Whoever is stopped stops the others; any other failure is told once they are done.
            stopped @ Err(Error::Stopped { .. }) => {
                queue.end_if_failed(stopped);
                Ok(())
            }
            outcome => outcome,
        };
        queue.close();
        outcome
    });
    let (buffers, copied) = queue.end();
    streams.buffers().extend(buffers);
    outcome?;
    copied
}

/// Copies pieces to the host on the calling thread, one after another, each to its end.
pub(crate) fn run_here(
    streams: &CopyStreams,
    transfer: &Transfer,
    ring: Option<&Ring>,
    pieces: impl IntoIterator<Item = Piece>,
) -> Result<()> {
    let (engine, limit) = (Engine::CopyEngine, Limit::NONE);
    let work = Work { streams, transfer, ring, limit, engine, engines: 1 };
    for piece in pieces {
        let parts = piece.parts();
        let job = Job::new(piece, if parts == 0 { None } else { Some(streams.take_buffer()?) });
        let submitted = work.submit(&job)?;
        work.wait(&job, submitted)?;
        (0..parts).try_for_each(|part| work.copy(&job, part))?;
        streams.buffers().extend(job.buffer.clone());
        work.arrived(&job.piece);
    }
    Ok(())
}

/// Ends all threads if its own panics, so that none waits for it; the panic goes on to the caller.
struct EndAll<'a>(&'a Transfer);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.queue.end_if_failed(Err(Error::Broken { during: "a copy" }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::Ordering::Relaxed;

    use lowtide_device::headroom::grant;
    use lowtide_device::{Bytes, Device, HostOptions, Reservation};
    use lowtide_testing::noise::first_other;

    use super::*;
    use crate::backups::slab::Memory;
    use crate::copy::packing::{self, Form, PieceForm};
    use crate::copy::queue::{Arrivals, Depth, Direction};
    use crate::lock::limit::Progress;
    use crate::policy::{PAGE, Policy};

    /// The sizes of pieces in pages: more pieces than buffers, some shorter than a whole piece.
    const SIZES: [u64; 12] = [4, 4, 1, 4, 3, 4, 4, 4, 2, 4, 4, 4];

    /// Pieces one behind the other on the device; on the host those of one kind are.
    struct World {
        streams: CopyStreams,
        reservation: Reservation,
        /// The location of each piece on the host.
        places: Vec<(Memory, Bytes)>,
    }

    impl World {
        // `is_direct` says which pieces are.
        fn new(is_direct: impl Fn(usize) -> bool) -> World {
            let size = Bytes(SIZES.iter().sum::<u64>() * PAGE);
            let device = Device::host(HostOptions {
                budget: Some(size + Bytes::mib(128)),
                small_pages: true,
            })
            .unwrap();
            let reservation = device.reserve(size).unwrap();
            reservation.map(Bytes::ZERO, device.create(size).unwrap()).unwrap();
            reservation.open(Bytes::ZERO, size).unwrap();
            let direct = Memory::direct(&device, size, &mut grant(size).unwrap()).unwrap();
            let plain = Memory::plain(grant(size).unwrap()).unwrap();
            let mut at = [Bytes::ZERO; 2];
            let places = SIZES.iter().enumerate().map(|(number, pages)| {
                let is_direct = is_direct(number);
                let next = &mut at[usize::from(is_direct)];
                let place = (if is_direct { &direct } else { &plain }.clone(), *next);
                *next += Bytes(pages * PAGE);
                place
            });
            let places = places.collect();
            World {
                streams: CopyStreams::new(&device, &Policy::default()).unwrap(),
                reservation,
                places,
            }
        }

        // Each is a chunk of its own.
        fn pieces(&self) -> Vec<Piece> {
            let mut offset = 0;
            let places = SIZES.iter().zip(&self.places).enumerate();
            let pieces = places.map(|(number, (pages, (memory, at)))| {
                let (reservation, memory) = (self.reservation.clone(), memory.clone());
                let (form, at) = (PieceForm::new(Form::Raw, *pages as usize), *at);
                offset += pages * PAGE;
                let offset = offset - pages * PAGE;
                Piece { chunk: number, reservation, offset, memory, at, form }
            });
            pieces.collect()
        }

        // The same, packed.
        fn packed(&self) -> Vec<Piece> {
            let mut pieces = self.pieces();
            for piece in &mut pieces {
                let pages = piece.offset..piece.offset + piece.form.size().0;
                let looked = packing::look(&self.streams.checks, &self.reservation, &[pages]);
                piece.form = PieceForm::with_bases(Form::Packed, looked.unwrap().into_iter());
            }
            pieces
        }

        // The byte that each piece consists of on the device.
        fn bytes_on_device(&self) -> Vec<u8> {
            let buffer = self.streams.buffer().unwrap();
            let byte = |piece: Piece| {
                let (from, size) = ((&self.reservation, Bytes(piece.offset)), piece.form.size());
                self.streams.checks.copy_out(from, (&buffer, Bytes::ZERO), size).unwrap();
                self.streams.checks.synchronize().unwrap();
                let mut bytes = vec![0; size.as_usize()];
                buffer.read(Bytes::ZERO, &mut bytes).unwrap();
                assert_eq!(first_other(&bytes, bytes[0]), None);
                bytes[0]
            };
            self.pieces().into_iter().map(byte).collect()
        }

        fn transfer(&self, direction: Direction) -> Transfer {
            Transfer::new(direction, SIZES.len(), self.pieces())
        }

        fn copy(&self, direction: Direction) -> Result<()> {
            self.copy_altered(direction, |_| ())
        }

        // All pieces; half of them are fed only when some of the others have arrived.
        fn copy_altered(&self, direction: Direction, alter: impl Fn(&mut Piece)) -> Result<()> {
            let (transfer, mut pieces) = (self.transfer(direction), self.pieces());
            pieces.iter_mut().for_each(alter);
            let late = pieces.split_off(SIZES.len() / 2);
            transfer.queue.add(pieces);
            let outcome = run(&self.streams, &transfer, None, Limit::NONE, |_| {
                let some = |arrivals: &mut Arrivals| (arrivals.chunks.len() > 2).then_some(());
                if transfer.queue.wait_until(some).is_some() {
                    for piece in late {
                        transfer.queue.add([piece]);
                    }
                }
                Ok(())
            });
            // Each piece arrived once.
            let Progress { done, total } = transfer.progress();
            assert_eq!(done == total, outcome.is_ok(), "{done} of {total}");
            outcome
        }

        fn write(&self, byte: impl Fn(usize) -> u8) {
            for (number, ((memory, at), pages)) in self.places.iter().zip(SIZES).enumerate() {
                memory.write(*at, &vec![byte(number); (pages * PAGE) as usize]).unwrap();
            }
        }

        fn assert_holds(&self, byte: impl Fn(usize) -> u8) {
            for (number, ((memory, at), pages)) in self.places.iter().zip(SIZES).enumerate() {
                let mut bytes = vec![0; (pages * PAGE) as usize];
                memory.read(*at, &mut bytes).unwrap();
                assert_eq!(first_other(&bytes, byte(number)), None, "piece {number}");
            }
        }
    }

    // None, all, each second, the first ones, the last ones.
    fn worlds() -> impl Iterator<Item = World> {
        let mixes: [fn(usize) -> bool; 5] = [
            |_| false,
            |_| true,
            |number| number % 2 == 0,
            |number| number < 4,
            |number| number > 7,
        ];
        mixes.into_iter().map(World::new)
    }

    #[test]
    fn pieces_of_either_kind_arrive_whichever_way_they_go() {
        for world in worlds() {
            for turn in 0..3 {
                let byte = |number: usize| (turn * 16 + number + 1) as u8;
                for direction in [Direction::In, Direction::Out] {
                    world.write(|number| if direction == Direction::In { byte(number) } else { 0 });
                    world.copy(direction).unwrap();
                }
                world.assert_holds(byte);
            }
        }
    }

    #[test]
    fn one_thread_copies_all_where_there_is_no_other() {
        for world in worlds() {
            world.write(|number| number as u8 + 1);
            let transfer = world.transfer(Direction::In);
            transfer.queue.add(world.pieces());
            let (streams, ring, engine) = (&world.streams, None, Engine::CopyEngine);
            let limit = Limit::NONE;
            let work = Work { streams, transfer: &transfer, ring, limit, engine, engines: 1 };
            copy_here(&transfer.queue, &work).unwrap();
            assert_eq!(
                transfer.queue.wait_until(|all| (all.pieces_left == 0).then_some(())),
                Some(())
            );
            world.write(|_| 0);
            world.copy(Direction::Out).unwrap();
            world.assert_holds(|number| number as u8 + 1);
        }
    }

    // Packed pieces go through the ring, or kernels read them from the host; whichever engine is faster takes
    // more of them, and here each takes all.
    #[test]
    fn packed_pieces_arrive_by_either_engine() {
        for world in worlds() {
            let byte = |number: usize| number as u8 + 1;
            world.write(byte);
            world.copy(Direction::In).unwrap();
            let ring = world.streams.ring_of_sleep(&Policy::default()).unwrap();
            let packed = world.packed();
            let transfer = Transfer::new(Direction::Out, SIZES.len(), &packed);
            transfer.queue.add(packed.clone());
            run(&world.streams, &transfer, Some(&ring), Limit::NONE, |_| Ok(())).unwrap();
            for (engine, ring) in [
                (Engine::CopyEngine, Some(&ring)),
                (Engine::CopyEngine, None),
                (Engine::Kernels, Some(&ring)),
            ] {
                let all = (&world.reservation, Bytes::ZERO);
                world.streams.checks.fill(all, 0, world.reservation.size()).unwrap();
                world.streams.checks.synchronize().unwrap();
                let transfer = &Transfer::new(Direction::In, SIZES.len(), &packed);
                assert_eq!(transfer.engines(&world.streams).len(), 2);
                transfer.queue.add(packed.clone());
                transfer.queue.close();
                let (streams, limit) = (&world.streams, Limit::NONE);
                let work = &Work { streams, transfer, ring, limit, engine, engines: 2 };
                let read = world.streams.read.load(Relaxed);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        transfer.queue.end_if_failed(copy_all(&transfer.queue, work));
                    });
                    submit_all(&transfer.queue, work).unwrap();
                });
                let by_kernels = if engine == Engine::Kernels { SIZES.len() } else { 0 };
                assert_eq!(world.streams.read.load(Relaxed) - read, by_kernels);
                assert_eq!(
                    world.bytes_on_device(),
                    SIZES.iter().enumerate().map(|(number, _)| byte(number)).collect::<Vec<_>>()
                );
            }
        }
    }

    #[test]
    fn kernels_help_with_many_pieces_on_the_way_in() {
        let world = World::new(|_| true);
        let transfer = |direction, pieces: &[Piece]| Transfer::new(direction, SIZES.len(), pieces);
        let engines =
            |direction, pieces: &[Piece]| transfer(direction, pieces).engines(&world.streams).len();
        for pieces in [world.pieces(), world.packed()] {
            assert_eq!([engines(Direction::In, &pieces), engines(Direction::Out, &pieces)], [2, 1]);
            assert_eq!(engines(Direction::In, &pieces[..2]), 1, "it is not worth a thread");
        }
        let transfer = transfer(Direction::In, &world.pieces());
        assert!(transfer.depth(Engine::Kernels, 2).most > 0, "at the beginning");
        transfer.queue.arrived(0, Bytes::gib(8).0);
        assert_eq!(transfer.depth(Engine::Kernels, 2).most, 0, "the copy engine has rested");
        assert_eq!(transfer.depth(Engine::CopyEngine, 2), Depth::ALONE);
    }

    #[test]
    fn two_engines_bring_in_pieces_of_both_forms() {
        for world in worlds() {
            let byte = |number: usize| number as u8 + 1;
            world.write(byte);
            world.copy(Direction::In).unwrap();
            let is_raw = |piece: &Piece| piece.chunk.is_multiple_of(5);
            let mut mixed = world.packed();
            for (piece, raw) in
                mixed.iter_mut().zip(world.pieces()).filter(|(piece, _)| is_raw(piece))
            {
                *piece = raw;
            }
            let ring = world.streams.ring_of_sleep(&Policy::default()).unwrap();
            for direction in [Direction::Out, Direction::In] {
                let transfer = Transfer::new(direction, SIZES.len(), &mixed);
                run(&world.streams, &transfer, Some(&ring), Limit::NONE, |_| {
                    transfer.queue.add(mixed.clone());
                    Ok(())
                })
                .unwrap();
                assert_eq!(transfer.progress().done, transfer.progress().total);
                if direction == Direction::Out {
                    let all = (&world.reservation, Bytes::ZERO);
                    world.streams.checks.fill(all, 0, world.reservation.size()).unwrap();
                    world.streams.checks.synchronize().unwrap();
                }
            }
            assert_eq!(world.bytes_on_device(), (0..SIZES.len()).map(byte).collect::<Vec<_>>());
        }
    }

    // One thread is enough, as for backups ahead of time.
    #[test]
    fn pieces_arrive_on_the_host_without_other_threads() {
        for world in worlds() {
            world.write(|number| number as u8 + 1);
            world.copy(Direction::In).unwrap();
            world.write(|_| 0);
            let transfer = world.transfer(Direction::Out);
            run_here(&world.streams, &transfer, None, world.pieces()).unwrap();
            assert_eq!(transfer.progress().done, transfer.progress().total);
            world.assert_holds(|number| number as u8 + 1);
        }
    }

    #[test]
    fn buffers_and_threads_are_had_only_for_pieces_that_need_them() {
        for (is_direct, buffers, parts) in [(true, 0, 0), (false, 1, SIZES.iter().sum::<u64>())] {
            let world = World::new(|_| is_direct);
            assert_eq!(world.transfer(Direction::Out).parts as u64, parts);
            world.copy(Direction::Out).unwrap();
            let made = world.streams.buffers().len();
            assert!((buffers..=8 * buffers).contains(&made), "{made} buffers");
            world.copy(Direction::In).unwrap();
            assert!(world.streams.buffers().len() >= made, "they are kept");
        }
    }

    #[test]
    fn a_refusal_ends_everybody_and_the_next_copy_works() {
        for world in worlds() {
            for direction in [Direction::Out, Direction::In] {
                for nth in [0, 5, SIZES.len() - 1] {
                    let refused = world.copy_altered(direction, |piece| {
                        if piece.chunk == nth {
                            piece.offset = world.reservation.size().0;
                        }
                    });
                    let refused = refused.unwrap_err();
                    let problem =
                        matches!(refused, Error::Device(lowtide_device::Error::BadRange { .. }));
                    assert!(problem, "{refused}");
                    world.streams.settle().unwrap();
                }
            }
            world.write(|number| number as u8);
            world.copy(Direction::In).unwrap();
            world.write(|_| 0);
            world.copy(Direction::Out).unwrap();
            world.assert_holds(|number| number as u8);
        }
    }

    #[test]
    fn whoever_panics_ends_everybody() {
        for world in worlds() {
            for direction in [Direction::Out, Direction::In] {
                // A chunk that is not there, when the piece has arrived.
                let of_a_carrier = catch_unwind(AssertUnwindSafe(|| {
                    world.copy_altered(direction, |piece| {
                        if piece.chunk == 3 {
                            piece.chunk = SIZES.len();
                        }
                    })
                }));
                assert!(of_a_carrier.is_err());
                let of_the_caller = catch_unwind(AssertUnwindSafe(|| {
                    let transfer = world.transfer(direction);
                    transfer.queue.add(world.pieces());
                    run(&world.streams, &transfer, None, Limit::NONE, |_| panic!("meanwhile"))
                }));
                assert!(of_the_caller.is_err());
                world.streams.settle().unwrap();
            }
        }
    }

    #[test]
    fn a_caller_that_fails_is_heard_once_what_was_fed_has_arrived() {
        for world in worlds() {
            let transfer = world.transfer(Direction::In);
            transfer.queue.add(world.pieces().into_iter().take(5));
            let fails = |_: &dyn Fn() -> Result<()>| Err(Error::NoAddresses { size: Bytes::ZERO });
            let refused = run(&world.streams, &transfer, None, Limit::NONE, fails).unwrap_err();
            assert!(matches!(refused, Error::NoAddresses { .. }), "{refused}");
            assert_eq!(transfer.progress().done, Bytes(SIZES[..5].iter().sum::<u64>() * PAGE));
        }
    }
}
