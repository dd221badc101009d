//! The gate itself: how work enters and how a closer closes.

use std::time::Duration;

use super::core::{Core, Entered, Inside};
use super::guards::{Closed, Outer, Pass};
use super::report::{Busy, GateState, Mode};
use crate::clock::Clock;
use crate::fork;
use crate::sync::Arc;

/// A gate that work passes and that a pause or a release closes. Clones are the same gate.
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
///
/// # Forks
///
/// A gate that a forked child inherited belongs to the parent, whose threads may hold its lock for ever.
/// It never waits in the child: closing it is refused, [`Gate::try_enter`] returns `None`, and a pass
/// that is taken all the same counts for nothing and is told to stop at its first checkpoint. That is
/// sound, because no release of the child can close this gate. A new gate works.
///
/// # Cost
///
/// Entering an open gate is one atomic read-modify-write and a note in a list of this thread, leaving
/// it is the same, and a checkpoint is one load. None of them takes a mutex; waiting, closing and
/// [owned](Pass::into_owned) passes do. [`Gate::enter_awake`] learns from the same word whether memory has
/// to be woken first.
///
/// `cargo run --release -p lowtide-release --example pass_cost` prints what each costs on your machine,
/// beside a mutex that is locked and unlocked twice.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    core: Arc<Core>,
}

/// The first and the longest pause of [`Gate::close_within`]: work stops within milliseconds or takes
/// long.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

