//! The queue between the threads of a copy, and what each thread does.
//!
//! A *submitting* thread gives copies to the driver; on the way in there may be two, one for each engine.
//! *Copying* threads copy between staging buffers and pages of the host. A *direct* piece lies in memory that
//! the device knows and can be submitted at any time. A *staged* piece goes through a staging buffer: on the
//! way out it needs an empty buffer before it is submitted, on the way in a buffer that threads have filled.
//! Everything that a thread waits for is under one lock, so that nobody waits for one thing while another has
//! come, and the end is one question about all of it.
//!
//! Only the part that synchronises is here, generic over the pieces and the work, so that a model checker
//! can try every order in which threads can come (`lowtide-testing/tests/models`).
#![allow(unreachable_pub, reason = "public for the models, which compile this file, too")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::lock::{AtomicUsize, Condvar, Mutex, MutexGuard, lock, wait};
use crate::{Error, Result};

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

/// What the queue has to know of a piece.
pub trait QueuedPiece {
    /// Returns the number of parts that threads copy side by side through a staging buffer. Zero: it is direct.
    fn parts(&self) -> usize;
}

/// The copies that a submitting thread may have in flight. Two threads take pieces from one queue, so the
/// faster engine takes more, unless the other has taken all that are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// The most copies.
    pub most: usize,
    /// Direct pieces fill the gaps: one is submitted where fewer copies than this are in flight.
    pub direct_below: usize,
}

impl Depth {
    /// The depth of the only engine. The link has a piece, and a direct one behind it for when that
    /// arrives. More would stand before staged pieces, and for their buffers the threads wait.
    pub const ALONE: Depth = Depth { most: usize::MAX, direct_below: 2 };
}

/// A piece on its way.
pub struct Job<P, B> {
    /// The piece that is copied.
    pub piece: P,
    /// The staging buffer it is in; none where it is direct.
    pub buffer: Option<B>,
    /// Parts that are not copied yet.
    left: AtomicUsize,
}

impl<P: QueuedPiece, B> Job<P, B> {
    /// Begins with a piece.
    pub fn new(piece: P, buffer: Option<B>) -> Arc<Job<P, B>> {
        let left = AtomicUsize::new(piece.parts());
        Arc::new(Job { piece, buffer, left })
    }

    /// Records that a part was copied; returns whether it was the last.
    fn copied_one(&self) -> bool {
        self.left.fetch_sub(1, SeqCst) == 1
    }
}

/// The next step of a submitting thread.
pub enum ToSubmit<P, B> {
    /// Submits a piece that is ready.
    Ready(Arc<Job<P, B>>),
    /// Makes a buffer for this piece, and submits it.
    Begin(P),
}

/// The next step of a copying thread.
pub enum ToCopy<P, B> {
    /// Copies this part of the job.
    Part(Arc<Job<P, B>>, usize),
    /// Makes a buffer for this piece, and shares its parts.
    Begin(P),
}

/// Pieces on their way, and how far they have come.
pub struct Queue<P, B> {
    direction: Direction,
    lists: Mutex<Lists<P, B>>,
    /// For submitting threads.
    to_submit: Condvar,
    /// For copying threads.
    to_copy: Condvar,
    /// Notified when a chunk has arrived, or a thread has failed.
    moved: Condvar,
}

struct Lists<P, B> {
    direct: VecDeque<P>,
    /// Staged pieces that wait for a buffer.
    staged: VecDeque<P>,
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
    /// Jobs whose buffers are full and can be submitted, on the way in.
    full: VecDeque<Arc<Job<P, B>>>,
    /// Parts to be copied between buffers and pages.
    parts: VecDeque<(Arc<Job<P, B>>, usize)>,
    /// Pieces of each chunk that have not arrived.
    left: Vec<usize>,
    arrivals: Arrivals,
    /// Bytes that have arrived.
    arrived: u64,
    error: Option<Error>,
}

/// How far the chunks have come. Nothing here is looked for among all of them, which may be many.
pub struct Arrivals {
    /// Chunks that have arrived and that nobody has taken from here; first those without pieces.
    pub chunks: VecDeque<usize>,
    /// Pieces that have not arrived.
    pub pieces_left: usize,
}

