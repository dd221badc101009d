//! What the threads of a carrying hand to one another.
//!
//! A piece in memory that the device knows can go over the link at any time. Any other goes through
//! a slot: on the way out an empty slot is what it needs before the link, on the way in a slot that
//! threads have filled. Everything that anybody waits for is under one lock, so that nobody waits for
//! one thing while another has come, and the end is one question about all of it.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use lowtide_device::{Error, HostMemory, HostPages, Result};

use crate::memory::Memory;
use crate::piece::{Job, Piece, Slot, Way};

/// Enough that threads and link never wait for one another, few enough for the caches.
const SLOTS_MOST: usize = 8;
/// Pieces that need no slot fill the gaps: one is sent where fewer copies than this are in flight. So
/// the link has one, and the next behind it for when that arrives. More would stand before pieces
/// in slots, and for the slots the threads wait.
const FILLED_UP_TO: usize = 2;

/// Pieces on their way from whoever makes them ready, and how far they have come.
pub(crate) struct Feed {
    pub(crate) way: Way,
    /// Of all pieces that will come: the parts of those that go through slots.
    pub(crate) parts: usize,
    state: Mutex<State>,
    /// For the thread that speaks with the driver.
    to_send: Condvar,
    /// For those that copy between slots and pages.
    to_copy: Condvar,
    /// For whoever waits for chunks.
    moved: Condvar,
}

struct State {
    /// Pieces that need no slot.
    direct: VecDeque<(Piece, Arc<HostMemory>)>,
    /// Pieces that wait for one.
    staged: VecDeque<(Piece, Arc<HostPages>)>,
    /// Whether no more pieces will come.
    closed: bool,
    /// Slots that were used and are empty.
    free: VecDeque<Slot>,
    /// Slots that were not used yet.
    spare: Vec<Slot>,
    /// Slots with a piece in them, or being made for one.
    used: usize,
    /// On the way in: slots that are full and can be sent.
    full: VecDeque<Arc<Job>>,
    /// Parts to be copied between slots and pages.
    parts: VecDeque<(Arc<Job>, usize)>,
    /// Pieces of each chunk that have not arrived.
    left: Vec<usize>,
    error: Option<Error>,
}

/// What goes over the link.
pub(crate) enum Load {
    Direct(Piece, Arc<HostMemory>),
    Staged(Arc<Job>),
}

/// What the thread that speaks with the driver does next.
pub(crate) enum ToSend {
    Load(Load),
    /// Makes a slot for this piece, and sends it.
    Begin(Piece, Arc<HostPages>),
}

/// What a thread that copies does next.
pub(crate) enum ToCopy {
    Part(Arc<Job>, usize),
    /// Makes a slot for this piece, and shares its parts.
    Begin(Piece, Arc<HostPages>),
}

impl Feed {
    /// For these pieces of so many chunks, once they are ready.
    pub(crate) fn new(
        way: Way,
        chunks: usize,
        expected: impl IntoIterator<Item: Borrow<Piece>>,
    ) -> Feed {
        let (mut left, mut parts) = (vec![0; chunks], 0);
        for piece in expected {
            let piece = piece.borrow();
            left[piece.chunk] += 1;
            parts += if piece.memory.is_direct() { 0 } else { piece.parts() };
        }
        let state = State {
            direct: VecDeque::new(),
            staged: VecDeque::new(),
            closed: false,
            free: VecDeque::new(),
            spare: Vec::new(),
            used: 0,
            full: VecDeque::new(),
            parts: VecDeque::new(),
            left,
            error: None,
        };
        let (to_send, to_copy, moved) = Default::default();
        Feed { way, parts, state: Mutex::new(state), to_send, to_copy, moved }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pieces are ready to be carried.
    pub(crate) fn add(&self, pieces: impl IntoIterator<Item = Piece>) {
        let mut state = self.state();
        for piece in pieces {
            match piece.memory.clone() {
                Memory::Direct(memory) => state.direct.push_back((piece, memory)),
                Memory::Plain(pages) => state.staged.push_back((piece, pages)),
            }
        }
        drop(state);
        self.to_send.notify_one();
        self.to_copy.notify_all();
    }

    /// No more will come.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.to_send.notify_one();
        self.to_copy.notify_all();
    }