impl Gate {
    /// Creates an open gate.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Begins work. Waits while the gate is closing or closed.
    ///
    /// A thread that holds a [`Pass`] of this gate does not wait while it is closing: it is given a pass
    /// as by [`Gate::enter_within`]. Code that has an [`OwnedPass`](super::OwnedPass) must call that
    /// itself: it could wait here for a closer that waits for it, until the limit of a
    /// [`close_within`](Gate::close_within). A caller that holds [`Closed`] must not call this: it would
    /// wait until another thread drops that.
    ///
    /// A rung, a hook or a flush of the release or pause that has the gate closed does not wait: it is
    /// given a pass that counts for nothing, because the closer waits for it anyway. Nor does a forked
    /// child that inherited the gate.
    pub fn enter(&self) -> Pass<'_> {
        match self.core.enter() {
            Entered::Counted(_) => Pass::counted(&self.core),
            Entered::Nested => Pass::nested(&self.core),
            Entered::Inside => Pass::inside(&self.core),
        }
    }

    /// Marks that this thread runs a part of the release or pause that has this gate closed.
    pub(crate) fn inside(&self) -> Inside {
        self.core.inside()
    }

    /// Returns whether this thread runs a part of the release or pause that has this gate closed.
    pub(crate) fn is_inside(&self) -> bool {
        self.core.is_inside()
    }

    /// Returns whether the gate belongs to the parent process: a forked child inherited it.
    pub fn is_inherited(&self) -> bool {
        self.core.is_inherited()
    }

    /// Begins work if the gate is open; never waits.
    pub fn try_enter(&self) -> Option<Pass<'_>> {
        if self.is_inherited() {
            return None;
        }
        self.core.word.enter().map(|_| Pass::counted(&self.core))
    }

    /// Begins a part of work that already has a pass. Never waits, even while the gate is closing:
    /// the closer waits for both passes. The new pass may outlive the outer one.
    ///
    /// ```
    /// use lowtide_release::Gate;
    ///
    /// let gate = Gate::new();
    /// let request = gate.enter();
    /// let upload = gate.enter_within(&request).into_owned();
    /// std::thread::spawn(move || drop(upload)).join().unwrap();
    /// ```
    ///
    /// # Panics
    /// If `outer` is a pass of another gate.
    pub fn enter_within<'a>(&self, outer: impl Into<Outer<'a>>) -> Pass<'_> {
        Pass::within(&self.core, outer.into())
    }

    /// Begins work like [`Gate::enter`], and calls `wake` first if memory may be asleep (see
    /// [`Closed::mark_asleep`]). If several callers come at once, one calls `wake` and the others
    /// wait for it. While memory is awake this costs as much as `enter`.
    ///
    /// `wake` runs within the pass. If it enters the gate itself, on the same thread, that wakes nothing.
    ///
    /// # Errors
    /// What `wake` returned. The work has not begun then, and the next caller tries again.
    pub fn enter_awake<E>(&self, wake: impl FnOnce() -> Result<(), E>) -> Result<Pass<'_>, E> {
        match self.core.enter() {
            Entered::Counted(seen) if seen.is_asleep() => {
                self.wake_within(Pass::counted(&self.core), wake)
            }
            Entered::Counted(_) => Ok(Pass::counted(&self.core)),
            Entered::Nested => self.wake_within(Pass::nested(&self.core), wake),
            // There is nothing of the child's to wake.
            Entered::Inside if self.is_inherited() => Ok(Pass::inside(&self.core)),
            // Work that comes after the release has to wake memory all the same.
            Entered::Inside => wake().map(|()| Pass::inside(&self.core)),
        }
    }

    #[cold]
    fn wake_within<'a, E>(
        &self,
        pass: Pass<'a>,
        wake: impl FnOnce() -> Result<(), E>,
    ) -> Result<Pass<'a>, E> {
        self.core.wake(wake)?;
        Ok(pass)
    }

    /// Closes the gate: keeps new work out, tells active work to stop as `mode` says, and waits until
    /// it has. If another caller has the gate closed, waits for that first.
    ///
    /// A thread that has a pass must not call this, because it would wait for itself. It can call
    /// [`Gate::close_within`], which returns [`Busy`] then. In a rung, a hook or a flush of the release
    /// or pause that has the gate closed, the gate stays closed as long as that keeps it so.
    ///
    /// # Panics
    /// If this thread holds a pass of this gate that was not made [owned](Pass::into_owned), and in a
    /// forked child that inherited the gate.
    pub fn close(&self, mode: Mode) -> Closed {
        assert!(!self.is_inherited(), "{}", fork::refusal("gate"));
        if self.core.is_inside() {
            return Closed::inside(&self.core, mode);
        }
        assert!(!self.core.is_held_here(), "{}", self.own_busy());
        self.core.begin_closing(mode);
        let closed = Closed::new(&self.core, mode);
        self.core.wait_until_quiet();
        closed
    }

    /// Closes the gate like [`Gate::close`], but waits no longer than `limit`.
    ///
    /// # Errors
    /// [`Busy`] if work was still active, or another caller still had the gate, at the limit. The gate
    /// is then as it was before, and no work is held. Work that was told to end has ended. At once if
    /// this thread would wait for itself, or is in a forked child that inherited the gate.
    pub fn close_within(
        &self,
        mode: Mode,
        clock: &dyn Clock,
        limit: Duration,
    ) -> Result<Closed, Busy> {
        if self.is_inherited() {
            return Err(Busy::inherited());
        }
        if let Some(busy) = self.waits_for_itself() {
            return Err(busy);
        }
        let until = clock.now().saturating_add(limit);
        let mut pause = FIRST_PAUSE;
        // Dropped, and the gate open again, if this ends early; also if the clock panics.
        let mut mine: Option<Closed> = None;
        loop {
            if mine.is_none() && self.core.try_begin_closing(mode) {
                mine = Some(Closed::new(&self.core, mode));
            }
            let active = self.core.word.read().active();
            if active == 0
                && let Some(closed) = mine.take()
            {
                return Ok(closed);
            }
            let left = until.saturating_sub(clock.now());
            if left.is_zero() || clock.is_interrupted() {
                let (since, kept_by) = (self.core.holders.places(), self.core.holders.kept_by());
                let closing = mine.is_none();
                return Err(Busy { active, closing, since, kept_by, ..Busy::default() });
            }
            clock.pause(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Closes the gate if that needs no waiting.
    ///
    /// # Errors
    /// [`Busy`] if work is active or another caller has the gate closed. Nothing has changed then.
    pub fn try_close(&self, mode: Mode) -> Result<Closed, Busy> {
        if self.is_inherited() {
            return Err(Busy::inherited());
        }
        match self.core.close_if_quiet(mode) {
            Ok(()) => Ok(Closed::new(&self.core, mode)),
            Err((active, closing)) => {
                let own = self.core.is_inside() || self.core.is_held_here();
                let (since, kept_by) = (self.core.holders.places(), self.core.holders.kept_by());
                Err(Busy { active, closing, own, since, kept_by, ..Busy::default() })
            }
        }
    }

    /// Returns a refusal if this thread holds a pass, or is inside the closed gate: a closer would wait
    /// for itself.
    pub(crate) fn waits_for_itself(&self) -> Option<Busy> {
        let own = self.core.is_inside() || self.core.is_held_here();
        own.then(|| self.own_busy())
    }

    fn own_busy(&self) -> Busy {
        let GateState { active, open, .. } = self.state();
        Busy { active, closing: !open, own: true, ..Busy::default() }
    }

    /// Returns whether work may enter right now. Takes no lock.
    pub fn is_open(&self) -> bool {
        !self.is_inherited() && !self.core.word.is_closing()
    }

    /// Returns whether nothing has to be woken before work begins. Takes no lock.
    pub fn is_awake(&self) -> bool {
        !self.core.word.read().is_asleep()
    }

    /// Returns the state of the gate right now.
    pub fn state(&self) -> GateState {
        self.core.state()
    }
}