impl<P: QueuedPiece, B: Clone> Queue<P, B> {
    /// Expects so many pieces of each chunk, and uses at most so many buffers.
    pub fn new(direction: Direction, left: Vec<usize>, buffers_most: usize) -> Queue<P, B> {
        let without_pieces = left.iter().enumerate().filter(|(_, left)| **left == 0);
        let chunks = without_pieces.map(|(chunk, _)| chunk).collect();
        let arrivals = Arrivals { chunks, pieces_left: left.iter().sum() };
        let lists = Lists {
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
            arrivals,
            arrived: 0,
            error: None,
        };
        let (to_submit, to_copy, moved) = (Condvar::new(), Condvar::new(), Condvar::new());
        Queue { direction, lists: Mutex::new(lists), to_submit, to_copy, moved }
    }

    /// Returns the direction of the copy.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    fn lists(&self) -> MutexGuard<'_, Lists<P, B>> {
        lock(&self.lists)
    }

    fn notify_threads(&self) {
        self.to_submit.notify_all();
        self.to_copy.notify_all();
    }

    /// Adds pieces that are ready.
    pub fn add(&self, pieces: impl IntoIterator<Item = P>) {
        let mut lists = self.lists();
        for piece in pieces {
            let list = if piece.parts() == 0 { &mut lists.direct } else { &mut lists.staged };
            list.push_back(piece);
        }
        drop(lists);
        self.notify_threads();
    }

    /// Says that no more pieces will come.
    pub fn close(&self) {
        self.lists().closed = true;
        self.notify_threads();
    }

    /// Ends the work of every thread if this is a failure; the first failure is kept.
    pub fn end_if_failed(&self, outcome: Result<()>) {
        let Err(error) = outcome else { return };
        let mut lists = self.lists();
        lists.error.get_or_insert(error);
        // Buffers go with what was to be copied, which takes calls at the driver: not under the lock.
        let full = std::mem::take(&mut lists.full);
        let parts = std::mem::take(&mut lists.parts);
        drop(lists);
        self.notify_threads();
        self.moved.notify_all();
        drop((full, parts));
    }

    /// Lends buffers of an earlier copy.
    pub fn lend(&self, buffers: Vec<B>) {
        self.lists().spare = buffers;
    }

    /// Returns what is left once every thread has ended: buffers that nobody uses, and the first
    /// failure.
    pub fn end(&self) -> (Vec<B>, Result<()>) {
        let mut lists = self.lists();
        let mut buffers = std::mem::take(&mut lists.spare);
        buffers.extend(std::mem::take(&mut lists.free));
        (buffers, lists.error.take().map_or(Ok(()), Err))
    }

    /// Returns what a thread submits that has so many copies in flight. Waits only where it has none: `None`
    /// means then that nothing will come, and otherwise that a copy in flight should be waited for.
    pub fn next_to_submit(&self, in_flight: usize, depth: Depth) -> Option<ToSubmit<P, B>> {
        if in_flight >= depth.most {
            return None;
        }
        let mut lists = self.lists();
        loop {
            if lists.error.is_some() {
                return None;
            }
            let next = lists.next_to_submit(self.direction, in_flight, depth);
            if next.is_some() || in_flight > 0 || lists.is_over() {
                return next;
            }
            lists = wait(&self.to_submit, lists);
        }
    }

    /// Returns what to copy next. Waits for it; `None` where nothing will come.
    pub fn next_to_copy(&self) -> Option<ToCopy<P, B>> {
        let mut lists = self.lists();
        loop {
            if lists.error.is_some() {
                return None;
            }
            if let Some((job, part)) = lists.parts.pop_front() {
                return Some(ToCopy::Part(job, part));
            }
            if self.direction == Direction::In {
                if let Some(job) = lists.begin() {
                    lists.share(&job, 1);
                    drop(lists);
                    self.notify_of_parts(job.piece.parts() - 1);
                    return Some(ToCopy::Part(job, 0));
                }
                if let Some(piece) = lists.begin_with_another_buffer() {
                    return Some(ToCopy::Begin(piece));
                }
            }
            if lists.is_over() {
                return None;
            }
            lists = wait(&self.to_copy, lists);
        }
    }

    /// Returns the next piece on the way in for a thread that does everything itself; `None` where none waits.
    fn next_here(&self) -> Option<ToSubmit<P, B>> {
        let mut lists = self.lists();
        if let Some(job) = lists.begin() {
            return Some(ToSubmit::Ready(job));
        }
        let staged = lists.begin_with_another_buffer().map(ToSubmit::Begin);
        staged.or_else(|| lists.direct.pop_front().map(|one| ToSubmit::Ready(Job::new(one, None))))
    }

    /// Lets threads copy the parts of a job, from this one on.
    pub fn share(&self, job: &Arc<Job<P, B>>, from: usize) {
        self.lists().share(job, from);
        self.notify_of_parts(job.piece.parts() - from);
    }

    fn notify_of_parts(&self, count: usize) {
        match count {
            0 => {}
            1 => self.to_copy.notify_one(),
            _ => self.to_copy.notify_all(),
        }
    }

    /// Says that every part of a job is in its buffer, on the way in.
    pub fn filled(&self, job: Arc<Job<P, B>>) {
        self.lists().full.push_back(job);
        // Both submitting threads: one of them may not take it.
        self.to_submit.notify_all();
    }

    /// Says that nobody needs what is in a buffer any more.
    pub fn emptied(&self, buffer: &B) {
        let mut lists = self.lists();
        lists.free.push_back(buffer.clone());
        lists.used -= 1;
        let is_over = lists.is_over();
        drop(lists);
        if is_over {
            self.notify_threads();
            return;
        }
        match self.direction {
            Direction::Out => self.to_submit.notify_one(),
            Direction::In => self.to_copy.notify_one(),
        }
    }

    /// Says that a piece of a chunk has arrived, with so many bytes.
    pub fn arrived(&self, chunk: usize, bytes: u64) {
        let mut lists = self.lists();
        lists.arrived += bytes;
        lists.left[chunk] -= 1;
        lists.arrivals.pieces_left -= 1;
        let chunk_done = lists.left[chunk] == 0;
        if chunk_done {
            lists.arrivals.chunks.push_back(chunk);
        }
        drop(lists);
        if chunk_done {
            self.moved.notify_all();
        }
    }

    /// Returns how many bytes have arrived.
    pub fn arrived_bytes(&self) -> u64 {
        self.lists().arrived
    }

    /// Waits until something is found in the arrivals, which are looked at whenever a chunk has arrived;
    /// `None` where a thread failed before.
    pub fn wait_until<T>(&self, found: impl Fn(&mut Arrivals) -> Option<T>) -> Option<T> {
        let mut lists = self.lists();
        loop {
            if lists.error.is_some() {
                return None;
            }
            if let Some(found) = found(&mut lists.arrivals) {
                return Some(found);
            }
            lists = wait(&self.moved, lists);
        }
    }
}

