//! A transfer: pieces on their way between the device and backups, and how each engine moves one.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_device::digest::Digest;
use lowtide_device::{Address, Bytes, Mark, PendingDigests, Stream};

use crate::Result;
use crate::copy::packing::Ring;
use crate::copy::piece::{Piece, StagingBuffer};
use crate::copy::queue::{CopyWork, Depth, Direction, Job, Queue, QueuedPiece};
use crate::copy::streams::{CopyStreams, Engine, READING_STREAMS, twice};
use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::{PAGE, PIECE};

/// Enough that threads and link never wait for one another, few enough for the caches.
pub(crate) const BUFFERS_MOST: usize = 8;

/// What each of two engines may have in flight: few pieces, so that the other finds some. Direct pieces are
/// for gaps on the link, and kernels take one only where they have nothing else.
const COPY_ENGINE_DEPTH: Depth = Depth { most: 3, direct_below: 2 };
const KERNELS_DEPTH: Depth = Depth { most: READING_STREAMS, direct_below: 1 };

/// Kernels help in copies of more bytes than this.
const HELPED_FROM: Bytes = Bytes(4 * PIECE);
/// Kernels help with this many bytes. By then the driver has cleared what a sleep freed, and a kernel uses the link
/// a little worse than a rested copy engine.
const HELPED_UP_TO: Bytes = Bytes::gib(8);

/// Pieces on their way, and how far they have come.
pub(crate) struct Transfer {
    pub(crate) queue: Queue<Piece, StagingBuffer>,
    /// The parts of all expected pieces that go through buffers.
    pub(crate) parts: usize,
    /// The bytes of all expected pieces.
    total: Bytes,
    /// The digests of what packed pages unpack to, by address, where they are checked.
    unpacked: Mutex<BTreeMap<u64, Digest>>,
}

impl Transfer {
    /// Expects these pieces, of so many chunks.
    pub(crate) fn new(
        direction: Direction,
        chunks: usize,
        expected: impl IntoIterator<Item: Borrow<Piece>>,
    ) -> Transfer {
        let (mut left, mut parts, mut total) = (vec![0; chunks], 0, Bytes::ZERO);
        for piece in expected {
            let piece = piece.borrow();
            left[piece.chunk] += 1;
            parts += piece.parts();
            total += piece.form.size();
        }
        let (queue, unpacked) = (Queue::new(direction, left, BUFFERS_MOST), Mutex::default());
        Transfer { queue, parts, total, unpacked }
    }

    /// Returns the engines that move its pieces. Right after a sleep the driver still clears the memory that
    /// left, with the engine that copies in, which then takes twice as long: kernels make up for it
    /// (docs/decisions/0005-sleep-and-wake.md).
    pub(crate) fn engines(&self, streams: &CopyStreams) -> &'static [Engine] {
        let is_in = self.queue.direction() == Direction::In;
        if is_in && streams.has_kernels() && self.total > HELPED_FROM {
            &[Engine::CopyEngine, Engine::Kernels]
        } else {
            &[Engine::CopyEngine]
        }
    }

    /// Returns what one of so many engines may have in flight now.
    pub(crate) fn depth(&self, engine: Engine, engines: usize) -> Depth {
        let have_helped = engines == 1 || self.progress().done >= HELPED_UP_TO;
        match engine {
            Engine::CopyEngine if have_helped => Depth::ALONE,
            Engine::CopyEngine => COPY_ENGINE_DEPTH,
            Engine::Kernels if have_helped => Depth { most: 0, direct_below: 0 },
            Engine::Kernels => KERNELS_DEPTH,
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress { done: Bytes(self.queue.arrived_bytes()), total: self.total }
    }

    /// Returns whether a packed page was found to be wrong, of a page that has this digest now.
    pub(crate) fn unpacks_wrongly(&self, page: Address, digest: Digest) -> bool {
        self.unpacked().get(&page.0).is_some_and(|unpacked| *unpacked != digest)
    }

    fn unpacked(&self) -> MutexGuard<'_, BTreeMap<u64, Digest>> {
        // Added to in one step, so a panic leaves nothing half-done.
        self.unpacked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of a transfer, as one engine does it.
pub(crate) struct Work<'a> {
    pub(crate) streams: &'a CopyStreams,
    pub(crate) transfer: &'a Transfer,
    /// Device memory for packed pieces.
    pub(crate) ring: Option<&'a Ring>,
    pub(crate) limit: Limit<'a>,
    pub(crate) engine: Engine,
    /// The number of engines that share the pieces.
    pub(crate) engines: usize,
}

/// A copy in flight.
pub(crate) struct Submitted<'a> {
    stream: &'a Stream,
    mark: Mark,
    /// The digests of unpacked pages, where the piece was packed and is checked.
    check: Option<PendingDigests<'a>>,
}

impl<'a> CopyWork<Piece, StagingBuffer> for Work<'a> {
    type Submitted = Submitted<'a>;

