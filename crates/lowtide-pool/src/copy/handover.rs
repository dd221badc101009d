//! How the threads of a copy hand work to one another.
//!
//! One thread speaks with the driver, or one for each of two lanes; others copy between staging buffers and pages of the host. A
//! *direct* piece lies in memory that the device knows and can be sent at any time. A *staged* piece
//! goes through a staging buffer: on the way out it needs an empty buffer before it is sent, on the
//! way in a buffer that threads have filled. Everything that a thread waits for is under one lock,
//! so that nobody waits for one thing while another has come, and the end is one question about all
//! of it.
//!
//! Only the part that synchronises is here, generic over what is handed over, so that
//! `lowtide-models` can try every order in which threads can come. `feed.rs` hands over real pieces.
#![allow(unreachable_pub, reason = "public for lowtide-models, which compiles this file, too")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::lock::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, lock, wait};
use crate::{Error, Result};

/// How many pieces a lane may have in flight. Lanes take pieces from one queue, so the faster one takes
/// more, unless another has taken all that are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneRoom {
    /// The most pieces. With zero the lane takes none any more.
    pub most: usize,
    /// Direct pieces fill the gaps: one is sent where fewer pieces than this are in flight.
    pub filled_up_to: usize,
}

impl LaneRoom {
    /// The room of a lane that is alone. The link has a piece, and a direct one behind it for when that
    /// arrives. More would stand before staged pieces, and for their buffers the threads wait.
    pub const ALONE: LaneRoom = LaneRoom { most: usize::MAX, filled_up_to: 2 };
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

/// A piece that goes through a staging buffer, in parts that threads copy side by side.
pub trait Staged {
    /// Returns the number of its parts.
    fn parts(&self) -> usize;
}

/// A piece of either kind, ready to be carried.
pub enum Ready<D, S> {
    /// A piece that can be sent at any time.
    Direct(D),
    /// A piece that goes through a buffer.
    Staged(S),
}

/// A staged piece in its buffer.
pub struct Job<S, B> {
    /// The piece that is carried.
    pub staged: S,
    /// The buffer it is in.
    pub buffer: B,
    /// Parts that are not copied yet.
    left: AtomicUsize,
}

impl<S: Staged, B> Job<S, B> {
    /// Puts a piece in a buffer.
    pub fn new(staged: S, buffer: B) -> Arc<Job<S, B>> {
        let left = AtomicUsize::new(staged.parts());
        Arc::new(Job { staged, buffer, left })
    }

    /// Records that a part was copied; returns whether it was the last.
    pub fn copied_one(&self) -> bool {
        self.left.fetch_sub(1, SeqCst) == 1
    }
}

/// A piece that goes over the link.
pub enum Load<D, S, B> {
    /// A piece that can be sent at any time.
    Direct(D),
    /// A piece in its buffer.
    Staged(Arc<Job<S, B>>),
}

/// The next step of the thread that speaks with the driver.
pub enum ToSend<D, S, B> {
    /// Sends a piece that is ready.
    Load(Load<D, S, B>),
    /// Makes a buffer for this piece, and sends it.
    Begin(S),
}

/// The next step of a thread that copies.
pub enum ToCopy<S, B> {
    /// Copies this part of the job.
    Part(Arc<Job<S, B>>, usize),
    /// Makes a buffer for this piece, and shares its parts.
    Begin(S),
}

/// Pieces on their way, and how far they have come.
pub struct Handover<D, S, B> {
    way: Way,
    queues: Mutex<Queues<D, S, B>>,
    /// For the threads that speak with the driver.
    to_send: Condvar,
    /// For those that copy between buffers and pages.
    to_copy: Condvar,
    /// Notified when a chunk has arrived, or a thread has failed.
    moved: Condvar,
}

struct Queues<D, S, B> {
    direct: VecDeque<D>,
    /// Staged pieces that wait for a buffer.
    staged: VecDeque<S>,
    /// Set once no more pieces will come.
    closed: bool,
    /// Buffers that were used and are empty.
    free: VecDeque<B>,
    /// Buffers that were not used yet.
    spare: Vec<B>,
    /// Buffers with a piece in them, or being made for one.
    used: usize,
    /// There are never more buffers than this.
    buffers_most: usize,
    /// Buffers that are full and can be sent, on the way in.
    full: VecDeque<Arc<Job<S, B>>>,
    /// Parts to be copied between buffers and pages.
    parts: VecDeque<(Arc<Job<S, B>>, usize)>,
    /// Pieces of each chunk that have not arrived.
    left: Vec<usize>,
    /// Bytes that have arrived.
    arrived: u64,
    error: Option<Error>,
}

impl<D, S: Staged, B: Clone> Handover<D, S, B> {
    /// Expects so many pieces of each chunk, and uses at most so many buffers.
    pub fn new(way: Way, left: Vec<usize>, buffers_most: usize) -> Handover<D, S, B> {
        let queues = Queues {
            direct: VecDeque::new(),
            staged: VecDeque::new(),
            closed: false,
            free: VecDeque::new(),
            spare: Vec::new(),
            used: 0,
            buffers_most,
            full: VecDeque::new(),
            parts: VecDeque::new(),
            left,
            arrived: 0,
            error: None,
        };
        let (to_send, to_copy, moved) = (Condvar::new(), Condvar::new(), Condvar::new());
        Handover { way, queues: Mutex::new(queues), to_send, to_copy, moved }
    }