impl<P: QueuedPiece, B> Lists<P, B> {
    /// Returns whether nothing will go through a buffer any more.
    fn is_over(&self) -> bool {
        self.closed && self.staged.is_empty() && self.used == 0
    }

    fn next_to_submit(
        &mut self,
        direction: Direction,
        in_flight: usize,
        depth: Depth,
    ) -> Option<ToSubmit<P, B>> {
        let staged = match direction {
            Direction::Out => self.begin(),
            Direction::In => self.full.pop_front(),
        };
        if let Some(job) = staged {
            return Some(ToSubmit::Ready(job));
        }
        if in_flight < depth.direct_below
            && let Some(direct) = self.direct.pop_front()
        {
            return Some(ToSubmit::Ready(Job::new(direct, None)));
        }
        // Last, because the link waits while a buffer is made, if it has nothing else.
        let is_out = direction == Direction::Out;
        is_out.then(|| self.begin_with_another_buffer()).flatten().map(ToSubmit::Begin)
    }

    // The next piece, in a buffer that is there.
    fn begin(&mut self) -> Option<Arc<Job<P, B>>> {
        if self.staged.is_empty() {
            return None;
        }
        let buffer = self.free.pop_front().or_else(|| self.spare.pop())?;
        let piece = self.staged.pop_front()?;
        self.used += 1;
        Some(Job::new(piece, Some(buffer)))
    }

    // The next piece, for a buffer that is yet to be made: each is when it is first needed, so that
    // there are no more of them than pieces.
    fn begin_with_another_buffer(&mut self) -> Option<P> {
        if self.used + self.free.len() + self.spare.len() >= self.buffers_most {
            return None;
        }
        let next = self.staged.pop_front()?;
        self.used += 1;
        Some(next)
    }

