//! Carrying bytes between the device and backups, through a little registered memory.
//!
//! Registered memory is what the link runs at full speed with, but it costs the device page tables
//! for as long as it is registered: for the backups of a model more than a sleeping process should
//! hold. So there are a few slots of it. One thread speaks with the driver and keeps the link busy;
//! others copy between slots and pages of the host.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use lowtide_device::{
    Bytes, Device, Error, HostMemory, HostPages, Mark, Reservation, Result, Stream,
};

use crate::queue::Queue;
use crate::turn::twice;

/// More threads than this get in the way of the one that speaks with the driver (measured on 16 cores:
/// 4 reach half of the link, 12 0.96 of it, 14 less).
const THREADS_MOST: usize = 12;
/// What goes over the link at once. Each copy leaves it idle for some 2 µs, which is 1.5% of a copy of
/// 8 MiB; larger pieces want larger slots, and what is in them should still be in the caches when
/// the other side reads it.
pub(crate) const PIECE: u64 = 8 << 20;
/// What a thread copies at once, so that several work on one piece. Pages have a lock each.
const PART: u64 = 2 << 20;
/// Enough that threads and link never wait for one another, few enough for the caches.
const SLOTS_MOST: usize = 8;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

/// Neighbouring bytes, at most [`PIECE`] of them.
pub(crate) struct Piece {
    /// Its own number, for whoever is told that it has arrived.
    pub(crate) number: usize,
    /// The number of the chunk it is in.
    pub(crate) chunk: usize,
    pub(crate) reservation: Reservation,
    pub(crate) offset: u64,
    pub(crate) pages: Arc<HostPages>,
    pub(crate) at: Bytes,
    pub(crate) size: Bytes,
}

type Slot = Arc<HostMemory>;

/// Streams and slots, kept from one turn to the next.
pub(crate) struct Carriers {
    device: Device,
    copies: Stream,
    /// For whoever digests or fills meanwhile.
    pub(crate) checks: Stream,
    slots: Mutex<Vec<Slot>>,
}

/// Pieces on their way from whoever makes them ready to the threads.
pub(crate) struct Feed {
    pieces: Queue<Piece>,
    progress: Mutex<Progress>,
    moved: Condvar,
}

struct Progress {
    /// Pieces of each chunk that have not arrived.
    left: Vec<usize>,
    error: Option<Error>,
}