    /// Returns the direction of the copy.
    pub fn way(&self) -> Way {
        self.way
    }

    fn queues(&self) -> MutexGuard<'_, Queues<D, S, B>> {
        lock(&self.queues)
    }

    fn tell_everybody_at_work(&self) {
        self.to_send.notify_all();
        self.to_copy.notify_all();
    }

    /// Hands over pieces that are ready.
    pub fn add(&self, pieces: impl IntoIterator<Item = Ready<D, S>>) {
        let mut queues = self.queues();
        for piece in pieces {
            match piece {
                Ready::Direct(direct) => queues.direct.push_back(direct),
                Ready::Staged(staged) => queues.staged.push_back(staged),
            }
        }
        drop(queues);
        self.tell_everybody_at_work();
    }

    /// Says that no more pieces will come.
    pub fn close(&self) {
        self.queues().closed = true;
        self.tell_everybody_at_work();
    }

    /// Ends everybody's work where it failed; the first failure is kept.
    pub fn watch(&self, outcome: Result<()>) {
        let Err(error) = outcome else { return };
        let mut queues = self.queues();
        queues.error.get_or_insert(error);
        // Buffers go with what was to be copied, which takes calls at the driver: not under the lock.
        let full = std::mem::take(&mut queues.full);
        let parts = std::mem::take(&mut queues.parts);
        drop(queues);
        self.tell_everybody_at_work();
        self.moved.notify_all();
        drop((full, parts));
    }

    /// Lends buffers of an earlier copy.
    pub fn lend(&self, buffers: Vec<B>) {
        self.queues().spare = buffers;
    }

    /// Returns what is left once every thread has ended: buffers that nobody uses, and the first
    /// failure.
    pub fn end(&self) -> (Vec<B>, Result<()>) {
        let mut queues = self.queues();
        let mut buffers = std::mem::take(&mut queues.spare);
        buffers.extend(std::mem::take(&mut queues.free));
        (buffers, queues.error.take().map_or(Ok(()), Err))
    }

    /// Returns what a lane sends that has so many copies in flight. Waits only where it has none: `None`
    /// means then that nothing will come, and otherwise that a copy in flight should be waited for.
    pub fn next_to_send(&self, in_flight: usize, room: LaneRoom) -> Option<ToSend<D, S, B>> {
        if in_flight >= room.most {
            return None;
        }
        let mut queues = self.queues();
        loop {
            if queues.error.is_some() {
                return None;
            }
            // Where nothing is in flight, a direct piece would have been taken.
            let next = queues.next_to_send(self.way, in_flight < room.filled_up_to);
            if next.is_some() || in_flight > 0 || queues.is_over() {
                return next;
            }
            queues = wait(&self.to_send, queues);
        }
    }

    /// Returns what to copy next. Waits for it; `None` where nothing will come.
    pub fn next_to_copy(&self) -> Option<ToCopy<S, B>> {
        let mut queues = self.queues();
        loop {
            if queues.error.is_some() {
                return None;
            }
            if let Some((job, part)) = queues.parts.pop_front() {
                return Some(ToCopy::Part(job, part));
            }
            if self.way == Way::In {
                if let Some(job) = queues.begin() {
                    queues.share(&job, 1);
                    drop(queues);
                    self.tell_of_parts(job.staged.parts() - 1);
                    return Some(ToCopy::Part(job, 0));
                }
                if let Some(staged) = queues.begin_with_another_buffer() {
                    return Some(ToCopy::Begin(staged));
                }
            }
            if queues.is_over() {
                return None;
            }
            queues = wait(&self.to_copy, queues);
        }
    }

