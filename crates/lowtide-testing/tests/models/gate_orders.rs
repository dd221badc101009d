//! The gate and the idle policy under a model checker: every interleaving of two threads, and for
//! three threads every interleaving with a few preemptions.
//!
//! Loom reports a lost wake-up
//! as a deadlock, and lets a relaxed load return any value that the memory model allows: so a gate
//! that orders too little fails in [`Memory::touch`].

use std::time::Duration;

use crate::clock::Clock;
use crate::gate::{Gate, GateState, Mode, Step};
use crate::idle::{Decision, Idle, IdleOptions};
use crate::models;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use loom::thread::{self, JoinHandle};

pub(crate) const MODELS: &[(&str, fn())] = models![
    r37_nothing_passes_while_the_gate_is_closed,
    two_workers_stop_for_one_closer_and_both_go_on,
    who_closes_without_waiting_or_for_a_while_has_it_alone_or_leaves_no_trace,
    whoever_is_parked_or_held_goes_on_after_the_open_even_if_it_closes_again,
    two_closers_take_turns_and_work_goes_between,
    closers_stay_out_of_each_others_way,
    a_pass_within_a_pass_never_waits_for_its_own_gate,
    work_finds_memory_awake_and_one_wakes_it_for_all,
    memory_that_could_not_be_woken_is_woken_by_the_next,
    r26_no_ticket_is_given_while_a_task_is_active,
    there_are_never_two_claims,
    a_task_that_finished_is_never_forgotten,
    a_ticket_that_is_put_back_loses_no_task,
];

const MODES: [Mode; 4] = [Mode::Abort, Mode::Retract, Mode::InPlace, Mode::Drain];
const QUIET: GateState = GateState { open: true, active: 0, parked: 0, waiting: 0 };

/// Runs every interleaving, or every one with at most so many preemptions.
fn check(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(body);
}

/// The preemptions in models of three threads: 2, and 3 in the long tests, which take six times as long.
fn few() -> usize {
    let is_long = std::env::var_os("LOWTIDE_LONG").is_some_and(|long| long == "1");
    if is_long { 3 } else { 2 }
}

/// Memory that only one side may use at a time.
#[derive(Default)]
struct Memory {
    /// Changed by read-modify-writes, which always see the latest value.
    touches: AtomicUsize,
    /// The same number, read and written without ordering: stale unless the gate orders it.
    seen: AtomicUsize,
}

impl Memory {
    fn touch(&self) {
        let touches = self.touches.fetch_add(1, Relaxed);
        assert_eq!(self.seen.load(Relaxed), touches, "two in the memory, or one saw an old value");
        self.seen.store(touches + 1, Relaxed);
    }
}

/// A clock that moves a millisecond with each pause, and lets others run meanwhile.
#[derive(Default)]
struct Looks(std::sync::atomic::AtomicU64);

impl Clock for Looks {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }

    fn pause(&self, _duration: Duration) {
        self.0.fetch_add(1, Relaxed);
        thread::yield_now();
    }

    fn within(&self, _limit: Duration, _work: Box<dyn FnOnce() + Send>) -> bool {
        unreachable!("nobody gives it work")
    }
}

/// A job of two pieces; what is retracted is done again, what is aborted is not.
fn work(gate: &Gate, memory: &Memory) {
    loop {
        let mut pass = gate.enter();
        memory.touch();
        match pass.checkpoint() {
            Step::Go => return memory.touch(),
            Step::Abort => return,
            Step::Retract => {}
        }
    }
}

/// Runs every interleaving of a gate's users. The gate is quiet afterwards.
fn gate_model(
    preemptions: Option<usize>,
    body: impl Fn(&Gate, &Arc<Memory>) + Sync + Send + 'static,
) {
    check(preemptions, move || {
        let (gate, memory) = (Gate::new(), Arc::new(Memory::default()));
        body(&gate, &memory);
        assert_eq!(gate.state(), QUIET);
    });
}

/// Starts a thread that uses the same gate and memory.
fn beside<R: 'static>(
    gate: &Gate,
    memory: &Arc<Memory>,
    work: impl FnOnce(&Gate, &Memory) -> R + 'static,
) -> JoinHandle<R> {
    let (gate, memory) = (gate.clone(), memory.clone());
    thread::spawn(move || work(&gate, &memory))
}

