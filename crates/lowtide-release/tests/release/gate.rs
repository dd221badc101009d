//! The gate by its promises, one thread or a few at a time. The models of `lowtide-testing` try every order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use lowtide_release::{Busy, Clock, Gate, GateState, ManualClock, Mode, Step};

const MODES: [Mode; 4] = [Mode::Abort, Mode::Retract, Mode::InPlace, Mode::Drain];

fn state(open: bool, active: usize, parked: usize, waiting: usize) -> GateState {
    GateState { open, active, parked, waiting }
}

fn busy(active: usize, closing: bool, own: bool) -> Busy {
    let mut busy = Busy::default();
    (busy.active, busy.closing, busy.own) = (active, closing, own);
    busy
}

/// Lets other threads come to where they wait.
fn until(gate: &Gate, wanted: GateState) {
    while gate.state() != wanted {
        thread::yield_now();
    }
}

fn until_closing(gate: &Gate) {
    while gate.state().open {
        thread::yield_now();
    }
}

/// A clock that does something in each pause.
struct During<F> {
    clock: ManualClock,
    pause: F,
}

impl<F: Fn(Duration) + Send + Sync> Clock for During<F> {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn pause(&self, duration: Duration) {
        self.clock.advance(duration);
        (self.pause)(duration);
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        self.clock.within(limit, work)
    }
}

#[test]
fn an_open_gate_lets_everybody_through_and_counts_them() {
    let gate = Gate::new();
    let (mut one, two) = (gate.enter(), gate.try_enter().unwrap());
    assert_eq!(one.checkpoint(), Step::Go);
    assert_eq!(gate.state(), state(true, 2, 0, 0));
    drop((one, two));
    assert_eq!(gate.state(), state(true, 0, 0, 0));
}

#[test]
fn a_closed_gate_lets_nobody_through_until_it_opens() {
    for mode in MODES {
        let gate = Gate::new();
        let closed = gate.close(mode);
        assert_eq!((closed.mode(), closed.parked()), (mode, 0));
        assert!(gate.try_enter().is_none());
        assert_eq!(gate.state(), state(false, 0, 0, 0));
        thread::scope(|scope| {
            let worker = scope.spawn(|| gate.enter().into_owned());
            until(&gate, state(false, 0, 0, 1));
            closed.open();
            // It is counted before it wakes: the next closer has to wait for it.
            assert_eq!(gate.state().active, 1);
            drop(worker.join().unwrap());
        });
        assert_eq!(gate.state(), state(true, 0, 0, 0));
    }
}

#[test]
fn r37_in_place_parks_work_where_it_is_and_lets_it_go_on() {
    let gate = Gate::new();
    thread::scope(|scope| {
        let (gate, mut pass) = (&gate, gate.enter().into_owned());
        let worker = scope.spawn(move || {
            until_closing(gate);
            (pass.checkpoint(), pass)
        });
        let closed = gate.close(Mode::InPlace);
        assert_eq!((closed.parked(), gate.state()), (1, state(false, 0, 1, 0)));
        closed.open();
        let (step, pass) = worker.join().unwrap();
        assert_eq!((step, gate.state()), (Step::Go, state(true, 1, 0, 0)));
        drop(pass);
    });
}

#[test]
fn r37_abort_and_retract_tell_work_at_once_drain_does_not_and_all_wait_for_its_end() {
    let steps =
        [(Mode::Abort, Step::Abort), (Mode::Retract, Step::Retract), (Mode::Drain, Step::Go)];
    for (mode, step) in steps {
        let gate = Gate::new();
        let mut pass = gate.enter();
        thread::scope(|scope| {
            let closer = scope.spawn(|| gate.close(mode));
            until(&gate, state(false, 1, 0, 0));
            // It is told as often as it asks, and the gate is not closed before it is gone.
            assert_eq!((pass.checkpoint(), pass.checkpoint()), (step, step));
            assert_eq!(gate.state(), state(false, 1, 0, 0));
            drop(pass);
            assert_eq!(closer.join().unwrap().parked(), 0);
        });
        assert_eq!(gate.state(), state(true, 0, 0, 0));
    }
}

#[test]
fn a_second_closer_waits_for_the_first_and_for_whom_it_let_go_on() {
    let gate = Gate::new();
    let first = gate.close(Mode::InPlace);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut pass = gate.enter();
            while pass.checkpoint() == Step::Go {}
        });
        until(&gate, state(false, 0, 0, 1));
        let second = scope.spawn(|| gate.close(Mode::Abort));
        assert_eq!(gate.try_close(Mode::Abort).unwrap_err(), busy(0, true, false));
        first.open();
        let second = second.join().unwrap();
        worker.join().unwrap();
        assert_eq!((second.mode(), gate.state()), (Mode::Abort, state(false, 0, 0, 0)));
    });
}

