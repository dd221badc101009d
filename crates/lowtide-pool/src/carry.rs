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

/// Each costs the device up to 2 MiB. One copies, the other is for digests beside it.
const STREAMS: usize = 2;
/// More threads than this add nothing (measured: 4 threads reach half of the link, 12 all of it).
const THREADS_MOST: usize = 12;
const SLOTS_PER_THREAD: usize = 3;
/// What goes at once: large enough for the link, small enough that all slots stay in the
/// processor's caches (measured: 2 MiB 0.94 of the link, 4 MiB 0.97, 8 MiB 0.8).
pub(crate) const PIECE: u64 = 4 << 20;

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
    pub(crate) fn new(device: &Device) -> Result<Carriers> {
        let [copies, checks]: [Result<Stream>; STREAMS] = [device.stream(), device.stream()];
        let (device, slots) = (device.clone(), Mutex::default());
        Ok(Carriers { device, copies: copies?, checks: checks?, slots })
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
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MOST);
        let lane = Lane {
            carriers: self,
            feed,
            free: Queue::default(),
            full: Queue::default(),
            copying: AtomicUsize::new(threads),
        };
        thread::scope(|scope| {
            let lane = &lane;
            let driving = move || lane.watch(lane.drive(way, done));
            let copying = move || {
                lane.watch(lane.fetch_slots().and_then(|()| lane.copy(way, done)));
                // The last one says that no more will come.
                if lane.copying.fetch_sub(1, SeqCst) == 1 && way == Way::In {
                    lane.full.close();
                }
            };
            let start = |work: &mut dyn FnMut() -> std::io::Result<()>| {
                if let Err(source) = work() {
                    lane.watch(Err(Error::Os { operation: "starting a thread to copy", source }));
                }
            };
            let named = || thread::Builder::new().name("lowtide-carrier".to_owned());
            start(&mut || named().spawn_scoped(scope, driving).map(drop));
            for _ in 0..threads {
                start(&mut || named().spawn_scoped(scope, copying).map(drop));
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

/// One carrying: the threads and what they hand to one another.
struct Lane<'a> {
    carriers: &'a Carriers,
    feed: &'a Feed,
    free: Queue<Slot>,
    /// On the way out: slots to be copied from. On the way in: slots to be sent.
    full: Queue<(Piece, Slot)>,
    /// Threads that copy and have not ended.
    copying: AtomicUsize,
}

impl Lane<'_> {
    // The first failure ends everybody.
    fn watch(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.feed.fail(error);
            self.free.close();
            self.full.close();
        }
    }

    // Every copying thread brings its share of slots, so that the first are ready early.
    fn fetch_slots(&self) -> Result<()> {
        for _ in 0..SLOTS_PER_THREAD {
            let kept = self.carriers.slots().pop();
            let slot =
                kept.map_or_else(|| self.carriers.device.host_memory_here(Bytes(PIECE)), Ok)?;
            self.free.add([slot]);
        }
        Ok(())
    }

    // The thread that speaks with the driver.
    fn drive(&self, way: Way, done: &impl Fn(&Piece) -> Result<()>) -> Result<()> {
        let stream = &self.carriers.copies;
        let mut in_flight: VecDeque<(Piece, Slot, Mark)> = VecDeque::new();
        loop {
            if let Some((piece, slot)) = self.next_to_send(way, in_flight.is_empty()) {
                let mark = send(way, &piece, &slot, stream)?;
                in_flight.push_back((piece, slot, mark));
                continue;
            }
            let Some((piece, slot, mark)) = in_flight.pop_front() else { break };
            // One refusal to wait says nothing about the copy: the second counts.
            stream.wait(&mark).or_else(|_| stream.wait(&mark))?;
            match way {
                Way::Out => self.full.add([(piece, slot)]),
                Way::In => {
                    done(&piece)?;
                    self.feed.arrived(&piece);
                    self.free.add([slot]);
                }
            }
        }
        match way {
            Way::Out => self.full.close(),
            Way::In => self.free.close(),
        }
        Ok(())
    }

    fn next_to_send(&self, way: Way, wait: bool) -> Option<(Piece, Slot)> {
        if way == Way::In {
            return self.full.take(wait);
        }
        let slot = self.free.take(wait)?;
        let piece = self.feed.pieces.take(wait);
        if piece.is_none() {
            self.free.add([slot]);
            return None;
        }
        piece.map(|piece| (piece, slot))
    }

    // A thread that copies between slots and pages of the host.
    fn copy(&self, way: Way, done: &impl Fn(&Piece) -> Result<()>) -> Result<()> {
        match way {
            Way::Out => {
                while let Some((piece, slot)) = self.full.take(true) {
                    let Piece { pages, at, size, .. } = &piece;
                    pages.write(*at, *size, |bytes| slot.read(Bytes::ZERO, bytes))??;
                    self.free.add([slot]);
                    done(&piece)?;
                    self.feed.arrived(&piece);
                }
            }
            Way::In => {
                while let Some(slot) = self.free.take(true) {
                    let Some(piece) = self.feed.pieces.take(true) else {
                        self.free.add([slot]);
                        break;
                    };
                    let Piece { pages, at, size, .. } = &piece;
                    pages.read(*at, *size, |bytes| slot.write(Bytes::ZERO, bytes))??;
                    self.full.add([(piece, slot)]);
                }
            }
        }
        Ok(())
    }
}

// One refusal to take a copy is no reason to give up: the second is.
fn send(way: Way, piece: &Piece, slot: &Slot, stream: &Stream) -> Result<Mark> {
    let on_device = (&piece.reservation, Bytes(piece.offset));
    let copy = || match way {
        Way::Out => stream.copy_out(on_device, (slot, Bytes::ZERO), piece.size),
        Way::In => stream.copy_in((slot, Bytes::ZERO), on_device, piece.size),
    };
    copy().or_else(|_| copy())?;
    stream.mark().or_else(|_| stream.mark())
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
