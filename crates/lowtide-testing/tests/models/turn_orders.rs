//! Turns, jobs and the queue between copying threads under a model checker: every order in which
//! two threads can come, and for three every order with few changes of thread that nobody asked for.
//!
//! Loom sees a lost wake-up as a
//! deadlock and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool as Flag, AtomicUsize as Count};

use crate::copy::queue::{
    CopyWork, Depth, Direction, Job, Queue, QueuedPiece, copy_all, submit_all,
};
use crate::lock::monitor::Monitor;
use crate::models;
use crate::state::tags::{Scope, Tag, Tags};
use crate::{Error, Limit, Result};
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use lowtide_types::{Phase, SleepPolicy};

pub(crate) const MODELS: &[(&str, fn())] = models![
    a_turn_and_a_job_never_touch_the_same_memory,
    there_is_one_turn_at_a_time,
    a_step_and_a_turn_never_have_the_backups_together,
    an_allocation_waits_for_no_step,
    jobs_and_turns_of_three_threads_all_come_to_an_end,
    a_turn_that_is_stopped_while_it_waits_leaves_no_trace,
    every_piece_arrives_once_and_every_thread_ends,
    every_thread_ends_where_nothing_is_waited_for_either,
    two_engines_take_pieces_from_one_queue_and_both_end,
    a_refusal_of_one_engine_ends_the_other,
    two_threads_copy_the_parts_of_one_piece,
    a_refusal_ends_every_thread_whoever_waits_for_what,
    a_caller_that_stops_ends_every_thread,
];

/// Every order there is, or every order with so many changes of thread that nobody asked for.
fn check(changes: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = changes;
    builder.check(body);
}

/// What only one thread may touch at a time. Loom may change threads in the middle.
#[derive(Default)]
struct Memory(AtomicBool);

impl Memory {
    fn touch(&self) {
        assert!(!self.0.swap(true, Relaxed), "two touch it");
        assert!(self.0.swap(false, Relaxed), "two touch it");
    }
}

/// Two tags with the pool's lock.
struct World {
    monitor: Monitor<Tags>,
    tags: [Tag; 2],
    /// Under two blocks of the first tag.
    memory: [Memory; 2],
    /// Every turn has them to itself.
    backups: Memory,
}

impl World {
    fn new() -> Arc<World> {
        let mut known = Tags::new();
        let tags = ["weights", "cache"].map(|name| known.add(name, SleepPolicy::Offload).unwrap());
        let (monitor, backups) = (Monitor::new(known), Memory::default());
        Arc::new(World { monitor, tags, memory: Default::default(), backups })
    }

    fn phase(&self) -> Phase {
        self.monitor.lock().unwrap()[self.tags[0]].phase()
    }

    // A sleep or a wake of a tag; whether there was something to do.
    fn turn(&self, tag: usize, from: Phase, becomes: Phase, limit: Limit<'_>) -> Result<bool> {
        let begun = self.monitor.begin_turn(Scope::Tags(&[self.tags[tag]]), from, limit)?;
        let Some((state, mut turns)) = begun else { return Ok(false) };
        drop(state);
        self.backups.touch();
        if tag == 0 {
            self.memory.iter().for_each(Memory::touch);
        }
        for turning in &mut turns {
            turning.becomes = becomes;
        }
        self.monitor.end_turn(self.monitor.lock().unwrap(), &turns);
        Ok(true)
    }

    fn sleep(&self) -> bool {
        self.turn(0, Phase::Awake, Phase::Asleep, Limit::NONE).unwrap()
    }

    fn wake(&self) -> bool {
        self.turn(0, Phase::Asleep, Phase::Awake, Limit::NONE).unwrap()
    }

    // A step of backups ahead of time; whether there was no turn.
    fn step(&self) -> bool {
        let Some(state) = self.monitor.begin_step().unwrap() else { return false };
        drop(state);
        self.backups.touch();
        self.monitor.end_step(self.monitor.lock().unwrap());
        true
    }