#[test]
fn who_does_not_wait_is_refused_where_work_runs_and_leaves_no_trace() {
    let gate = Gate::new();
    let mut pass = gate.enter();
    for mode in MODES {
        assert_eq!(gate.try_close(mode).unwrap_err(), busy(1, false, true));
        assert_eq!((gate.state(), pass.checkpoint()), (state(true, 1, 0, 0), Step::Go));
    }
    drop(pass);
    assert_eq!(gate.try_close(Mode::Abort).unwrap().mode(), Mode::Abort);
    assert!(gate.state().open);
}

#[test]
fn waiting_ends_at_the_limit_and_leaves_the_gate_open() {
    let (gate, clock) = (Gate::new(), ManualClock::default());
    let mut pass = gate.enter().into_owned();
    for mode in MODES {
        let limit = Duration::from_secs(1);
        let over = clock.now() + limit;
        let busy = gate.close_within(mode, &clock, limit).unwrap_err();
        assert_eq!((busy.active, busy.closing, busy.own), (1, false, false));
        assert_eq!(clock.now(), over);
        assert_eq!((gate.state(), pass.checkpoint()), (state(true, 1, 0, 0), Step::Go));
    }
    drop(pass);
    // Where nothing runs, no time passes.
    let began = clock.now();
    let closed = gate.close_within(Mode::Abort, &clock, Duration::ZERO).unwrap();
    assert_eq!((clock.now(), closed.mode()), (began, Mode::Abort));
}

#[test]
fn who_was_held_by_an_attempt_goes_on_when_it_is_given_up() {
    let gate = Gate::new();
    let stubborn = gate.enter().into_owned();
    thread::scope(|scope| {
        let mut pass = gate.enter().into_owned();
        let (gate, until_held) = (&gate, state(false, 1, 1, 1));
        let parks = scope.spawn(move || {
            until_closing(gate);
            pass.checkpoint()
        });
        let enters = scope.spawn(|| {
            until_closing(gate);
            drop(gate.enter());
        });
        let clock = During { clock: ManualClock::default(), pause: |_| until(gate, until_held) };
        let limit = Duration::from_millis(1);
        let busy = gate.close_within(Mode::InPlace, &clock, limit).unwrap_err();
        assert_eq!((busy.active, busy.closing, busy.own), (1, false, false));
        assert_eq!(parks.join().unwrap(), Step::Go);
        enters.join().unwrap();
        assert_eq!(gate.state(), state(true, 1, 0, 0));
    });
    drop(stubborn);
}

#[test]
fn waiting_for_another_closer_is_bounded_too_and_leaves_it_its_gate() {
    let (gate, clock) = (Gate::new(), ManualClock::default());
    let first = gate.close(Mode::Retract);
    let busy = gate.close_within(Mode::Abort, &clock, Duration::from_secs(1)).unwrap_err();
    assert_eq!((busy.active, busy.closing, busy.own), (0, true, false));
    assert_eq!((gate.state().open, first.mode()), (false, Mode::Retract));
    // It gets its turn where the first opens in time.
    let first = Mutex::new(Some(first));
    let open = |_| drop(first.lock().unwrap().take());
    let clock = During { clock, pause: open };
    let closed = gate.close_within(Mode::Abort, &clock, Duration::from_secs(1)).unwrap();
    assert_eq!((closed.mode(), gate.state().open), (Mode::Abort, false));
}

#[test]
fn looks_are_short_first_and_never_longer_than_the_most() {
    let (gate, looks) = (Gate::new(), Mutex::new(Vec::new()));
    let pause = |duration| looks.lock().unwrap().push(duration);
    let clock = During { clock: ManualClock::default(), pause };
    let pass = gate.enter().into_owned();
    assert!(gate.close_within(Mode::Abort, &clock, Duration::from_millis(100)).is_err());
    drop(pass);
    let looks = looks.into_inner().unwrap();
    assert_eq!((looks[0], looks[1]), (Duration::from_micros(200), Duration::from_micros(400)));
    assert_eq!(looks.iter().max(), Some(&Duration::from_millis(10)));
    assert_eq!(looks.iter().sum::<Duration>(), Duration::from_millis(100));
}

#[test]
fn panics_leave_nothing_closed_and_nobody_counted() {
    let gate = Gate::new();
    let pass = gate.enter().into_owned();
    let clock = During { clock: ManualClock::default(), pause: |_| panic!("the clock broke") };
    let closing = AssertUnwindSafe(|| {
        drop(gate.close_within(Mode::Abort, &clock, Duration::from_secs(1)));
    });
    assert!(catch_unwind(closing).is_err());
    assert_eq!(gate.state(), state(true, 1, 0, 0));
    let working = AssertUnwindSafe(move || {
        let _pass = pass;
        panic!("the work broke")
    });
    assert!(catch_unwind(working).is_err());
    assert_eq!(gate.state(), state(true, 0, 0, 0));
}