    fn depth(&self) -> Depth {
        self.transfer.depth(self.engine, self.engines)
    }

    fn go_on(&self) -> Result<()> {
        let step = match self.transfer.queue.direction() {
            Direction::Out => TurnStep::CopyingOut,
            Direction::In => TurnStep::CopyingIn,
        };
        self.limit.ask(step, || self.transfer.progress())
    }

    fn buffer(&self) -> Result<StagingBuffer> {
        Ok(self.streams.buffer()?)
    }

    fn submit(&self, job: &Job<Piece, StagingBuffer>) -> Result<Submitted<'a>> {
        let piece = &job.piece;
        let (on_device, on_host) =
            ((&piece.reservation, Bytes(piece.offset)), piece.on_host(job.buffer.as_ref()));
        let (number, stream) = self.streams.next(self.engine, piece.is_packed());
        let ring = self.ring.filter(|_| self.engine == Engine::CopyEngine);
        let place = ring.map(|ring| ring.place(number));
        let check = twice(|| match self.transfer.queue.direction() {
            Direction::Out => piece.form.copy_out(stream, on_device, on_host, place),
            Direction::In => {
                let by_kernel = self.engine == Engine::Kernels;
                piece.form.copy_in(stream, on_host, on_device, place, by_kernel).map(|()| None)
            }
        })?;
        Ok(Submitted { stream, mark: twice(|| stream.mark())?, check })
    }

    fn wait(&self, job: &Job<Piece, StagingBuffer>, submitted: Submitted<'a>) -> Result<()> {
        let Submitted { stream, mark, check } = submitted;
        twice(|| stream.wait(&mark))?;
        if let Some(check) = check {
            let first = job.piece.reservation.address().plus(Bytes(job.piece.offset)).0;
            let pages = (first..).step_by(PAGE as usize);
            self.transfer.unpacked().extend(pages.zip(check.wait_for(&mark)?));
        }
        Ok(())
    }

    fn copy(&self, job: &Job<Piece, StagingBuffer>, part: usize) -> Result<()> {
        let buffer = job.buffer.as_ref().expect("a piece with parts is in a buffer");
        Ok(job.piece.copy(buffer, self.transfer.queue.direction(), part)?)
    }

    fn arrived(&self, piece: &Piece) {
        self.transfer.queue.arrived(piece.chunk, piece.form.size().0);
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
    use crate::backups::slab::Memory;
    use crate::copy::packing::{Form, PieceForm};
    use crate::copy::queue::{ToCopy, ToSubmit};

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
            let form = PieceForm::new(Form::Raw, (PIECE / PAGE) as usize);
            let offset = number as u64;
            Piece { chunk: 0, reservation, offset, memory, at: Bytes::ZERO, form }
        }

        fn direct(&self, number: usize) -> Piece {
            self.piece(number, &self.direct)
        }

        fn plain(&self, number: usize) -> Piece {
            self.piece(number, &self.plain)
        }
    }

    type PieceJob = Job<Piece, StagingBuffer>;

    fn fed(direction: Direction, pieces: Vec<Piece>) -> Transfer {
        let transfer = Transfer::new(direction, 1, &pieces);
        transfer.queue.add(pieces);
        transfer
    }

    // The number of what is sent, with the job where it is in a buffer; it is given one where it has none.
    fn send(
        transfer: &Transfer,
        world: &World,
        in_flight: usize,
    ) -> Option<(usize, Option<Arc<PieceJob>>)> {
        let job = match transfer.queue.next_to_submit(in_flight, Depth::ALONE)? {
            ToSubmit::Ready(job) => job,
            ToSubmit::Begin(piece) => Job::new(piece, Some(Arc::clone(&world.buffer))),
        };
        let number = job.piece.offset as usize;
        Some((number, job.buffer.is_some().then_some(job)))
    }

    // A thread's part on the way in, without the copying.
    fn fill(transfer: &Transfer, world: &World) -> usize {
        let job = match transfer.queue.next_to_copy().unwrap() {
            ToCopy::Part(job, part) => {
                assert_eq!(part, 0);
                job
            }
            ToCopy::Begin(piece) => {
                let job = Job::new(piece, Some(Arc::clone(&world.buffer)));
                transfer.queue.share(&job, 1);
                job
            }
        };
        for part in 1..job.piece.parts() {
            let next = transfer.queue.next_to_copy();
            assert!(matches!(next, Some(ToCopy::Part(same, found))
                if Arc::ptr_eq(&same, &job) && found == part));
        }
        let number = job.piece.offset as usize;
        transfer.queue.filled(job);
        number
    }

    #[test]
    fn on_the_way_out_buffers_come_first_and_the_rest_fills_the_gaps() {
        let world = World::new();
        let mut pieces: Vec<Piece> = (0..4).map(|number| world.direct(number)).collect();
        pieces.extend((4..=4 + BUFFERS_MOST).map(|number| world.plain(number)));
        let transfer = fed(Direction::Out, pieces);
        assert_eq!(transfer.parts, (BUFFERS_MOST + 1) * 4);
        transfer.queue.lend(vec![Arc::clone(&world.buffer)]);
        let next = |in_flight| {
            send(&transfer, &world, in_flight).map(|(number, job)| {
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
        assert_eq!(next(Depth::ALONE.direct_below), None);
        assert_eq!(next(Depth::ALONE.direct_below - 1), Some(1), "the link has room");
        assert_eq!(next(0), Some(2));
        transfer.queue.emptied(&world.buffer);
        assert_eq!(next(0), Some(4 + BUFFERS_MOST), "a buffer is free");
        assert_eq!(next(0), Some(3));
        transfer.queue.close();
        for _ in 0..BUFFERS_MOST {
            transfer.queue.emptied(&world.buffer);
        }
        assert_eq!(next(0), None, "nothing is left");
        assert!(transfer.queue.next_to_copy().is_none());
        let (buffers, outcome) = transfer.queue.end();
        assert_eq!(buffers.len(), BUFFERS_MOST);
        outcome.unwrap();
    }

    #[test]
    fn on_the_way_in_buffers_come_first_and_the_rest_fills_the_gaps() {
        let world = World::new();
        let pieces =
            (0..3).map(|number| world.direct(number)).chain([world.plain(3), world.plain(4)]);
        let transfer = fed(Direction::In, pieces.collect());
        transfer.queue.lend(vec![Arc::clone(&world.buffer)]);
        for in_flight in 0..Depth::ALONE.direct_below {
            assert_eq!(
                send(&transfer, &world, in_flight).unwrap().0,
                in_flight,
                "no buffer is full"
            );
        }
        assert!(
            send(&transfer, &world, Depth::ALONE.direct_below).is_none(),
            "there is enough in flight"
        );
        assert_eq!([fill(&transfer, &world), fill(&transfer, &world)], [3, 4]);
        let jobs = [5, 6].map(|in_flight| send(&transfer, &world, in_flight).unwrap().1.unwrap());
        assert_eq!(
            jobs.each_ref().map(|job| job.piece.offset as usize),
            [3, 4],
            "whatever is in flight"
        );
        assert_eq!(send(&transfer, &world, 0).unwrap().0, 2);
        transfer.queue.close();
        for job in &jobs {
            transfer.queue.emptied(job.buffer.as_ref().unwrap());
        }
        assert!(send(&transfer, &world, 0).is_none(), "nothing is left");
        assert!(transfer.queue.next_to_copy().is_none());
    }

    // With nothing in flight, whoever sends waits for whatever comes, and for the end.
    #[test]
    fn who_sends_waits_for_either_kind_and_for_the_end() {
        let world = &World::new();
        for direction in [Direction::Out, Direction::In] {
            let expected = [world.direct(0), world.plain(1), world.direct(2)];
            let transfer = &Transfer::new(direction, 1, &expected);
            thread::scope(|scope| {
                let (tell, told) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    while let Some((number, job)) = send(transfer, world, 0) {
                        if let Some(job) = job {
                            transfer.queue.emptied(job.buffer.as_ref().unwrap());
                        }
                        tell.send(number).unwrap();
                    }
                });
                for piece in expected {
                    let (number, is_direct) = (piece.offset as usize, piece.memory.is_direct());
                    transfer.queue.add([piece]);
                    if direction == Direction::In && !is_direct {
                        fill(transfer, world);
                    }
                    assert_eq!(told.recv().unwrap(), number);
                }
                transfer.queue.close();
                assert!(told.recv().is_err(), "it has ended");
            });
        }
    }

    #[test]
    fn a_failure_ends_everybody_and_is_told_once() {
        let world = &World::new();
        for direction in [Direction::Out, Direction::In] {
            let transfer = &Transfer::new(direction, 1, [world.direct(0)]);
            thread::scope(|scope| {
                scope.spawn(|| assert!(transfer.queue.next_to_submit(0, Depth::ALONE).is_none()));
                scope.spawn(|| assert!(transfer.queue.next_to_copy().is_none()));
                scope.spawn(|| {
                    assert!(
                        transfer.queue.wait_until(|arrivals| arrivals.chunks.pop_front()).is_none()
                    );
                });
                for during in ["first", "second"] {
                    transfer.queue.end_if_failed(Err(Error::Broken { during }));
                }
            });
            transfer.queue.add([world.direct(0), world.plain(1)]);
            assert!(
                transfer.queue.next_to_submit(0, Depth::ALONE).is_none()
                    && transfer.queue.next_to_copy().is_none()
            );
            let (_, outcome) = transfer.queue.end();
            assert!(matches!(outcome, Err(Error::Broken { during: "first" })));
        }
    }
}