    // An allocation that calls the driver for a block; whether the tag was awake.
    fn allocate(&self, block: usize) -> bool {
        let has_turned = |tags: &mut Tags| tags[self.tags[0]].phase() != Phase::Turning;
        let waited = self.monitor.wait_until(self.monitor.lock().unwrap(), Limit::NONE, has_turned);
        let mut tags = waited.unwrap();
        if tags[self.tags[0]].phase() == Phase::Asleep {
            return false;
        }
        tags.begin_job(self.tags[0]);
        drop(tags);
        self.memory[block].touch();
        self.monitor.lock().unwrap().end_job(self.tags[0]);
        self.monitor.notify();
        true
    }
}

fn a_turn_and_a_job_never_touch_the_same_memory() {
    check(None, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let job = thread::spawn(move || other.allocate(0));
        assert!(world.sleep(), "nobody else puts it to sleep");
        job.join().unwrap();
        assert_eq!(world.phase(), Phase::Asleep);
        assert!(!world.allocate(0) && world.wake() && world.allocate(1));
    });
}

fn there_is_one_turn_at_a_time() {
    for tag in [0, 1] {
        check(None, move || {
            let world = World::new();
            let other = Arc::clone(&world);
            let sleeper = thread::spawn(move || {
                other.turn(tag, Phase::Awake, Phase::Asleep, Limit::NONE).unwrap()
            });
            let both = (world.sleep(), sleeper.join().unwrap());
            // Of the same tag, one of them.
            assert!(if tag == 1 { both == (true, true) } else { both.0 != both.1 });
            assert_eq!(world.phase(), Phase::Asleep);
        });
    }
}

fn a_step_and_a_turn_never_have_the_backups_together() {
    check(None, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let steps = thread::spawn(move || (other.step(), other.step()));
        assert!(world.sleep(), "it waits for a step, and no step begins before it");
        steps.join().unwrap();
        assert!(world.step(), "nobody waits any more");
        assert_eq!(world.phase(), Phase::Asleep);
    });
}

fn an_allocation_waits_for_no_step() {
    check(None, || {
        let world = World::new();
        let state = world.monitor.begin_step().unwrap().expect("there is no turn");
        drop(state);
        let other = Arc::clone(&world);
        assert!(thread::spawn(move || other.allocate(0)).join().unwrap());
        assert!(world.monitor.begin_step().unwrap().is_none(), "one at a time");
        world.monitor.end_step(world.monitor.lock().unwrap());
    });
}

fn jobs_and_turns_of_three_threads_all_come_to_an_end() {
    check(Some(3), || {
        let world = World::new();
        let others = [Arc::clone(&world), Arc::clone(&world)];
        let [one, two] = others;
        let job = thread::spawn(move || one.allocate(0));
        let waker = thread::spawn(move || two.wake());
        assert!(world.sleep());
        job.join().unwrap();
        let woke = waker.join().unwrap();
        assert_eq!(world.phase(), if woke { Phase::Awake } else { Phase::Asleep });
    });
}

// The limit gives up after a while; the turn that was begun by then is taken back, and whoever waits
// for it goes on.
fn a_turn_that_is_stopped_while_it_waits_leaves_no_trace() {
    for most in [0, 1] {
        check(Some(2), move || {
            let world = World::new();
            let [one, two] = [Arc::clone(&world), Arc::clone(&world)];
            let job = thread::spawn(move || one.allocate(0));
            let other = thread::spawn(move || two.allocate(1));
            let asked = Count::new(0);
            let go_on = || asked.fetch_add(1, Relaxed) < most;
            match world.turn(0, Phase::Awake, Phase::Asleep, Limit::new(&go_on)) {
                Ok(slept) => assert!(slept && world.phase() == Phase::Asleep),
                Err(Error::Stopped { .. }) => assert_eq!(world.phase(), Phase::Awake),
                Err(error) => panic!("{error}"),
            }
            job.join().unwrap();
            other.join().unwrap();
            assert!(world.wake() || world.phase() == Phase::Awake);
            assert!(world.sleep(), "nothing holds it up");
        });
    }
}

/// A piece that is direct, or of one or two parts that go through a buffer.
struct Piece {
    number: usize,
    parts: usize,
}

impl QueuedPiece for Piece {
    fn parts(&self) -> usize {
        self.parts
    }
}

