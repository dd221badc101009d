//! Turns, jobs and the hand-over between copying threads under a model checker: every order in which
//! two threads can come, and for three every order with few changes of thread that nobody asked for.
//!
//! Loom sees a lost wake-up as a
//! deadlock and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool as Flag, AtomicUsize as Count};

use crate::copy::handover::{Handover, Job, LaneRoom, Load, Ready, Staged, Way};
use crate::copy::lanes::{Haul, copy, drive};
use crate::lock::monitor::Monitor;
use crate::models;
use crate::state::tag::{Scope, Tag};
use crate::state::tags::Tags;
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
    two_lanes_take_pieces_from_one_queue_and_both_end,
    a_refusal_of_one_lane_ends_the_other,
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

/// A piece of one or two parts that goes through a buffer.
struct InParts {
    number: usize,
    parts: usize,
}

impl Staged for InParts {
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

type Lanes = Handover<usize, InParts, Arc<Buffer>>;

/// A copy whose memory only remembers what was done to it.
struct Carrying {
    lanes: Lanes,
    /// How often each piece arrived.
    arrived: Vec<Count>,
    /// The piece whose copy the driver refuses.
    refused: Option<usize>,
}

impl Carrying {
    fn new(way: Way, pieces: usize, buffers_most: usize, refused: Option<usize>) -> Arc<Carrying> {
        // All in one chunk.
        let lanes = Handover::new(way, vec![pieces], buffers_most);
        let arrived = (0..pieces).map(|_| Count::default()).collect();
        Arc::new(Carrying { lanes, arrived, refused })
    }

    // The thread that speaks with the driver, and so many that copy.
    fn spawn(self: &Arc<Carrying>, copiers: usize) -> Vec<thread::JoinHandle<()>> {
        self.spawn_lanes(1, copiers)
    }

    // So many threads that speak with the driver, and so many that copy.
    fn spawn_lanes(
        self: &Arc<Carrying>,
        drivers: usize,
        copiers: usize,
    ) -> Vec<thread::JoinHandle<()>> {
        let spawn = |number| {
            let carrying = Arc::clone(self);
            thread::spawn(move || {
                let Carrying { lanes, .. } = &*carrying;
                let work = &*carrying;
                lanes.watch(if number < drivers { drive(lanes, work) } else { copy(lanes, work) });
            })
        };
        (0..drivers + copiers).map(spawn).collect()
    }

    // Waits until the chunk has arrived; whether it has.
    fn wait(&self) -> bool {
        self.lanes.wait_until(|left| (left[0] == 0).then_some(())).is_some()
    }

    fn assert_all_arrived(&self, threads: Vec<thread::JoinHandle<()>>) {
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(self.arrived.iter().all(|count| count.load(Relaxed) == 1));
        assert_eq!(self.lanes.arrived_bytes(), self.arrived.len() as u64);
    }

    fn arrive(&self, number: usize) {
        self.arrived[number].fetch_add(1, Relaxed);
        self.lanes.arrived(0, 1);
    }
}

fn refusal() -> Error {
    Error::Broken { during: "the model" }
}

impl Haul<usize, InParts, Arc<Buffer>> for Carrying {
    type Sent = (usize, Option<Arc<Buffer>>);

    fn room(&self) -> LaneRoom {
        LaneRoom::ALONE
    }

    fn go_on(&self) -> Result<()> {
        Ok(())
    }

    fn buffer(&self) -> Result<Arc<Buffer>> {
        Ok(Arc::default())
    }

    fn send(&self, load: &Load<usize, InParts, Arc<Buffer>>) -> Result<Self::Sent> {
        let job = match load {
            Load::Direct(number) => return Ok((*number, None)),
            Load::Staged(job) => job,
        };
        if self.lanes.way() == Way::In {
            let copied = job.buffer.copied.swap(0, Relaxed);
            assert_eq!(copied, job.staged.parts, "every part is in the buffer");
        }
        assert!(!job.buffer.sent.swap(true, Relaxed), "two pieces in a buffer");
        Ok((job.staged.number, Some(Arc::clone(&job.buffer))))
    }

    fn wait(&self, _: &Load<usize, InParts, Arc<Buffer>>, sent: Self::Sent) -> Result<()> {
        let (number, buffer) = sent;
        if self.refused == Some(number) {
            return Err(refusal());
        }
        if let (Way::In, Some(buffer)) = (self.lanes.way(), buffer) {
            assert!(buffer.sent.swap(false, Relaxed), "it was on its way");
        }
        Ok(())
    }

