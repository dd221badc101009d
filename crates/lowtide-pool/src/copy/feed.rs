//! Real pieces in the hand-over between the threads of a copy.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_device::digest::Digest;
use lowtide_device::{Address, Bytes};

use crate::backups::slab::Memory;
use crate::backups::slab::PAGE;
use crate::copy::handover::{self, Handover, Ready, Way};
use crate::copy::piece::{DirectPiece, Piece, StagedPiece, StagingBuffer};
use crate::copy::shares::Shares;
use crate::lock::limit::Progress;

/// Enough that threads and link never wait for one another, few enough for the caches.
const BUFFERS_MOST: usize = 8;

pub(crate) type Job = handover::Job<StagedPiece, StagingBuffer>;
pub(crate) type Load = handover::Load<DirectPiece, StagedPiece, StagingBuffer>;

/// Pieces on their way from whoever makes them ready, and how far they have come.
pub(crate) struct Feed {
    pub(crate) handover: Handover<DirectPiece, StagedPiece, StagingBuffer>,
    /// The parts of all expected pieces that go through buffers.
    pub(crate) parts: usize,
    /// The bytes of all expected pieces.
    total: Bytes,
    /// The pieces that its lanes took.
    pub(crate) shares: Shares,
    /// Set where packed pieces are checked on the device.
    pub(crate) checks: bool,
    /// The results, by the addresses of the pages.
    checked: Mutex<BTreeMap<u64, PackedCheck>>,
}

/// The result of checking a packed page on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackedCheck {
    /// Unpacking it gives a page with this digest.
    Unpacks(Digest),
    /// Whether it differs from the page, by a comparison.
    Differs(bool),
}

impl Feed {
    /// Expects these pieces, of so many chunks.
    pub(crate) fn new(
        way: Way,
        chunks: usize,
        expected: impl IntoIterator<Item: Borrow<Piece>>,
    ) -> Feed {
        let (mut left, mut parts, mut total) = (vec![0; chunks], 0, Bytes::ZERO);
        for piece in expected {
            let piece = piece.borrow();
            left[piece.chunk] += 1;
            parts += if piece.memory.is_direct() { 0 } else { piece.parts() };
            total += piece.size;
        }
        let (handover, checked) = (Handover::new(way, left, BUFFERS_MOST), Mutex::default());
        Feed { handover, parts, total, shares: Shares::default(), checks: false, checked }
    }

    /// Checks packed pieces on the device, or does not.
    pub(crate) fn checking(self, checks: bool) -> Feed {
        Feed { checks, ..self }
    }

    /// Says what the checks of a piece's pages found.
    pub(crate) fn checked(&self, piece: &Piece, found: Vec<PackedCheck>) {
        let offsets = (piece.offset..).step_by(PAGE as usize);
        let pages = offsets.map(|offset| piece.reservation.address().plus(Bytes(offset)).0);
        self.checks_of_pages().extend(pages.zip(found));
    }

    /// Returns whether a packed page was found to be wrong, of a page that has this digest now.
    pub(crate) fn packs_wrongly(&self, page: Address, digest: Digest) -> bool {
        match self.checks_of_pages().get(&page.0) {
            Some(PackedCheck::Unpacks(found)) => *found != digest,
            Some(PackedCheck::Differs(differs)) => *differs,
            None => false,
        }
    }

    fn checks_of_pages(&self) -> MutexGuard<'_, BTreeMap<u64, PackedCheck>> {
        // Added to in one step, so a panic leaves nothing half-done.
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over pieces that are ready to be carried.
    pub(crate) fn add(&self, pieces: impl IntoIterator<Item = Piece>) {
        self.handover.add(pieces.into_iter().map(|piece| match piece.memory.clone() {
            Memory::Direct(memory) => Ready::Direct(DirectPiece { piece, memory }),
            Memory::Plain(pages) => Ready::Staged(StagedPiece { piece, pages }),
        }));
    }

    /// Says that a piece has arrived.
    pub(crate) fn arrived(&self, piece: &Piece) {
        self.handover.arrived(piece.chunk, piece.size.0);
    }

