//! Every interleaving of the gate's protocol, under loom: of two threads all, of three those with a few
//! preemptions.

#[path = "../../src/gate/protocol.rs"]
#[allow(dead_code, reason = "the agent uses the rest")]
mod protocol;

/// The atomics of the model.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use std::sync::Arc;

use loom::sync::atomic::Ordering::{Acquire, Relaxed};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use protocol::{ASLEEP, CLOSING, OPEN, SUSPENDED, TOUCH};

/// Memory that only one side may use at a time.
#[derive(Default)]
struct Memory {
    /// Changed by read-modify-writes, which always see the latest value.
    uses: AtomicU32,
    /// The same number, read and written without ordering: stale unless the gate orders it.
    seen: AtomicU32,
}

impl Memory {
    fn use_it(&self) {
        let uses = self.uses.fetch_add(1, Relaxed);
        assert_eq!(self.seen.load(Relaxed), uses, "two use it, or one saw an old value");
        self.seen.store(uses + 1, Relaxed);
    }
}

/// A gate, and for each thread memory of the device that its touches use.
struct Model {
    state: AtomicU32,
    lines: Vec<AtomicU64>,
    memory: Vec<Memory>,
}

impl Model {
    fn new(threads: usize) -> Arc<Model> {
        Arc::new(Model {
            state: AtomicU32::new(OPEN),
            lines: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            memory: (0..threads).map(|_| Memory::default()).collect(),
        })
    }

    /// Uses memory of the device, if the gate lets it.
    fn touch(&self, thread: usize) -> bool {
        let line = &self.lines[thread];
        if !protocol::try_enter(&self.state, line, TOUCH) {
            return false;
        }
        self.memory[thread].use_it();
        protocol::leave(line);
        true
    }

    /// Closes the gate, takes the memory if nobody is inside, and opens it again.
    fn sleep_and_wake(&self) -> bool {
        protocol::close(&self.state, CLOSING, self.lines.iter());
        let is_empty = self.lines.iter().all(protocol::is_empty);
        if is_empty {
            protocol::change(&self.state, ASLEEP);
            self.memory.iter().for_each(Memory::use_it);
        }
        protocol::change(&self.state, OPEN);
        is_empty
    }
}

#[test]
fn nobody_is_inside_a_gate_that_was_found_empty() {
    // Three threads: with a few preemptions, not all.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let model = Model::new(2);
        let touching = |thread: usize| {
            let model = Arc::clone(&model);
            thread::spawn(move || model.touch(thread))
        };
        let threads = [touching(0), touching(1)];
        model.sleep_and_wake();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(model.state.load(Acquire), OPEN);
        assert!(model.lines.iter().all(protocol::is_empty), "everybody has left");
    });
}

#[test]
fn a_thread_that_comes_back_finds_what_the_sleep_left() {
    loom::model(|| {
        let model = Model::new(1);
        let own = Arc::clone(&model);
        let thread = thread::spawn(move || {
            own.touch(0);
            own.touch(0)
        });
        model.sleep_and_wake();
        thread.join().unwrap();
        assert!(model.touch(0), "it is open in the end");
    });
}

#[test]
fn nobody_calls_the_driver_of_a_process_that_was_found_quite_empty() {
    loom::model(|| {
        let model = Model::new(1);
        protocol::close(&model.state, CLOSING, model.lines.iter());
        protocol::change(&model.state, ASLEEP);
        let own = Arc::clone(&model);
        let thread = thread::spawn(move || {
            let line = &own.lines[0];
            if protocol::try_enter_quietly(&own.state, line) {
                own.memory[0].use_it();
                protocol::leave_quietly(line);
            }
        });
        protocol::close(&model.state, SUSPENDED, model.lines.iter());
        if model.lines.iter().all(protocol::is_empty_of_quiet) {
            model.memory[0].use_it();
        }
        protocol::change(&model.state, ASLEEP);
        thread.join().unwrap();
        assert!(model.lines.iter().all(protocol::is_empty_of_quiet), "everybody has left");
        assert!(model.lines.iter().all(protocol::is_empty), "no touch was counted");
    });
}

#[test]
fn two_threads_may_share_a_line() {
    loom::model(|| {
        let model = Model::new(1);
        let own = Arc::clone(&model);
        // The memory of a shared line is nobody's own, so only who closes looks at it.
        let thread = thread::spawn(move || {
            let line = &own.lines[0];
            if protocol::try_enter(&own.state, line, TOUCH) {
                protocol::leave(line);
            }
        });
        let line = &model.lines[0];
        let is_inside = protocol::try_enter(&model.state, line, TOUCH);
        protocol::close(&model.state, CLOSING, model.lines.iter());
        assert!(!(is_inside && model.lines.iter().all(protocol::is_empty)), "we are inside");
        if is_inside {
            protocol::leave(line);
        }
        thread.join().unwrap();
        assert!(model.lines.iter().all(protocol::is_empty));
        assert_eq!(model.state.load(Acquire), CLOSING);
    });
}