    fn copy(&self, job: &Job<InParts, Arc<Buffer>>, part: usize) -> Result<()> {
        let (Buffer { copied, sent }, parts) = (&*job.buffer, job.staged.parts);
        assert!(part < parts);
        assert_eq!(sent.load(Relaxed), self.lanes.way() == Way::Out, "its turn to be copied");
        if copied.fetch_add(1, Relaxed) + 1 == parts && self.lanes.way() == Way::Out {
            copied.store(0, Relaxed);
            sent.store(false, Relaxed);
        }
        Ok(())
    }

    fn direct_arrived(&self, number: &usize) {
        self.arrive(*number);
    }

    fn staged_arrived(&self, staged: &InParts) {
        self.arrive(staged.number);
    }
}

// A direct piece and two that share one buffer, one of them in two parts.
fn pieces() -> [Ready<usize, InParts>; 3] {
    [
        Ready::Direct(0),
        Ready::Staged(InParts { number: 1, parts: 2 }),
        Ready::Staged(InParts { number: 2, parts: 1 }),
    ]
}

fn every_piece_arrives_once_and_every_thread_ends() {
    for way in [Way::Out, Way::In] {
        check(Some(2), move || {
            let carrying = Carrying::new(way, 3, 1, None);
            let threads = carrying.spawn(1);
            for piece in pieces() {
                carrying.lanes.add([piece]);
            }
            assert!(carrying.wait(), "nobody failed");
            carrying.lanes.close();
            carrying.assert_all_arrived(threads);
            assert_eq!(carrying.lanes.end().0.len(), 1, "it is there for the next copy");
        });
    }
}

fn every_thread_ends_where_nothing_is_waited_for_either() {
    for way in [Way::Out, Way::In] {
        check(Some(2), move || {
            let carrying = Carrying::new(way, 3, 2, None);
            let threads = carrying.spawn(1);
            carrying.lanes.add(pieces());
            carrying.lanes.close();
            carrying.assert_all_arrived(threads);
        });
    }
}

// A direct piece and one in a buffer: with more, two lanes have too many orders to try.
fn two_pieces() -> [Ready<usize, InParts>; 2] {
    [Ready::Direct(0), Ready::Staged(InParts { number: 1, parts: 1 })]
}

// Each of two lanes may find that the other has taken what it was told of, and both must hear of the end.
fn two_lanes_take_pieces_from_one_queue_and_both_end() {
    check(Some(2), || {
        let carrying = Carrying::new(Way::In, 2, 1, None);
        let threads = carrying.spawn_lanes(2, 1);
        carrying.lanes.add(two_pieces());
        carrying.lanes.close();
        carrying.assert_all_arrived(threads);
    });
}

fn a_refusal_of_one_lane_ends_the_other() {
    check(Some(2), move || {
        let carrying = Carrying::new(Way::In, 2, 1, Some(1));
        let threads = carrying.spawn_lanes(2, 1);
        carrying.lanes.add(two_pieces());
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(carrying.lanes.end().1.is_err());
    });
}

fn two_threads_copy_the_parts_of_one_piece() {
    for way in [Way::Out, Way::In] {
        check(Some(2), move || {
            let carrying = Carrying::new(way, 1, 1, None);
            let threads = carrying.spawn(2);
            carrying.lanes.add([Ready::Staged(InParts { number: 0, parts: 2 })]);
            carrying.lanes.close();
            carrying.assert_all_arrived(threads);
        });
    }
}

fn a_refusal_ends_every_thread_whoever_waits_for_what() {
    for way in [Way::Out, Way::In] {
        for refused in 0..3 {
            check(Some(2), move || {
                let carrying = Carrying::new(way, 3, 1, Some(refused));
                let threads = carrying.spawn(1);
                carrying.lanes.add(pieces());
                assert!(!carrying.wait(), "one of them never arrives");
                carrying.lanes.close();
                for thread in threads {
                    thread.join().unwrap();
                }
                assert!(carrying.lanes.end().1.is_err());
            });
        }
    }
}

fn a_caller_that_stops_ends_every_thread() {
    for way in [Way::Out, Way::In] {
        check(Some(2), move || {
            let carrying = Carrying::new(way, 4, 1, None);
            let threads = carrying.spawn(1);
            carrying.lanes.add(pieces());
            // The fourth never comes.
            carrying.lanes.watch(Err(refusal()));
            assert!(!carrying.wait());
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(carrying.lanes.end().1.is_err());
        });
    }
}
