//! The gate: work passes through it, a pause or a release closes it.
//!
//! A release that frees, moves or measures memory while somebody works with it proves nothing and
//! breaks things. So work holds a [`Pass`], and whoever wants the device for itself holds
//! [`Closed`]; the two never live at the same time, except for work that is parked at a
//! [checkpoint](Pass::checkpoint) and touches nothing.
//!
//! An open is an open: everybody who was held when the gate opened goes through, even where it is
//! closed again before they woke up. Opening counts them in, so nobody starves behind a chain of
//! closers, and the next closer waits for them.
//!
//! There is no clock in here. [`Gate::close`] sleeps until the last work stops, and
//! [`Gate::close_within`] asks again and again in the time of a clock that it is given.

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use serde::Serialize;

use crate::Clock;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What running work is told when the gate closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// To end.
    Abort,
    /// To go back to its queue.
    Retract,
    /// To stop where it is, and to go on later.
    InPlace,
    /// Nothing: it ends by itself. A release closes like this.
    Drain,
}

/// What work does after a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "work that does not stop when it is told to keeps the gate from closing"]
pub enum Step {
    /// It goes on.
    Go,
    /// It ends, and drops its pass.
    Abort,
    /// It goes back to its queue, and drops its pass.
    Retract,
}

/// The gate was not closed, because work went on; it is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Busy {
    /// Passes that were at work.
    pub active: usize,
    /// Whether somebody else had it closed, or was about to close it.
    pub closing: bool,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.closing {
            f.write_str("somebody else is closing the gate or has closed it")
        } else {
            write!(f, "work is still running: {}", self.active)
        }
    }
}

impl std::error::Error for Busy {}

/// How a gate stands, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GateState {
    /// Whether work may pass. Where it may not and some is active, the gate is still closing.
    pub open: bool,
    /// Passes at work.
    pub active: usize,
    /// Passes that stopped at a checkpoint until the gate opens.
    pub parked: usize,
    /// Who wants to enter and is held.
    pub waiting: usize,
}

/// What is known under the lock.
#[derive(Debug, Default)]
struct Books {
    /// How it is being closed, or is closed.
    closing: Option<Mode>,
    active: usize,
    parked: usize,
    waiting: usize,
    /// Counts how often it was opened: who is held waits for the next.
    opened: u64,
}

#[derive(Debug, Default)]
struct Inner {
    books: Mutex<Books>,
    /// The gate opened: for who is held, and for who wants to close it next.
    opened: Condvar,
    /// The last active pass ended or parked: for the one who closes.
    stopped: Condvar,
}

/// Work passes through it, a pause or a release closes it. Clones are the same gate.
///
/// ```
/// use lowtide_release::{Gate, Mode, Step};
///
/// let gate = Gate::new();
/// let mut pass = gate.enter();
/// assert!(gate.try_close(Mode::InPlace).is_err(), "work is running");
/// assert_eq!(pass.checkpoint(), Step::Go);
/// drop(pass);
///
/// let closed = gate.close(Mode::InPlace);
/// assert!(gate.try_enter().is_none());
/// closed.open();
/// assert!(gate.try_enter().is_some());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Gate {
    inner: Arc<Inner>,
}

/// The first wait of [`Gate::close_within`], and how long its waits become: work stops within
/// milliseconds or takes long.
const LOOK_FIRST: Duration = Duration::from_micros(200);
const LOOK_MOST: Duration = Duration::from_millis(10);

impl Gate {
    /// A gate that is open.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Begins work; waits while the gate is closing or closed.
    ///
    /// Work that has a pass already must not enter again, nor must whoever holds [`Closed`]: both
    /// would wait for themselves.
    pub fn enter(&self) -> Pass {
        let mut books = self.books();
        if books.closing.is_some() {
            books.waiting += 1;
            // Whoever opens counts it as active.
            self.held(books);
        } else {
            books.active += 1;
        }
        Pass { gate: self.clone() }
    }

    /// Begins work where the gate is open.
    pub fn try_enter(&self) -> Option<Pass> {
        let mut books = self.books();
        if books.closing.is_some() {
            return None;
        }
        books.active += 1;
        Some(Pass { gate: self.clone() })
    }

