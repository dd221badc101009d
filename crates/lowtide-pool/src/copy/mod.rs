//! Carrying bytes between the device and backups.
//!
//! Registered memory is what the link runs at full speed with, but it costs the device page tables
//! for as long as it is registered: for the backups of a model more than a sleeping process should
//! hold. So most of them are plain pages, and there are a few registered staging buffers. One thread
//! speaks with the driver and keeps the link busy; others copy between buffers and pages of the host.
//! A part of the backups is registered all the same: its pieces go over the link whenever no buffer
//! is ready for it, so that it is busy where the processor cannot keep up.

pub(crate) mod carriers;
pub(crate) mod feed;
pub(crate) mod handover;
pub(crate) mod haul;
pub(crate) mod lanes;
pub(crate) mod piece;
pub(crate) mod retry;
pub(crate) mod ring;
pub(crate) mod shares;

use std::thread;

use crate::copy::carriers::Carriers;
use crate::copy::feed::Feed;
use crate::copy::haul::Lane;
use crate::copy::ring::Ring;
use crate::copy::shares::Mover;
use crate::lock::limit::Limit;
use crate::{Error, Result};

/// More threads than this get in the way of the one that speaks with the driver (measured on 16 cores:
/// 4 reach half of the link, 12 0.96 of it, 14 less).
const THREADS_MOST: usize = 12;

/// Carries the pieces of a feed until it is closed and empty, while `meanwhile` runs. The first failure
/// of any thread ends everything, and so does the limit, which is asked before each piece and each
/// part of one.
pub(crate) fn carry(
    carriers: &Carriers,
    feed: &Feed,
    ring: Option<&Ring>,
    limit: Limit<'_>,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<()> {
    // Where there are many, some are left to the thread that speaks with the driver and the caller's.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores - cores / 4).min(THREADS_MOST).min(feed.parts);
    let handover = &feed.handover;
    handover.lend(std::mem::take(&mut *carriers.buffers()));
    let movers = if carriers.has_two_lanes(feed) {
        &[Mover::CopyEngine, Mover::Kernels][..]
    } else {
        &[Mover::CopyEngine][..]
    };
    let all: Vec<Lane<'_>> =
        movers.iter().map(|mover| Lane { carriers, feed, ring, limit, mover: *mover }).collect();
    let outcome = thread::scope(|scope| {
        let _panic = EndAll(feed);
        let driving = |lane: &Lane<'_>| {
            let _panic = EndAll(lane.feed);
            handover.watch(lanes::drive(handover, lane));
        };
        let lane = &all[0];
        let copying = move || {
            let _panic = EndAll(lane.feed);
            handover.watch(lanes::copy(handover, lane));
        };
        let refused = |source| {
            let operation = "starting a thread to copy";
            handover.watch(Err(lowtide_device::Error::Os { operation, source }.into()));
        };
        let named = || thread::Builder::new().name("lowtide-carrier".to_owned());
        for lane in &all {
            named().spawn_scoped(scope, move || driving(lane)).map_or_else(refused, drop);
        }
        for _ in 0..threads {
            named().spawn_scoped(scope, copying).map_or_else(refused, drop);
        }
        let outcome = match meanwhile() {
            // Whoever is stopped stops the others; any other failure is told once they are done.
            stopped @ Err(Error::Stopped { .. }) => {
                handover.watch(stopped);
                Ok(())
            }
            outcome => outcome,
        };
        handover.close();
        outcome
    });
    let (buffers, carried) = handover.end();
    carriers.buffers().extend(buffers);
    outcome?;
    carried
}