    /// The first failure ends everybody.
    pub(crate) fn watch(&self, outcome: Result<()>) {
        let Err(error) = outcome else { return };
        let mut state = self.state();
        state.error.get_or_insert(error);
        // Slots go with what was to be copied, which takes calls at the driver: not under the lock.
        let full = std::mem::take(&mut state.full);
        let parts = std::mem::take(&mut state.parts);
        drop(state);
        self.to_send.notify_one();
        self.to_copy.notify_all();
        self.moved.notify_all();
        drop((full, parts));
    }

    /// Slots of an earlier carrying.
    pub(crate) fn lend(&self, slots: Vec<Slot>) {
        self.state().spare = slots;
    }

    /// What is left once every thread has ended: slots that nobody uses, and the first failure.
    pub(crate) fn end(&self) -> (Vec<Slot>, Result<()>) {
        let mut state = self.state();
        let mut slots = std::mem::take(&mut state.spare);
        slots.extend(std::mem::take(&mut state.free));
        (slots, state.error.take().map_or(Ok(()), Err))
    }

    /// What to send while so many copies are in flight. Waits only where none is: `None` means then
    /// that nothing will come, and otherwise that one should be waited for.
    pub(crate) fn next_to_send(&self, in_flight: usize) -> Option<ToSend> {
        let mut state = self.state();
        loop {
            if state.error.is_some() {
                return None;
            }
            // Where nothing is in flight, what goes without a slot would have been taken.
            let next = state.next_to_send(self.way, in_flight);
            if next.is_some() || in_flight > 0 || state.is_over() {
                return next;
            }
            state = self.to_send.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What to copy next. Waits for it; `None` where nothing will come.
    pub(crate) fn next_to_copy(&self) -> Option<ToCopy> {
        let mut state = self.state();
        loop {
            if state.error.is_some() {
                return None;
            }
            if let Some((job, part)) = state.parts.pop_front() {
                return Some(ToCopy::Part(job, part));
            }
            if self.way == Way::In {
                if let Some(job) = state.begin() {
                    state.share(&job, 1);
                    drop(state);
                    self.tell_of_parts(job.piece.parts() - 1);
                    return Some(ToCopy::Part(job, 0));
                }
                if let Some((piece, pages)) = state.begin_with_another_slot() {
                    return Some(ToCopy::Begin(piece, pages));
                }
            }
            if state.is_over() {
                return None;
            }
            state = self.to_copy.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Threads may copy the parts of a job, from this one on.
    pub(crate) fn share(&self, job: &Arc<Job>, from: usize) {
        self.state().share(job, from);
        self.tell_of_parts(job.piece.parts() - from);
    }

    fn tell_of_parts(&self, count: usize) {
        match count {
            0 => {}
            1 => self.to_copy.notify_one(),
            _ => self.to_copy.notify_all(),
        }
    }

    /// On the way in: every part of a job is in its slot.
    pub(crate) fn filled(&self, job: Arc<Job>) {
        self.state().full.push_back(job);
        self.to_send.notify_one();
    }

    /// Nobody needs what is in a slot any more.
    pub(crate) fn emptied(&self, slot: &Slot) {
        let mut state = self.state();
        state.free.push_back(Arc::clone(slot));
        state.used -= 1;
        let is_over = state.is_over();
        drop(state);
        if is_over {
            self.to_send.notify_one();
            self.to_copy.notify_all();
            return;
        }
        match self.way {
            Way::Out => self.to_send.notify_one(),
            Way::In => self.to_copy.notify_one(),
        }
    }

    pub(crate) fn arrived(&self, piece: &Piece) {
        let mut state = self.state();
        state.left[piece.chunk] -= 1;
        let chunk_done = state.left[piece.chunk] == 0;
        drop(state);
        if chunk_done {
            self.moved.notify_all();
        }
    }

    /// Waits until something is found in what is left of each chunk, which is looked at whenever one
    /// of them has arrived; `None` where somebody failed before.
    pub(crate) fn wait_until<T>(&self, found: impl Fn(&[usize]) -> Option<T>) -> Option<T> {
        let mut state = self.state();
        loop {
            if state.error.is_some() {
                return None;
            }
            if let Some(found) = found(&state.left) {
                return Some(found);
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// Whether nothing will go through a slot any more.
    fn is_over(&self) -> bool {
        self.closed && self.staged.is_empty() && self.used == 0
    }

    fn next_to_send(&mut self, way: Way, in_flight: usize) -> Option<ToSend> {
        let staged = match way {
            Way::Out => self.begin(),
            Way::In => self.full.pop_front(),
        };
        if let Some(job) = staged {
            return Some(ToSend::Load(Load::Staged(job)));
        }
        if in_flight < FILLED_UP_TO
            && let Some((piece, memory)) = self.direct.pop_front()
        {
            return Some(ToSend::Load(Load::Direct(piece, memory)));
        }
        // Last, because the link waits while a slot is made, if it has nothing else.
        let (piece, pages) = (way == Way::Out).then(|| self.begin_with_another_slot()).flatten()?;
        Some(ToSend::Begin(piece, pages))
    }

    // The next piece, in a slot that is there.
    fn begin(&mut self) -> Option<Arc<Job>> {
        if self.staged.is_empty() {
            return None;
        }
        let slot = self.free.pop_front().or_else(|| self.spare.pop())?;
        let (piece, pages) = self.staged.pop_front()?;
        self.used += 1;
        Some(Job::new(piece, pages, slot))
    }

    // The next piece, for a slot that is yet to be made: each is when it is first needed, so that there
    // are no more of them than pieces.
    fn begin_with_another_slot(&mut self) -> Option<(Piece, Arc<HostPages>)> {
        if self.used + self.free.len() + self.spare.len() >= SLOTS_MOST {
            return None;
        }
        let next = self.staged.pop_front()?;
        self.used += 1;
        Some(next)
    }

    fn share(&mut self, job: &Arc<Job>, from: usize) {
        self.parts.extend((from..job.piece.parts()).map(|part| (Arc::clone(job), part)));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use lowtide_device::{Bytes, Device, HostOptions, Reservation};

    use super::*;
    use crate::piece::PIECE;

    /// What pieces are made of. Nothing is copied here.
    struct World {
        reservation: Reservation,
        direct: Memory,
        plain: Memory,
        slot: Slot,
    }

    impl World {
        fn new() -> World {
            let options = HostOptions { budget: Some(Bytes(PIECE)), small_pages: true };
            let device = Device::host(options).unwrap();
            World {
                reservation: device.reserve(Bytes(PIECE)).unwrap(),
                direct: Memory::direct(&device, Bytes(PIECE)).unwrap(),
                plain: Memory::plain(Bytes(PIECE)).unwrap(),
                slot: device.host_memory(Bytes(PIECE)).unwrap(),
            }
        }

        fn piece(&self, number: usize, memory: &Memory) -> Piece {
            let (reservation, memory) = (self.reservation.clone(), memory.clone());
            let (at, size) = (Bytes::ZERO, Bytes(PIECE));
            Piece { number, chunk: 0, reservation, offset: 0, memory, at, size }
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

    // The number of what is sent, with the job where it is in a slot; it is given one where it has none.
    fn send(feed: &Feed, world: &World, in_flight: usize) -> Option<(usize, Option<Arc<Job>>)> {
        let job = match feed.next_to_send(in_flight)? {
            ToSend::Load(Load::Direct(piece, _)) => return Some((piece.number, None)),
            ToSend::Load(Load::Staged(job)) => job,
            ToSend::Begin(piece, pages) => Job::new(piece, pages, Arc::clone(&world.slot)),
        };
        Some((job.piece.number, Some(job)))
    }

    // A thread's part on the way in, without the copying.
    fn fill(feed: &Feed, world: &World) -> usize {
        let job = match feed.next_to_copy().unwrap() {
            ToCopy::Part(job, part) => {
                assert_eq!(part, 0);
                job
            }
            ToCopy::Begin(piece, pages) => {
                let job = Job::new(piece, pages, Arc::clone(&world.slot));
                feed.share(&job, 1);
                job
            }
        };
        for part in 1..job.piece.parts() {
            let next = feed.next_to_copy();
            assert!(matches!(next, Some(ToCopy::Part(same, found))
                if Arc::ptr_eq(&same, &job) && found == part));
        }
        let number = job.piece.number;
        feed.filled(job);
        number
    }

    #[test]
    fn on_the_way_out_slots_come_first_and_the_rest_fills_the_gaps() {
        let world = World::new();
        let mut pieces: Vec<Piece> = (0..4).map(|number| world.direct(number)).collect();
        pieces.extend((4..=4 + SLOTS_MOST).map(|number| world.plain(number)));
        let feed = fed(Way::Out, pieces);
        assert_eq!(feed.parts, (SLOTS_MOST + 1) * 4);
        feed.lend(vec![Arc::clone(&world.slot)]);
        let next = |in_flight| {
            send(&feed, &world, in_flight).map(|(number, job)| {
                assert_eq!(job.is_some(), number > 3);
                number
            })
        };
        assert_eq!(next(0), Some(4), "there is a slot");
        assert_eq!(next(1), Some(0), "before another is made");
        for slot in 1..SLOTS_MOST {
            assert_eq!(next(1 + slot), Some(4 + slot), "one is made");
        }
        assert_eq!(next(1 + SLOTS_MOST), None, "there is enough in flight");
        assert_eq!(next(FILLED_UP_TO), None);
        assert_eq!(next(FILLED_UP_TO - 1), Some(1), "the link has room");
        assert_eq!(next(0), Some(2));
        feed.emptied(&world.slot);
        assert_eq!(next(0), Some(4 + SLOTS_MOST), "a slot is free");
        assert_eq!(next(0), Some(3));
        feed.close();
        for _ in 0..SLOTS_MOST {
            feed.emptied(&world.slot);
        }
        assert_eq!(next(0), None, "nothing is left");
        assert!(feed.next_to_copy().is_none());
        let (slots, outcome) = feed.end();
        assert_eq!(slots.len(), SLOTS_MOST);
        outcome.unwrap();
    }

    #[test]
    fn on_the_way_in_slots_come_first_and_the_rest_fills_the_gaps() {
        let world = World::new();
        let pieces =
            (0..3).map(|number| world.direct(number)).chain([world.plain(3), world.plain(4)]);
        let feed = fed(Way::In, pieces.collect());
        feed.lend(vec![Arc::clone(&world.slot)]);
        for in_flight in 0..FILLED_UP_TO {
            assert_eq!(send(&feed, &world, in_flight).unwrap().0, in_flight, "no slot is full");
        }
        assert!(send(&feed, &world, FILLED_UP_TO).is_none(), "there is enough in flight");
        assert_eq!([fill(&feed, &world), fill(&feed, &world)], [3, 4]);
        let jobs = [5, 6].map(|in_flight| send(&feed, &world, in_flight).unwrap().1.unwrap());
        assert_eq!(jobs.each_ref().map(|job| job.piece.number), [3, 4], "whatever is in flight");
        assert_eq!(send(&feed, &world, 0).unwrap().0, 2);
        feed.close();
        for job in &jobs {
            feed.emptied(&job.slot);
        }
        assert!(send(&feed, &world, 0).is_none(), "nothing is left");
        assert!(feed.next_to_copy().is_none());
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
                            feed.emptied(&job.slot);
                        }
                        tell.send(number).unwrap();
                    }
                });
                for piece in expected {
                    let (number, is_direct) = (piece.number, piece.memory.is_direct());
                    feed.add([piece]);
                    if way == Way::In && !is_direct {
                        fill(feed, world);
                    }
                    assert_eq!(told.recv().unwrap(), number);
                }
                feed.close();
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
                scope.spawn(|| assert!(feed.next_to_send(0).is_none()));
                scope.spawn(|| assert!(feed.next_to_copy().is_none()));
                scope.spawn(|| {
                    assert!(feed.wait_until(|left| (left[0] == 0).then_some(())).is_none());
                });
                for what in ["first", "second"] {
                    feed.watch(Err(Error::Unsupported { what, why: String::new() }));
                }
            });
            feed.add([world.direct(0), world.plain(1)]);
            assert!(feed.next_to_send(0).is_none() && feed.next_to_copy().is_none());
            let (_, outcome) = feed.end();
            assert!(matches!(outcome, Err(Error::Unsupported { what: "first", .. })));
        }
    }
}