fn join<const N: usize>(threads: [JoinHandle<()>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

fn close(gate: &Gate, memory: &Memory, mode: Mode) {
    let closed = gate.close(mode);
    memory.touch();
    assert_eq!(closed.mode(), mode);
    closed.open();
}

fn r37_nothing_passes_while_the_gate_is_closed() {
    for mode in MODES {
        gate_model(None, move |gate, memory| {
            let worker = beside(gate, memory, work);
            let closed = gate.close(mode);
            memory.touch();
            assert!(closed.parked() <= usize::from(mode == Mode::InPlace));
            assert_eq!(gate.state().active, 0);
            memory.touch();
            closed.open();
            worker.join().unwrap();
        });
    }
}

fn two_workers_stop_for_one_closer_and_both_go_on() {
    for mode in MODES {
        gate_model(Some(few()), move |gate, _| {
            // A memory each: they need not stay away from each other.
            let memories = [(); 2].map(|()| Arc::new(Memory::default()));
            let workers = memories.clone().map(|memory| beside(gate, &memory, work));
            let closed = gate.close(mode);
            for memory in &memories {
                memory.touch();
            }
            closed.open();
            join(workers);
        });
    }
}

fn who_closes_without_waiting_or_for_a_while_has_it_alone_or_leaves_no_trace() {
    for (mode, wait) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        gate_model(None, move |gate, memory| {
            let worker = beside(gate, memory, work);
            let closed = if wait {
                gate.close_within(mode, &Looks::default(), Duration::from_millis(2))
            } else {
                gate.try_close(mode)
            };
            match closed {
                Ok(closed) => {
                    memory.touch();
                    closed.open();
                }
                Err(busy) => {
                    assert_eq!((busy.active, busy.closing), (1, false));
                    assert!(gate.state().open);
                }
            }
            worker.join().unwrap();
        });
    }
}

fn whoever_is_parked_or_held_goes_on_after_the_open_even_if_it_closes_again() {
    gate_model(Some(few()), |gate, memory| {
        let mut pass = gate.enter().into_owned();
        let parks = thread::spawn(move || pass.checkpoint());
        let enters = beside(gate, memory, |gate, _| drop(gate.enter()));
        gate.close(Mode::InPlace).open();
        // Nobody who was held before is still held behind this one.
        let closed = gate.close(Mode::Abort);
        assert_eq!(closed.parked(), 0);
        closed.open();
        assert!(matches!(parks.join().unwrap(), Step::Go | Step::Abort));
        enters.join().unwrap();
    });
}

fn two_closers_take_turns_and_work_goes_between() {
    for mode in [Mode::Retract, Mode::InPlace] {
        gate_model(Some(few()), move |gate, memory| {
            let closer = |gate: &Gate, memory: &Memory| close(gate, memory, Mode::InPlace);
            let others = [beside(gate, memory, closer), beside(gate, memory, work)];
            close(gate, memory, mode);
            join(others);
        });
    }
}

fn closers_stay_out_of_each_others_way() {
    gate_model(Some(few()), |gate, memory| {
        let others = [Mode::Abort, Mode::InPlace]
            .map(|mode| beside(gate, memory, move |gate, memory| close(gate, memory, mode)));
        close(gate, memory, Mode::Retract);
        join(others);
    });
}

fn a_pass_within_a_pass_never_waits_for_its_own_gate() {
    for mode in MODES {
        gate_model(None, move |gate, memory| {
            let worker = beside(gate, memory, |gate, memory| {
                let outer = gate.enter();
                let mut inner = gate.enter_within(&outer);
                let _told = inner.checkpoint();
                drop(outer);
                memory.touch();
            });
            let closed = gate.close(mode);
            memory.touch();
            assert_eq!((closed.parked(), gate.state().active), (0, 0));
            closed.open();
            worker.join().unwrap();
        });
    }
}

fn work_finds_memory_awake_and_one_wakes_it_for_all() {
    gate_model(Some(few()), |gate, memory| {
        // Loads and stores without ordering; the gate has to order them.
        let is_awake = Arc::new(AtomicBool::new(true));
        let wakes = Arc::new(AtomicUsize::new(0));
        let workers = [(); 2].map(|()| {
            let (is_awake, wakes) = (is_awake.clone(), wakes.clone());
            beside(gate, memory, move |gate, _| {
                let wake = || {
                    wakes.fetch_add(1, Relaxed);
                    is_awake.store(true, Relaxed);
                    Ok::<(), ()>(())
                };
                let pass = gate.enter_awake(wake).unwrap();
                assert!(is_awake.load(Relaxed), "work began while its memory slept");
                drop(pass);
            })
        });
        let closed = gate.close(Mode::Drain);
        closed.mark_asleep();
        is_awake.store(false, Relaxed);
        closed.open();
        join(workers);
        assert!(wakes.load(Relaxed) <= 1, "woken twice");
    });
}

fn memory_that_could_not_be_woken_is_woken_by_the_next() {
    gate_model(None, |gate, memory| {
        let wakes = AtomicUsize::new(0);
        gate.close(Mode::Drain).mark_asleep();
        let fails = beside(gate, memory, |gate, _| gate.enter_awake(|| Err(())).is_err());
        let wakes_it = || {
            wakes.fetch_add(1, Relaxed);
            Ok::<(), ()>(())
        };
        drop(gate.enter_awake(wakes_it).unwrap());
        fails.join().unwrap();
        assert_eq!(wakes.load(Relaxed), 1);
    });
}

fn idle() -> Idle {
    let options = IdleOptions { enabled: true, after: Duration::ZERO, ..IdleOptions::default() };
    Idle::new(options, std::sync::Arc::new(Looks::default()))
}

/// Starts a thread that uses the same policy.
fn with_idle<R: 'static>(idle: &Idle, work: impl FnOnce(&Idle) -> R + 'static) -> JoinHandle<R> {
    let idle = idle.clone();
    thread::spawn(move || work(&idle))
}