/// A staging buffer, which has one piece in it at a time. What is remembered is not seen by loom: it
/// changes threads at locks.
#[derive(Default)]
struct Buffer {
    /// Parts of the piece in it that were copied.
    copied: Count,
    /// Whether it was given to the driver, and is not used up.
    sent: Flag,
}

/// A copy whose memory only remembers what was done to it.
struct Copying {
    queue: Queue<Piece, Arc<Buffer>>,
    /// How often each piece arrived.
    arrived: Vec<Count>,
    /// The piece whose copy the driver refuses.
    refused: Option<usize>,
}

impl Copying {
    fn new(
        direction: Direction,
        pieces: usize,
        buffers_most: usize,
        refused: Option<usize>,
    ) -> Arc<Copying> {
        // All in one chunk.
        let queue = Queue::new(direction, vec![pieces], buffers_most);
        let arrived = (0..pieces).map(|_| Count::default()).collect();
        Arc::new(Copying { queue, arrived, refused })
    }

    // The thread that submits, and so many that copy.
    fn spawn(self: &Arc<Copying>, copiers: usize) -> Vec<thread::JoinHandle<()>> {
        self.spawn_engines(1, copiers)
    }

    // So many threads that submit, of which the second stops helping once a piece has arrived, and so many that copy.
    fn spawn_engines(
        self: &Arc<Copying>,
        submitters: usize,
        copiers: usize,
    ) -> Vec<thread::JoinHandle<()>> {
        let spawn = |number| {
            let copying = Arc::clone(self);
            thread::spawn(move || {
                let queue = &copying.queue;
                let work = Engine { copying: &copying, helps: number == 1 };
                queue.end_if_failed(if number < submitters {
                    submit_all(queue, &work)
                } else {
                    copy_all(queue, &work)
                });
            })
        };
        (0..submitters + copiers).map(spawn).collect()
    }

    // Waits until the chunk has arrived; whether it has.
    fn wait(&self) -> bool {
        self.queue.wait_until(|arrivals| arrivals.chunks.pop_front()).is_some()
    }

    fn assert_all_arrived(&self, threads: Vec<thread::JoinHandle<()>>) {
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(self.arrived.iter().all(|count| count.load(Relaxed) == 1));
        assert_eq!(self.queue.arrived_bytes(), self.arrived.len() as u64);
    }

    fn assert_failed(&self, threads: Vec<thread::JoinHandle<()>>) {
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(self.queue.end().1.is_err());
    }
}

fn refusal() -> Error {
    Error::Broken { during: "the model" }
}

/// The work of a thread.
struct Engine<'a> {
    copying: &'a Copying,
    /// Set where it helps until a piece has arrived.
    helps: bool,
}

impl CopyWork<Piece, Arc<Buffer>> for Engine<'_> {
    type Submitted = ();

    fn depth(&self) -> Depth {
        let has_helped = self.helps && self.copying.queue.arrived_bytes() > 0;
        if has_helped { Depth { most: 0, direct_below: 0 } } else { Depth::ALONE }
    }

    fn go_on(&self) -> Result<()> {
        Ok(())
    }

    fn buffer(&self) -> Result<Arc<Buffer>> {
        Ok(Arc::default())
    }

    fn submit(&self, job: &Job<Piece, Arc<Buffer>>) -> Result<()> {
        let Some(buffer) = &job.buffer else { return Ok(()) };
        if self.copying.queue.direction() == Direction::In {
            let copied = buffer.copied.swap(0, Relaxed);
            assert_eq!(copied, job.piece.parts, "every part is in the buffer");
        }
        assert!(!buffer.sent.swap(true, Relaxed), "two pieces in a buffer");
        Ok(())
    }

    fn wait(&self, job: &Job<Piece, Arc<Buffer>>, (): ()) -> Result<()> {
        if self.copying.refused == Some(job.piece.number) {
            return Err(refusal());
        }
        if let (Direction::In, Some(buffer)) = (self.copying.queue.direction(), &job.buffer) {
            assert!(buffer.sent.swap(false, Relaxed), "it was on its way");
        }
        Ok(())
    }

    fn copy(&self, job: &Job<Piece, Arc<Buffer>>, part: usize) -> Result<()> {
        let is_out = self.copying.queue.direction() == Direction::Out;
        let Buffer { copied, sent } = &**job.buffer.as_ref().unwrap();
        assert!(part < job.piece.parts);
        assert_eq!(sent.load(Relaxed), is_out, "its turn to be copied");
        if copied.fetch_add(1, Relaxed) + 1 == job.piece.parts && is_out {
            copied.store(0, Relaxed);
            sent.store(false, Relaxed);
        }
        Ok(())
    }

    fn arrived(&self, piece: &Piece) {
        self.copying.arrived[piece.number].fetch_add(1, Relaxed);
        self.copying.queue.arrived(0, 1);
    }
}