impl Carriers {
    /// The carriers of a turn, made if there are none, with nothing left over from a turn that failed.
    pub(crate) fn ready<'a>(
        kept: &'a mut Option<Carriers>,
        device: &Device,
    ) -> Result<&'a mut Carriers> {
        match kept {
            Some(carriers) => carriers.settle()?,
            None => *kept = Some(Carriers::new(device)?),
        }
        Ok(kept.as_mut().expect("they were there, or were just made"))
    }

    /// Waits for everything: what copies held is let go.
    pub(crate) fn settle(&self) -> Result<()> {
        twice(|| self.copies.synchronize())?;
        twice(|| self.checks.synchronize())
    }

    fn new(device: &Device) -> Result<Carriers> {
        let (copies, checks) = (device.stream()?, device.stream()?);
        Ok(Carriers { device: device.clone(), copies, checks, slots: Mutex::default() })
    }

    /// Carries what is fed until the feed is closed and empty, while `meanwhile` runs; `done` is
    /// told of each piece that has arrived. The first failure of anybody ends everything.
    pub(crate) fn carry(
        &self,
        way: Way,
        feed: &Feed,
        done: &(impl Fn(&Piece) -> Result<()> + Sync),
        meanwhile: impl FnOnce() -> crate::Result<()>,
    ) -> crate::Result<()> {
        // Where there are many, some are left to the thread that speaks with the driver and the caller's.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores - cores / 4).min(THREADS_MOST);
        let lane = Lane {
            carriers: self,
            feed,
            free: Queue::default(),
            sent: Queue::default(),
            parts: Queue::default(),
            begun: Mutex::default(),
            copying: AtomicUsize::new(threads),
        };
        thread::scope(|scope| {
            let lane = &lane;
            let driving = move || {
                let _panic = EndAll(lane);
                lane.watch(lane.drive(way, done));
            };
            let copying = move || {
                let _panic = EndAll(lane);
                lane.watch(match way {
                    Way::Out => lane.copy_out(done),
                    Way::In => lane.copy_in(),
                });
                // The last one says that no more will come.
                if lane.copying.fetch_sub(1, SeqCst) == 1 {
                    lane.sent.close();
                }
            };
            let refused = |source| {
                lane.watch(Err(Error::Os { operation: "starting a thread to copy", source }));
            };
            let named = || thread::Builder::new().name("lowtide-carrier".to_owned());
            named().spawn_scoped(scope, driving).map_or_else(refused, drop);
            for _ in 0..threads {
                named().spawn_scoped(scope, copying).map_or_else(refused, drop);
            }
            let outcome = meanwhile();
            feed.close();
            outcome
        })?;
        if let Some(error) = feed.progress().error.take() {
            return Err(error.into());
        }
        self.slots().extend(lane.free.empty());
        Ok(())
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece in its slot.
struct Job {
    piece: Piece,
    slot: Slot,
    /// Parts that are not copied yet.
    left: AtomicUsize,
}

impl Job {
    fn new(piece: Piece, slot: Slot) -> Arc<Job> {
        let left = AtomicUsize::new(piece.size.0.div_ceil(PART) as usize);
        Arc::new(Job { piece, slot, left })
    }

    fn parts(&self) -> usize {
        self.piece.size.0.div_ceil(PART) as usize
    }

    // Copies a part between the slot and the pages; whether it was the last.
    fn copy(&self, way: Way, part: usize) -> Result<bool> {
        let Piece { pages, at, size, .. } = &self.piece;
        let offset = Bytes(part as u64 * PART);
        let (at, size) = (*at + offset, Bytes(PART.min(size.0 - offset.0)));
        match way {
            Way::Out => {
                pages.write(at, size, |bytes| self.slot.read_streaming(offset, bytes))??;
            }
            // The device reads it next: it should find it in the caches.
            Way::In => pages.read(at, size, |bytes| self.slot.write(offset, bytes))??,
        }
        Ok(self.left.fetch_sub(1, SeqCst) == 1)
    }
}

/// On the way in: the job whose parts are being taken, with the next part, and slots so far.
#[derive(Default)]
struct Begun {
    job: Option<(Arc<Job>, usize)>,
    made: usize,
}

/// One carrying: the threads and what they hand to one another.
struct Lane<'a> {
    carriers: &'a Carriers,
    feed: &'a Feed,
    free: Queue<Slot>,
    /// On the way in: slots that are full and can be sent.
    sent: Queue<Arc<Job>>,
    /// On the way out: parts to be copied from their slots.
    parts: Queue<(Arc<Job>, usize)>,
    begun: Mutex<Begun>,
    /// Threads that copy and have not ended.
    copying: AtomicUsize,
}

/// Ends everybody if its thread panics, so that nobody waits for it; the panic goes on to the caller.
struct EndAll<'a>(&'a Lane<'a>);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = "a thread that copied has panicked".to_owned();
            self.0.watch(Err(Error::Unsupported { what: "going on", why }));
        }
    }
}