    /// Closes the gate: nobody enters any more, and what is at work is told to stop as `mode` says.
    /// Waits until it has, however long that takes; before that, until nobody else has it closed.
    ///
    /// A thread that has a pass itself must not call this: it would wait for itself. It can use
    /// [`Gate::close_within`], which says [`Busy`] then.
    pub fn close(&self, mode: Mode) -> Closed {
        let mut books = self.books();
        while books.closing.is_some() {
            books = wait(&self.inner.opened, books);
        }
        books.closing = Some(mode);
        while books.active > 0 {
            books = wait(&self.inner.stopped, books);
        }
        drop(books);
        Closed { gate: self.clone(), mode }
    }

    /// Closes the gate like [`Gate::close`], and waits no longer than `limit`.
    ///
    /// # Errors
    /// [`Busy`] where work went on or somebody else had it closed for so long. It is open again
    /// then, or as the other has it, and nobody is held; work that was told to end has ended.
    pub fn close_within(
        &self,
        mode: Mode,
        clock: &dyn Clock,
        limit: Duration,
    ) -> Result<Closed, Busy> {
        let until = clock.now().saturating_add(limit);
        let mut look = LOOK_FIRST;
        // It opens if this ends early, by a panic of the clock too.
        let mut mine: Option<Closed> = None;
        loop {
            let mut books = self.books();
            let active = books.active;
            let others = mine.is_none() && books.closing.is_some();
            if mine.is_none() && !others {
                books.closing = Some(mode);
                mine = Some(Closed { gate: self.clone(), mode });
            }
            drop(books);
            if active == 0
                && let Some(closed) = mine.take()
            {
                return Ok(closed);
            }
            let left = until.saturating_sub(clock.now());
            if left.is_zero() || clock.is_interrupted() {
                return Err(Busy { active, closing: others });
            }
            clock.pause(look.min(left));
            look = (look * 2).min(LOOK_MOST);
        }
    }

    /// Closes the gate where that needs no waiting.
    ///
    /// # Errors
    /// [`Busy`] where work is running or somebody else has it closed; nobody noticed anything then.
    pub fn try_close(&self, mode: Mode) -> Result<Closed, Busy> {
        let mut books = self.books();
        let (active, closing) = (books.active, books.closing.is_some());
        if active > 0 || closing {
            return Err(Busy { active, closing });
        }
        books.closing = Some(mode);
        Ok(Closed { gate: self.clone(), mode })
    }

    /// How it stands right now.
    pub fn state(&self) -> GateState {
        let books = self.books();
        GateState {
            open: books.closing.is_none(),
            active: books.active,
            parked: books.parked,
            waiting: books.waiting,
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.inner.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next open.
    fn held(&self, mut books: MutexGuard<'_, Books>) {
        let before = books.opened;
        while books.opened == before {
            books = wait(&self.inner.opened, books);
        }
    }

    /// One pass less is at work. If it was the last, whoever closes is told.
    fn stops(&self, books: &mut Books) {
        books.active -= 1;
        if books.active == 0 && books.closing.is_some() {
            self.inner.stopped.notify_one();
        }
    }
}

fn wait<'a>(changed: &Condvar, books: MutexGuard<'a, Books>) -> MutexGuard<'a, Books> {
    changed.wait(books).unwrap_or_else(PoisonError::into_inner)
}

/// Work that passes; dropping it ends the work.
#[derive(Debug)]
#[must_use = "dropping it ends the work"]
pub struct Pass {
    gate: Gate,
}

impl Pass {
    /// Where work can stop, it asks here whether it should. With [`Mode::InPlace`] it stops in here
    /// until the gate opens.
    pub fn checkpoint(&mut self) -> Step {
        let mut books = self.gate.books();
        match books.closing {
            None | Some(Mode::Drain) => {}
            Some(Mode::Abort) => return Step::Abort,
            Some(Mode::Retract) => return Step::Retract,
            Some(Mode::InPlace) => {
                books.parked += 1;
                self.gate.stops(&mut books);
                // Whoever opens counts it as active.
                self.gate.held(books);
            }
        }
        Step::Go
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.stops(&mut self.gate.books());
    }
}