    fn share(&mut self, job: &Arc<Job<P, B>>, from: usize) {
        self.parts.extend((from..job.piece.parts()).map(|part| (Arc::clone(job), part)));
    }
}

/// The work of a copy: what its threads do to memory, and whom they tell.
pub trait CopyWork<P, B> {
    /// A copy in flight.
    type Submitted;

    /// Returns how many copies a submitting thread may have in flight.
    fn depth(&self) -> Depth;
    /// Fails where the copy is to stop.
    fn go_on(&self) -> Result<()>;
    /// Makes a staging buffer.
    fn buffer(&self) -> Result<B>;
    /// Gives the copy between the device and the host to the driver.
    fn submit(&self, job: &Job<P, B>) -> Result<Self::Submitted>;
    /// Waits until such a copy has arrived.
    fn wait(&self, job: &Job<P, B>, submitted: Self::Submitted) -> Result<()>;
    /// Copies a part between a buffer and pages of the host.
    fn copy(&self, job: &Job<P, B>, part: usize) -> Result<()>;
    /// Tells that a piece has arrived.
    fn arrived(&self, piece: &P);
}

/// Runs a submitting thread, until nothing will come.
///
/// # Errors
/// What the work refused.
pub fn submit_all<P: QueuedPiece, B: Clone, W: CopyWork<P, B>>(
    queue: &Queue<P, B>,
    work: &W,
) -> Result<()> {
    let mut in_flight = VecDeque::<(Arc<Job<P, B>>, W::Submitted)>::new();
    loop {
        if let Some(next) = queue.next_to_submit(in_flight.len(), work.depth()) {
            work.go_on()?;
            let job = match next {
                ToSubmit::Ready(job) => job,
                ToSubmit::Begin(piece) => Job::new(piece, Some(work.buffer()?)),
            };
            let submitted = work.submit(&job)?;
            in_flight.push_back((job, submitted));
            continue;
        }
        let Some((job, submitted)) = in_flight.pop_front() else { return Ok(()) };
        work.wait(&job, submitted)?;
        match (&job.buffer, queue.direction()) {
            (Some(_), Direction::Out) => queue.share(&job, 0),
            (buffer, _) => {
                if let Some(buffer) = buffer {
                    queue.emptied(buffer);
                }
                work.arrived(&job.piece);
            }
        }
    }
}

/// Runs a copying thread, until nothing will come.
///
/// # Errors
/// What the work refused.
pub fn copy_all<P: QueuedPiece, B: Clone>(
    queue: &Queue<P, B>,
    work: &impl CopyWork<P, B>,
) -> Result<()> {
    while let Some(next) = queue.next_to_copy() {
        work.go_on()?;
        let (job, part) = match next {
            ToCopy::Part(job, part) => (job, part),
            ToCopy::Begin(piece) => {
                let job = Job::new(piece, Some(work.buffer()?));
                queue.share(&job, 1);
                (job, 0)
            }
        };
        work.copy(&job, part)?;
        match (queue.direction(), &job.buffer) {
            (Direction::Out, Some(buffer)) if job.copied_one() => {
                queue.emptied(buffer);
                work.arrived(&job.piece);
            }
            (Direction::In, _) if job.copied_one() => queue.filled(job),
            _ => {}
        }
    }
    Ok(())
}

/// Copies all pieces that wait, on the way in, on the calling thread: the system may start no other.
///
/// # Errors
/// What the work refused.
pub fn copy_here<P: QueuedPiece, B: Clone>(
    queue: &Queue<P, B>,
    work: &impl CopyWork<P, B>,
) -> Result<()> {
    while let Some(next) = queue.next_here() {
        work.go_on()?;
        let job = match next {
            ToSubmit::Ready(job) => job,
            ToSubmit::Begin(piece) => Job::new(piece, Some(work.buffer()?)),
        };
        (0..job.piece.parts()).try_for_each(|part| work.copy(&job, part))?;
        let submitted = work.submit(&job)?;
        work.wait(&job, submitted)?;
        job.buffer.iter().for_each(|buffer| queue.emptied(buffer));
        work.arrived(&job.piece);
    }
    Ok(())
}