    /// Lets threads copy the parts of a job, from this one on.
    pub fn share(&self, job: &Arc<Job<S, B>>, from: usize) {
        self.queues().share(job, from);
        self.tell_of_parts(job.staged.parts() - from);
    }

    fn tell_of_parts(&self, count: usize) {
        match count {
            0 => {}
            1 => self.to_copy.notify_one(),
            _ => self.to_copy.notify_all(),
        }
    }

    /// Says that every part of a job is in its buffer, on the way in.
    pub fn filled(&self, job: Arc<Job<S, B>>) {
        self.queues().full.push_back(job);
        self.to_send.notify_one();
    }

    /// Says that nobody needs what is in a buffer any more.
    pub fn emptied(&self, buffer: &B) {
        let mut queues = self.queues();
        queues.free.push_back(buffer.clone());
        queues.used -= 1;
        let is_over = queues.is_over();
        drop(queues);
        if is_over {
            self.tell_everybody_at_work();
            return;
        }
        match self.way {
            Way::Out => self.to_send.notify_one(),
            Way::In => self.to_copy.notify_one(),
        }
    }

    /// Says that a piece of a chunk has arrived, with so many bytes.
    pub fn arrived(&self, chunk: usize, bytes: u64) {
        let mut queues = self.queues();
        queues.arrived += bytes;
        queues.left[chunk] -= 1;
        let chunk_done = queues.left[chunk] == 0;
        drop(queues);
        if chunk_done {
            self.moved.notify_all();
        }
    }

    /// Returns how many bytes have arrived.
    pub fn arrived_bytes(&self) -> u64 {
        self.queues().arrived
    }

    /// Waits until something is found in the numbers of pieces that are left of each chunk, which are
    /// looked at whenever a chunk has arrived; `None` where somebody failed before.
    pub fn wait_until<T>(&self, found: impl Fn(&[usize]) -> Option<T>) -> Option<T> {
        let mut queues = self.queues();
        loop {
            if queues.error.is_some() {
                return None;
            }
            if let Some(found) = found(&queues.left) {
                return Some(found);
            }
            queues = wait(&self.moved, queues);
        }
    }
}

impl<D, S: Staged, B> Queues<D, S, B> {
    /// Returns whether nothing will go through a buffer any more.
    fn is_over(&self) -> bool {
        self.closed && self.staged.is_empty() && self.used == 0
    }

    fn next_to_send(&mut self, way: Way, has_gap: bool) -> Option<ToSend<D, S, B>> {
        let staged = match way {
            Way::Out => self.begin(),
            Way::In => self.full.pop_front(),
        };
        if let Some(job) = staged {
            return Some(ToSend::Load(Load::Staged(job)));
        }
        if has_gap && let Some(direct) = self.direct.pop_front() {
            return Some(ToSend::Load(Load::Direct(direct)));
        }
        // Last, because the link waits while a buffer is made, if it has nothing else.
        let staged = (way == Way::Out).then(|| self.begin_with_another_buffer()).flatten()?;
        Some(ToSend::Begin(staged))
    }

    // The next piece, in a buffer that is there.
    fn begin(&mut self) -> Option<Arc<Job<S, B>>> {
        if self.staged.is_empty() {
            return None;
        }
        let buffer = self.free.pop_front().or_else(|| self.spare.pop())?;
        let staged = self.staged.pop_front()?;
        self.used += 1;
        Some(Job::new(staged, buffer))
    }

    // The next piece, for a buffer that is yet to be made: each is when it is first needed, so that
    // there are no more of them than pieces.
    fn begin_with_another_buffer(&mut self) -> Option<S> {
        if self.used + self.free.len() + self.spare.len() >= self.buffers_most {
            return None;
        }
        let next = self.staged.pop_front()?;
        self.used += 1;
        Some(next)
    }

    fn share(&mut self, job: &Arc<Job<S, B>>, from: usize) {
        self.parts.extend((from..job.staged.parts()).map(|part| (Arc::clone(job), part)));
    }
}