impl Lane<'_> {
    // The first failure ends everybody.
    fn watch(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.feed.fail(error);
            self.free.close();
            self.sent.close();
            self.parts.close();
        }
    }

    // No more slots than there are pieces, each made when it is first needed.
    fn slot(&self, made: &mut usize, wait: bool) -> Result<Option<Slot>> {
        if let Some(slot) = self.free.take(false) {
            return Ok(Some(slot));
        }
        if *made < SLOTS_MOST {
            *made += 1;
            let kept = self.carriers.slots().pop();
            let make = || self.carriers.device.host_memory_here(Bytes(PIECE));
            return kept.map_or_else(make, Ok).map(Some);
        }
        Ok(self.free.take(wait))
    }

    // The thread that speaks with the driver.
    fn drive(&self, way: Way, done: &impl Fn(&Piece) -> Result<()>) -> Result<()> {
        let stream = &self.carriers.copies;
        let (mut in_flight, mut made) = (VecDeque::<(Arc<Job>, Mark)>::new(), 0);
        loop {
            let wait = in_flight.is_empty();
            let next = match way {
                Way::In => self.sent.take(wait),
                Way::Out => self.next_out(&mut made, wait)?,
            };
            if let Some(job) = next {
                let mark = send(way, &job, stream)?;
                in_flight.push_back((job, mark));
                continue;
            }
            let Some((job, mark)) = in_flight.pop_front() else { break };
            twice(|| stream.wait(&mark))?;
            match way {
                Way::Out => self.parts.add((0..job.parts()).map(|part| (Arc::clone(&job), part))),
                Way::In => {
                    done(&job.piece)?;
                    self.feed.arrived(&job.piece);
                    self.free.add([Arc::clone(&job.slot)]);
                }
            }
        }
        self.parts.close();
        Ok(())
    }

    fn next_out(&self, made: &mut usize, wait: bool) -> Result<Option<Arc<Job>>> {
        let Some(piece) = self.feed.pieces.take(wait) else { return Ok(None) };
        if let Some(slot) = self.slot(made, wait)? {
            Ok(Some(Job::new(piece, slot)))
        } else {
            self.feed.pieces.put_back(piece);
            Ok(None)
        }
    }

    // A thread that copies from slots to pages of the host.
    fn copy_out(&self, done: &impl Fn(&Piece) -> Result<()>) -> Result<()> {
        while let Some((job, part)) = self.parts.take(true) {
            if job.copy(Way::Out, part)? {
                self.free.add([Arc::clone(&job.slot)]);
                done(&job.piece)?;
                self.feed.arrived(&job.piece);
            }
        }
        Ok(())
    }

    // A thread that copies from pages of the host to slots.
    fn copy_in(&self) -> Result<()> {
        while let Some((job, part)) = self.next_part()? {
            if job.copy(Way::In, part)? {
                self.sent.add([job]);
            }
        }
        Ok(())
    }

    // Who comes first begins the next job, once there is a slot and a piece for it; the others wait
    // here, having nothing else to do.
    fn next_part(&self) -> Result<Option<(Arc<Job>, usize)>> {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let (job, part) = if let Some(found) = begun.job.take() {
            found
        } else {
            let Some(piece) = self.feed.pieces.take(true) else { return Ok(None) };
            let Some(slot) = self.slot(&mut begun.made, true)? else { return Ok(None) };
            (Job::new(piece, slot), 0)
        };
        begun.job = (part + 1 < job.parts()).then(|| (Arc::clone(&job), part + 1));
        Ok(Some((job, part)))
    }
}

fn send(way: Way, job: &Job, stream: &Stream) -> Result<Mark> {
    let Job { piece, slot, .. } = job;
    let on_device = (&piece.reservation, Bytes(piece.offset));
    twice(|| match way {
        Way::Out => stream.copy_out(on_device, (slot, Bytes::ZERO), piece.size),
        Way::In => stream.copy_in((slot, Bytes::ZERO), on_device, piece.size),
    })?;
    twice(|| stream.mark())
}

impl Feed {
    /// For pieces of chunks that have so many each.
    pub(crate) fn new(left: Vec<usize>) -> Feed {
        let progress = Mutex::new(Progress { left, error: None });
        Feed { pieces: Queue::default(), progress, moved: Condvar::new() }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pieces are ready to be carried.
    pub(crate) fn add(&self, pieces: impl IntoIterator<Item = Piece>) {
        self.pieces.add(pieces);
    }

    /// No more will come.
    pub(crate) fn close(&self) {
        self.pieces.close();
    }

    fn fail(&self, error: Error) {
        self.progress().error.get_or_insert(error);
        self.pieces.close();
        self.pieces.empty();
        self.moved.notify_all();
    }

    fn arrived(&self, piece: &Piece) {
        let mut progress = self.progress();
        progress.left[piece.chunk] -= 1;
        let chunk_done = progress.left[piece.chunk] == 0;
        drop(progress);
        if chunk_done {
            self.moved.notify_all();
        }
    }

    /// Waits until what is left of each chunk satisfies; `false` where somebody failed before.
    pub(crate) fn wait_until(&self, satisfied: impl Fn(&[usize]) -> bool) -> bool {
        let mut progress = self.progress();
        loop {
            if progress.error.is_some() {
                return false;
            }
            if satisfied(&progress.left) {
                return true;
            }
            progress = self.moved.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