/// While this lives nothing passes; dropping it opens the gate.
#[derive(Debug)]
#[must_use = "dropping it opens the gate"]
pub struct Closed {
    gate: Gate,
    mode: Mode,
}

impl Closed {
    /// Opens the gate. Whoever was held goes on.
    pub fn open(self) {
        drop(self);
    }

    /// How it was closed.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Work that stopped where it was and goes on when the gate opens.
    pub fn parked(&self) -> usize {
        self.gate.books().parked
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        let mut books = self.gate.books();
        books.closing = None;
        books.opened += 1;
        books.active += books.parked + books.waiting;
        (books.parked, books.waiting) = (0, 0);
        drop(books);
        self.gate.inner.opened.notify_all();
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;
    use crate::ManualClock;

    const MODES: [Mode; 4] = [Mode::Abort, Mode::Retract, Mode::InPlace, Mode::Drain];

    fn state(open: bool, active: usize, parked: usize, waiting: usize) -> GateState {
        GateState { open, active, parked, waiting }
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
                let worker = scope.spawn(|| gate.enter());
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
            let mut pass = gate.enter();
            let worker = scope.spawn(move || {
                until_closing(&pass.gate);
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
            assert_eq!(gate.try_close(Mode::Abort).unwrap_err(), Busy { active: 0, closing: true });
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
            assert_eq!(gate.try_close(mode).unwrap_err(), Busy { active: 1, closing: false });
            assert_eq!((gate.state(), pass.checkpoint()), (state(true, 1, 0, 0), Step::Go));
        }
        drop(pass);
        assert_eq!(gate.try_close(Mode::Abort).unwrap().mode(), Mode::Abort);
        assert!(gate.state().open);
    }

    #[test]
    fn waiting_ends_at_the_limit_and_leaves_the_gate_open() {
        let (gate, clock) = (Gate::new(), ManualClock::default());
        // This thread would wait for itself.
        let mut pass = gate.enter();
        for mode in MODES {
            let limit = Duration::from_secs(1);
            let over = clock.now() + limit;
            let busy = gate.close_within(mode, &clock, limit).unwrap_err();
            assert_eq!(busy, Busy { active: 1, closing: false });
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
        let stubborn = gate.enter();
        thread::scope(|scope| {
            let mut pass = gate.enter();
            let (gate, until_held) = (&gate, state(false, 1, 1, 1));
            let parks = scope.spawn(move || {
                until_closing(gate);
                pass.checkpoint()
            });
            let enters = scope.spawn(|| {
                until_closing(gate);
                drop(gate.enter());
            });
            let clock =
                During { clock: ManualClock::default(), pause: |_| until(gate, until_held) };
            let limit = Duration::from_millis(1);
            let busy = gate.close_within(Mode::InPlace, &clock, limit).unwrap_err();
            assert_eq!(busy, Busy { active: 1, closing: false });
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
        assert_eq!(busy, Busy { active: 0, closing: true });
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
        let pass = gate.enter();
        assert!(gate.close_within(Mode::Abort, &clock, Duration::from_millis(100)).is_err());
        drop(pass);
        let looks = looks.into_inner().unwrap();
        assert_eq!((looks[0], looks[1]), (LOOK_FIRST, LOOK_FIRST * 2));
        assert_eq!(looks.iter().max(), Some(&LOOK_MOST));
        assert_eq!(looks.iter().sum::<Duration>(), Duration::from_millis(100));
    }

    #[test]
    fn panics_leave_nothing_closed_and_nobody_counted() {
        let gate = Gate::new();
        let pass = gate.enter();
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
    fn modes_and_states_are_plain_data() {
        let text = |value| serde_json::to_string(&value).unwrap();
        assert_eq!(MODES.map(text), ["\"abort\"", "\"retract\"", "\"in_place\"", "\"drain\""]);
        let gate = Gate::new();
        let _pass = gate.enter();
        let state = serde_json::to_value(gate.state()).unwrap();
        assert_eq!(
            state,
            serde_json::json!({"open": true, "active": 1, "parked": 0, "waiting": 0})
        );
        let busy = gate.try_close(Mode::Abort).unwrap_err();
        assert_eq!(busy.to_string(), "work is still running: 1");
    }
}