/// Ends everybody if its thread panics, so that nobody waits for it; the panic goes on to the caller.
struct EndAll<'a>(&'a Feed);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.handover.watch(Err(Error::Broken { during: "a copy" }));
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
    use crate::backups::slab::Form;
    use crate::backups::slab::Memory;
    use crate::copy::carriers::{COPY_ENGINE_ROOM, KERNELS_ROOM, NO_ROOM};
    use crate::copy::handover::{LaneRoom, Way};
    use crate::copy::piece::{Bases, Piece};
    use crate::lock::limit::Progress;
    use crate::policy::Policy;

    const PAGE: u64 = 2 << 20;
    /// The sizes of pieces in pages: more pieces than buffers, some shorter than a whole piece.
    const SIZES: [u64; 12] = [4, 4, 1, 4, 3, 4, 4, 4, 2, 4, 4, 4];

    /// Pieces one behind the other on the device; on the host those of one kind are.
    struct World {
        carriers: Carriers,
        reservation: Reservation,
        /// The location of each piece on the host.
        places: Vec<(Memory, Bytes)>,
    }

    impl World {
        // `is_direct` says which pieces are.
        fn new(is_direct: impl Fn(usize) -> bool) -> World {
            let size = Bytes(SIZES.iter().sum::<u64>() * PAGE);
            let device =
                Device::host(HostOptions { budget: Some(size), small_pages: true }).unwrap();
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
                carriers: Carriers::new(&device, &Policy::default()).unwrap(),
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
                let (size, at) = (Bytes(pages * PAGE), *at);
                offset += size.0;
                let offset = offset - size.0;
                let (form, bases) = (Form::Raw, Bases::default());
                Piece { chunk: number, reservation, offset, memory, at, size, form, bases }
            });
            pieces.collect()
        }

        fn feed(&self, way: Way) -> Feed {
            Feed::new(way, SIZES.len(), self.pieces())
        }

        fn carry(&self, way: Way) -> Result<()> {
            self.carry_altered(way, |_| ())
        }

        // All pieces; half of them are fed only when some of the others have arrived.
        fn carry_altered(&self, way: Way, alter: impl Fn(&mut Piece)) -> Result<()> {
            let (feed, mut pieces) = (self.feed(way), self.pieces());
            pieces.iter_mut().for_each(alter);
            let late = pieces.split_off(SIZES.len() / 2);
            feed.add(pieces);
            let outcome = carry(&self.carriers, &feed, None, Limit::NONE, || {
                let some = |left: &[usize]| left.iter().filter(|left| **left == 0).nth(2).map(drop);
                if feed.handover.wait_until(some).is_some() {
                    for piece in late {
                        feed.add([piece]);
                    }
                }
                Ok(())
            });
            // Each piece arrived once.
            let Progress { done, total } = feed.progress();
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
                for way in [Way::In, Way::Out] {
                    world.write(|number| if way == Way::In { byte(number) } else { 0 });
                    world.carry(way).unwrap();
                }
                world.assert_holds(byte);
            }
        }
    }

    // Whichever lane is faster takes more pieces; here the kernels' takes all.
    #[test]
    fn kernels_bring_in_what_the_copy_engine_leaves() {
        for world in worlds() {
            let byte = |number: usize| number as u8 + 1;
            world.write(byte);
            let feed = world.feed(Way::In);
            feed.add(world.pieces());
            feed.handover.close();
            let (mover, limit) = (Mover::Kernels, Limit::NONE);
            let lane = Lane { carriers: &world.carriers, feed: &feed, ring: None, limit, mover };
            thread::scope(|scope| {
                scope.spawn(|| feed.handover.watch(lanes::copy(&feed.handover, &lane)));
                lanes::drive(&feed.handover, &lane).unwrap();
            });
            assert_eq!(world.carriers.read.load(Relaxed), SIZES.len());
            world.write(|_| 0);
            world.carry(Way::Out).unwrap();
            world.assert_holds(byte);
        }
    }

    #[test]
    fn a_second_lane_is_for_much_on_the_way_in_until_the_policy_says_enough() {
        let mut world = World::new(|_| true);
        let arenas = |world: &World, feed: &Feed| {
            [Mover::CopyEngine, Mover::Kernels].map(|mover| world.carriers.arena_id(mover, feed))
        };
        let (out, into) = (world.feed(Way::Out), world.feed(Way::In));
        assert_eq!(arenas(&world, &out)[0], LaneRoom::ALONE);
        assert_eq!(arenas(&world, &into), [COPY_ENGINE_ROOM, KERNELS_ROOM]);
        let few = Feed::new(Way::In, SIZES.len(), world.pieces().into_iter().take(2));
        assert_eq!(rooms(&world, &few)[0], LaneRoom::ALONE, "it is not worth a thread");
        world.carriers.kernel_copies = Bytes(SIZES[0] * PAGE);
        into.arrived(&world.pieces()[0]);
        assert_eq!(arenas(&world, &into), [LaneRoom::ALONE, NO_ROOM]);
        let policy = Policy::default().kernel_copies(Bytes::ZERO);
        world.carriers = Carriers::new(world.carriers.device(), &policy).unwrap();
        assert_eq!(arenas(&world, &into)[0], LaneRoom::ALONE);
    }

    #[test]
    fn buffers_and_threads_are_had_only_for_pieces_that_need_them() {
        for (is_direct, buffers, parts) in [(true, 0, 0), (false, 1, SIZES.iter().sum::<u64>())] {
            let world = World::new(|_| is_direct);
            assert_eq!(world.feed(Way::Out).parts as u64, parts);
            world.carry(Way::Out).unwrap();
            let made = world.carriers.buffers().len();
            assert!((buffers..=8 * buffers).contains(&made), "{made} buffers");
            world.carry(Way::In).unwrap();
            assert!(world.carriers.buffers().len() >= made, "they are kept");
        }
    }

    #[test]
    fn a_refusal_ends_everybody_and_the_next_carrying_works() {
        for world in worlds() {
            for way in [Way::Out, Way::In] {
                for nth in [0, 5, SIZES.len() - 1] {
                    let refused = world.carry_altered(way, |piece| {
                        if piece.chunk == nth {
                            piece.offset = world.reservation.size().0;
                        }
                    });
                    let refused = refused.unwrap_err();
                    let problem =
                        matches!(refused, Error::Device(lowtide_device::Error::BadRange { .. }));
                    assert!(problem, "{refused}");
                    world.carriers.settle().unwrap();
                }
            }
            world.write(|number| number as u8);
            world.carry(Way::In).unwrap();
            world.write(|_| 0);
            world.carry(Way::Out).unwrap();
            world.assert_holds(|number| number as u8);
        }
    }

    #[test]
    fn whoever_panics_ends_everybody() {
        for world in worlds() {
            for way in [Way::Out, Way::In] {
                // A chunk that is not there, when the piece has arrived.
                let of_a_carrier = catch_unwind(AssertUnwindSafe(|| {
                    world.carry_altered(way, |piece| {
                        if piece.chunk == 3 {
                            piece.chunk = SIZES.len();
                        }
                    })
                }));
                assert!(of_a_carrier.is_err());
                let of_the_caller = catch_unwind(AssertUnwindSafe(|| {
                    let feed = world.feed(way);
                    feed.add(world.pieces());
                    carry(&world.carriers, &feed, None, Limit::NONE, || panic!("meanwhile"))
                }));
                assert!(of_the_caller.is_err());
                world.carriers.settle().unwrap();
            }
        }
    }

    #[test]
    fn a_caller_that_fails_is_heard_once_what_was_fed_has_arrived() {
        for world in worlds() {
            let feed = world.feed(Way::In);
            feed.add(world.pieces().into_iter().take(5));
            let fails = || Err(Error::NoAddresses { size: Bytes::ZERO });
            let refused = carry(&world.carriers, &feed, None, Limit::NONE, fails).unwrap_err();
            assert!(matches!(refused, Error::NoAddresses { .. }), "{refused}");
            assert_eq!(feed.progress().done, Bytes(SIZES[..5].iter().sum::<u64>() * PAGE));
        }
    }
}