fn r26_no_ticket_is_given_while_a_task_is_active() {
    check(None, || {
        let (idle, running) = (idle(), Arc::new(AtomicUsize::new(0)));
        // One has finished before, so that only the active one is in the way.
        drop(idle.task());
        let worker = {
            let (idle, running) = (idle.clone(), running.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let task = idle.task();
                    running.fetch_add(1, Relaxed);
                    running.fetch_sub(1, Relaxed);
                    drop(task);
                }
            })
        };
        let looked_at = running.clone();
        let asked = move || looked_at.fetch_add(0, Relaxed) < 2;
        if let Decision::Release(ticket) = idle.due(asked) {
            // A task that runs now began before the ticket, or the ticket knows of it.
            let active = running.fetch_add(0, Relaxed);
            assert!(active == 0 || ticket.is_stale());
            ticket.done();
        }
        worker.join().unwrap();
        drop(idle.task());
        assert!(matches!(idle.due(|| true), Decision::Release(_)));
    });
}

fn there_are_never_two_claims() {
    check(None, || {
        let (idle, memory) = (idle(), Arc::new(Memory::default()));
        drop(idle.task());
        let claims = |idle: &Idle, memory: &Memory, then_task: bool| match idle.due(|| true) {
            Decision::Release(ticket) => {
                memory.touch();
                if then_task {
                    // It makes the next release due while this one is at work.
                    drop(idle.task());
                }
                memory.touch();
                ticket.done();
                1
            }
            _ => 0,
        };
        let other = {
            let (idle, memory) = (idle.clone(), memory.clone());
            thread::spawn(move || claims(&idle, &memory, true))
        };
        let mine = claims(&idle, &memory, false);
        let given = mine + other.join().unwrap();
        assert!(given >= 1, "one task had finished, and nobody got it");
    });
}

fn a_task_that_finished_is_never_forgotten() {
    check(None, || {
        let idle = idle();
        drop(idle.task());
        let worker = with_idle(&idle, |idle| drop(idle.task()));
        let releases = with_idle(&idle, |idle| match idle.due(|| true) {
            Decision::Release(ticket) => {
                let stale = ticket.is_stale();
                ticket.done();
                Some(stale)
            }
            _ => None,
        });
        worker.join().unwrap();
        let released = releases.join().unwrap();
        // Due again unless the release came after both.
        let due = matches!(idle.due(|| true), Decision::Release(_));
        assert!(due || released == Some(false));
    });
}

fn a_ticket_that_is_put_back_loses_no_task() {
    check(None, || {
        let idle = idle();
        drop(idle.task());
        let worker = with_idle(&idle, |idle| drop(idle.task()));
        if let Decision::Release(ticket) = idle.due(|| true) {
            ticket.put_back();
        }
        worker.join().unwrap();
        assert!(matches!(idle.due(|| true), Decision::Release(_)));
    });
}