#[test]
fn a_pass_within_a_pass_never_waits_and_the_closer_waits_for_both() {
    let gate = Gate::new();
    let outer = gate.enter();
    thread::scope(|scope| {
        let closer = scope.spawn(|| gate.close(Mode::Drain));
        until_closing(&gate);
        assert!(gate.try_enter().is_none(), "plain work has to wait");
        let inner = gate.enter_within(&outer);
        let innermost = gate.enter_within(&inner).into_owned();
        assert_eq!(gate.state(), state(false, 3, 0, 0));
        drop(outer);
        drop(inner);
        assert_eq!(gate.state(), state(false, 1, 0, 0), "it may outlive the outer pass");
        assert!(!closer.is_finished());
        drop(innermost);
        assert_eq!(closer.join().unwrap().mode(), Mode::Drain);
    });
    assert_eq!(gate.state(), state(true, 0, 0, 0));
}

#[test]
fn a_nested_pass_is_told_to_end_and_leaves_parking_to_the_outer_one() {
    let steps = [
        (Mode::Abort, Step::Abort),
        (Mode::Retract, Step::Retract),
        (Mode::InPlace, Step::Go),
        (Mode::Drain, Step::Go),
    ];
    for (mode, step) in steps {
        let gate = Gate::new();
        let mut outer = gate.enter();
        thread::scope(|scope| {
            let closer = scope.spawn(|| gate.close(mode));
            until_closing(&gate);
            let mut inner = gate.enter_within(&outer);
            assert_eq!(inner.checkpoint(), step);
            assert_eq!(inner.into_owned().checkpoint(), step, "it stays a nested one");
            if mode == Mode::InPlace {
                let opener = scope.spawn(|| closer.join().unwrap().open());
                assert_eq!(outer.checkpoint(), Step::Go, "parked, and let go on");
                opener.join().unwrap();
            }
            drop(outer);
        });
        assert_eq!(gate.state(), state(true, 0, 0, 0));
    }
}

#[test]
#[should_panic(expected = "a pass of another gate")]
fn a_pass_of_another_gate_does_not_count_as_the_outer_one() {
    let (gate, other) = (Gate::new(), Gate::new());
    let outer = other.enter();
    let _inner = gate.enter_within(&outer);
}

#[test]
fn work_wakes_memory_once_after_it_was_put_to_sleep() {
    let (gate, calls) = (Gate::new(), Mutex::new(0));
    let wake = || {
        *calls.lock().unwrap() += 1;
        Ok::<(), ()>(())
    };
    let called = |wanted| assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), wanted);
    drop(gate.enter_awake(wake).unwrap());
    called(0);
    gate.close(Mode::Drain).mark_asleep();
    drop((gate.enter(), gate.try_enter()));
    called(0);
    assert_eq!(gate.enter_awake(|| Err("no room")).unwrap_err(), "no room");
    assert_eq!(gate.state(), state(true, 0, 0, 0), "the work did not begin");
    drop((gate.enter_awake(wake).unwrap(), gate.enter_awake(wake).unwrap()));
    called(1);
    // Work that waited at the gate wakes it too.
    let closed = gate.close(Mode::Drain);
    closed.mark_asleep();
    thread::scope(|scope| {
        let worker = scope.spawn(|| drop(gate.enter_awake(wake).unwrap()));
        until(&gate, state(false, 0, 0, 1));
        closed.open();
        worker.join().unwrap();
    });
    called(1);
}

#[test]
fn modes_and_states_are_plain_data() {
    let text = |value| serde_json::to_string(&value).unwrap();
    assert_eq!(MODES.map(text), ["\"abort\"", "\"retract\"", "\"in_place\"", "\"drain\""]);
    let gate = Gate::new();
    let _pass = gate.enter().into_owned();
    let state = serde_json::to_value(gate.state()).unwrap();
    assert_eq!(state, serde_json::json!({"open": true, "active": 1, "parked": 0, "waiting": 0}));
    let refusal = gate.try_close(Mode::Abort).unwrap_err().to_string();
    assert!(refusal.starts_with("1 pass is still active, held since "), "{refusal}");
    assert_eq!(busy(2, false, false).to_string(), "2 passes are still active");
}

#[test]
fn a_thread_that_would_wait_for_itself_is_told_at_once() {
    let (gate, clock) = (Gate::new(), ManualClock::default());
    let limit = Duration::from_secs(60);
    let outer = gate.enter();
    let inner = gate.enter_within(&outer);
    drop(outer);
    let refusal = gate.close_within(Mode::Drain, &clock, limit).unwrap_err();
    assert_eq!((&refusal, clock.now()), (&busy(1, false, true), Duration::ZERO));
    assert_eq!(refusal.to_string(), "this thread holds a pass itself: it would wait for itself");
    assert!(catch_unwind(AssertUnwindSafe(|| gate.close(Mode::Drain))).is_err());
    assert!(gate.state().open);
    // Another thread may well wait for this one, and this one for what it gave away.
    let owned = inner.into_owned();
    let busy = gate.close_within(Mode::Drain, &clock, limit).unwrap_err();
    assert_eq!((busy.own, clock.now()), (false, limit));
    drop(owned);
    drop(gate.close(Mode::Drain));
    // Another gate has nothing to do with it.
    let (other, _pass) = (Gate::new(), gate.enter());
    drop(other.close(Mode::Drain));
}