fn piece(number: usize, parts: usize) -> Piece {
    Piece { number, parts }
}

// A direct piece and two that share one buffer, one of them in two parts.
fn pieces() -> [Piece; 3] {
    [piece(0, 0), piece(1, 2), piece(2, 1)]
}

fn every_piece_arrives_once_and_every_thread_ends() {
    for direction in [Direction::Out, Direction::In] {
        check(Some(2), move || {
            let copying = Copying::new(direction, 3, 1, None);
            let threads = copying.spawn(1);
            for piece in pieces() {
                copying.queue.add([piece]);
            }
            assert!(copying.wait(), "nobody failed");
            copying.queue.close();
            copying.assert_all_arrived(threads);
            assert_eq!(copying.queue.end().0.len(), 1, "it is there for the next copy");
        });
    }
}

fn every_thread_ends_where_nothing_is_waited_for_either() {
    for direction in [Direction::Out, Direction::In] {
        check(Some(2), move || {
            let copying = Copying::new(direction, 3, 2, None);
            let threads = copying.spawn(1);
            copying.queue.add(pieces());
            copying.queue.close();
            copying.assert_all_arrived(threads);
        });
    }
}

// A direct piece and one in a buffer: with more, two lanes have too many orders to try.
fn two_pieces() -> [Piece; 2] {
    [piece(0, 0), piece(1, 1)]
}

// Each of two lanes may find that the other has taken what it was told of, and both must hear of the end.
fn two_engines_take_pieces_from_one_queue_and_both_end() {
    check(Some(2), || {
        let copying = Copying::new(Direction::In, 2, 1, None);
        let threads = copying.spawn_engines(2, 1);
        copying.queue.add(two_pieces());
        copying.queue.close();
        copying.assert_all_arrived(threads);
    });
}

fn a_refusal_of_one_engine_ends_the_other() {
    check(Some(2), move || {
        let copying = Copying::new(Direction::In, 2, 1, Some(1));
        let threads = copying.spawn_engines(2, 1);
        copying.queue.add(two_pieces());
        copying.assert_failed(threads);
    });
}

fn two_threads_copy_the_parts_of_one_piece() {
    for direction in [Direction::Out, Direction::In] {
        check(Some(2), move || {
            let copying = Copying::new(direction, 1, 1, None);
            let threads = copying.spawn(2);
            copying.queue.add([piece(0, 2)]);
            copying.queue.close();
            copying.assert_all_arrived(threads);
        });
    }
}

fn a_refusal_ends_every_thread_whoever_waits_for_what() {
    for direction in [Direction::Out, Direction::In] {
        for refused in 0..3 {
            check(Some(2), move || {
                let copying = Copying::new(direction, 3, 1, Some(refused));
                let threads = copying.spawn(1);
                copying.queue.add(pieces());
                assert!(!copying.wait(), "one of them never arrives");
                copying.queue.close();
                copying.assert_failed(threads);
            });
        }
    }
}

fn a_caller_that_stops_ends_every_thread() {
    for direction in [Direction::Out, Direction::In] {
        check(Some(2), move || {
            let copying = Copying::new(direction, 4, 1, None);
            let threads = copying.spawn(1);
            copying.queue.add(pieces());
            // The fourth never comes.
            copying.queue.end_if_failed(Err(refusal()));
            assert!(!copying.wait());
            copying.assert_failed(threads);
        });
    }
}