    /// Returns the bytes of all expected pieces.
    pub(crate) fn total(&self) -> Bytes {
        self.total
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress { done: Bytes(self.handover.arrived_bytes()), total: self.total }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use lowtide_device::headroom::grant;
    use lowtide_device::{Device, HostOptions, Reservation};

    use super::*;
    use crate::Error;
    use crate::backups::slab::Form;
    use crate::copy::handover::{LaneRoom, ToCopy, ToSend};
    use crate::copy::piece::{Bases, PIECE};

    /// The memory that pieces are made of. Nothing is copied here.
    struct World {
        reservation: Reservation,
        direct: Memory,
        plain: Memory,
        buffer: StagingBuffer,
    }

    impl World {
        fn new() -> World {
            let size = Bytes(PIECE);
            let options = HostOptions { budget: Some(size), small_pages: true };
            let device = Device::host(options).unwrap();
            World {
                reservation: device.reserve(Bytes(PIECE)).unwrap(),
                direct: Memory::direct(&device, size, &mut grant(size).unwrap()).unwrap(),
                plain: Memory::plain(grant(size).unwrap()).unwrap(),
                buffer: device.host_memory(Bytes(PIECE)).unwrap(),
            }
        }

        fn piece(&self, number: usize, memory: &Memory) -> Piece {
            let (reservation, memory) = (self.reservation.clone(), memory.clone());
            let (at, size) = (Bytes::ZERO, Bytes(PIECE));
            let (form, bases) = (Form::Raw, Bases::default());
            let offset = number as u64;
            Piece { chunk: 0, reservation, offset, memory, at, size, form, bases }
        }

        fn direct(&self, number: usize) -> Piece {
            self.piece(number, &self.direct)
        }

        fn plain(&self, number: usize) -> Piece {
            self.piece(number, &self.plain)
        }
    }

    fn fed(way: Way, pieces: Vec<Piece>) -> Feed {
        let feed = Feed::new(way, 1, &pieces);
        feed.add(pieces);
        feed
    }

    // The number of what is sent, with the job where it is in a buffer; it is given one where it has none.
    fn send(feed: &Feed, world: &World, in_flight: usize) -> Option<(usize, Option<Arc<Job>>)> {
        let job = match feed.handover.next_to_send(in_flight, LaneRoom::ALONE)? {
            ToSend::Load(Load::Direct(direct)) => {
                return Some((direct.piece.offset as usize, None));
            }
            ToSend::Load(Load::Staged(job)) => job,
            ToSend::Begin(staged) => Job::new(staged, Arc::clone(&world.buffer)),
        };
        Some((job.staged.piece.offset as usize, Some(job)))
    }

    // A thread's part on the way in, without the copying.
    fn fill(feed: &Feed, world: &World) -> usize {
        let job = match feed.handover.next_to_copy().unwrap() {
            ToCopy::Part(job, part) => {
                assert_eq!(part, 0);
                job
            }
            ToCopy::Begin(staged) => {
                let job = Job::new(staged, Arc::clone(&world.buffer));
                feed.handover.share(&job, 1);
                job
            }
        };
        for part in 1..job.staged.piece.parts() {
            let next = feed.handover.next_to_copy();
            assert!(matches!(next, Some(ToCopy::Part(same, found))
                if Arc::ptr_eq(&same, &job) && found == part));
        }
        let number = job.staged.piece.offset as usize;
        feed.handover.filled(job);
        number
    }

    #[test]
    fn on_the_way_out_buffers_come_first_and_the_rest_fills_the_gaps() {
        let world = World::new();
        let mut pieces: Vec<Piece> = (0..4).map(|number| world.direct(number)).collect();
        pieces.extend((4..=4 + BUFFERS_MOST).map(|number| world.plain(number)));
        let feed = fed(Way::Out, pieces);
        assert_eq!(feed.parts, (BUFFERS_MOST + 1) * 4);
        feed.handover.lend(vec![Arc::clone(&world.buffer)]);
        let next = |in_flight| {
            send(&feed, &world, in_flight).map(|(number, job)| {
                assert_eq!(job.is_some(), number > 3);
                number
            })
        };
        assert_eq!(next(0), Some(4), "there is a buffer");
        assert_eq!(next(1), Some(0), "before another is made");
        for buffer in 1..BUFFERS_MOST {
            assert_eq!(next(1 + buffer), Some(4 + buffer), "one is made");
        }
        assert_eq!(next(1 + BUFFERS_MOST), None, "there is enough in flight");
        assert_eq!(next(LaneRoom::ALONE.filled_up_to), None);
        assert_eq!(next(LaneRoom::ALONE.filled_up_to - 1), Some(1), "the link has room");
        assert_eq!(next(0), Some(2));
        feed.handover.emptied(&world.buffer);
        assert_eq!(next(0), Some(4 + BUFFERS_MOST), "a buffer is free");
        assert_eq!(next(0), Some(3));
        feed.handover.close();
        for _ in 0..BUFFERS_MOST {
            feed.handover.emptied(&world.buffer);
        }
        assert_eq!(next(0), None, "nothing is left");
        assert!(feed.handover.next_to_copy().is_none());
        let (buffers, outcome) = feed.handover.end();
        assert_eq!(buffers.len(), BUFFERS_MOST);
        outcome.unwrap();
    }

    #[test]
    fn on_the_way_in_buffers_come_first_and_the_rest_fills_the_gaps() {
        let world = World::new();
        let pieces =
            (0..3).map(|number| world.direct(number)).chain([world.plain(3), world.plain(4)]);
        let feed = fed(Way::In, pieces.collect());
        feed.handover.lend(vec![Arc::clone(&world.buffer)]);
        for in_flight in 0..LaneRoom::ALONE.filled_up_to {
            assert_eq!(send(&feed, &world, in_flight).unwrap().0, in_flight, "no buffer is full");
        }
        assert!(
            send(&feed, &world, LaneRoom::ALONE.filled_up_to).is_none(),
            "there is enough in flight"
        );
        assert_eq!([fill(&feed, &world), fill(&feed, &world)], [3, 4]);
        let jobs = [5, 6].map(|in_flight| send(&feed, &world, in_flight).unwrap().1.unwrap());
        assert_eq!(
            jobs.each_ref().map(|job| job.staged.piece.offset as usize),
            [3, 4],
            "whatever is in flight"
        );
        assert_eq!(send(&feed, &world, 0).unwrap().0, 2);
        feed.handover.close();
        for job in &jobs {
            feed.handover.emptied(&job.buffer);
        }
        assert!(send(&feed, &world, 0).is_none(), "nothing is left");
        assert!(feed.handover.next_to_copy().is_none());
    }

    // With nothing in flight, whoever sends waits for whatever comes, and for the end.
    #[test]
    fn who_sends_waits_for_either_kind_and_for_the_end() {
        let world = &World::new();
        for way in [Way::Out, Way::In] {
            let expected = [world.direct(0), world.plain(1), world.direct(2)];
            let feed = &Feed::new(way, 1, &expected);
            thread::scope(|scope| {
                let (tell, told) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    while let Some((number, job)) = send(feed, world, 0) {
                        if let Some(job) = job {
                            feed.handover.emptied(&job.buffer);
                        }
                        tell.send(number).unwrap();
                    }
                });
                for piece in expected {
                    let (number, is_direct) = (piece.offset as usize, piece.memory.is_direct());
                    feed.add([piece]);
                    if way == Way::In && !is_direct {
                        fill(feed, world);
                    }
                    assert_eq!(told.recv().unwrap(), number);
                }
                feed.handover.close();
                assert!(told.recv().is_err(), "it has ended");
            });
        }
    }

    #[test]
    fn a_failure_ends_everybody_and_is_told_once() {
        let world = &World::new();
        for way in [Way::Out, Way::In] {
            let feed = &Feed::new(way, 1, [world.direct(0)]);
            thread::scope(|scope| {
                scope.spawn(|| assert!(feed.handover.next_to_send(0, LaneRoom::ALONE).is_none()));
                scope.spawn(|| assert!(feed.handover.next_to_copy().is_none()));
                scope.spawn(|| {
                    assert!(
                        feed.handover.wait_until(|left| (left[0] == 0).then_some(())).is_none()
                    );
                });
                for during in ["first", "second"] {
                    feed.handover.watch(Err(Error::Broken { during }));
                }
            });
            feed.add([world.direct(0), world.plain(1)]);
            assert!(
                feed.handover.next_to_send(0, LaneRoom::ALONE).is_none()
                    && feed.handover.next_to_copy().is_none()
            );
            let (_, outcome) = feed.handover.end();
            assert!(matches!(outcome, Err(Error::Broken { during: "first" })));
        }
    }
}
