//! The guards of work and of a closer.

use std::marker::PhantomData;
use std::panic::Location;

use super::core::Core;
use super::holders::{Keeper, OwnedNumber};
use super::report::{Mode, Step};
use crate::sync::Arc;

/// Work that has entered a gate. Dropping the pass ends the work.
///
/// A pass borrows its gate, so that taking one costs no reference count, and stays on the thread that
/// took it: a release that this thread asks for meanwhile would wait for itself, and is refused at once.
/// [`into_owned`](Pass::into_owned) returns a pass that can be stored or sent to another thread.
#[derive(Debug)]
#[must_use = "dropping it ends the work"]
pub struct Pass<'a> {
    core: &'a Arc<Core>,
    kind: Kind,
    /// Keeps it on its thread. Other threads may still refer to it.
    _stays: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// Work that has entered a gate, on whatever thread. Dropping the pass ends the work.
#[derive(Debug)]
#[must_use = "dropping it ends the work"]
pub struct OwnedPass {
    core: Arc<Core>,
    kind: Kind,
    number: OwnedNumber,
}

/// The pass that other work enters [within](super::Gate::enter_within): a [`Pass`] or an [`OwnedPass`].
#[derive(Debug, Clone, Copy)]
pub struct Outer<'a> {
    core: &'a Arc<Core>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Entered within another pass.
    Nested,
    /// Taken by a part of the release or pause that has the gate closed, or of a gate that a forked
    /// child inherited. It is not counted.
    Inside,
}

impl Kind {
    fn checkpoint(self, core: &Core) -> Step {
        match self {
            Kind::Plain => core.checkpoint(true),
            Kind::Nested => core.checkpoint(false),
            // As the others, an inherited one ends.
            Kind::Inside if core.is_inherited() => Step::Abort,
            Kind::Inside => Step::Go,
        }
    }
}

impl<'a> Pass<'a> {
    /// The pass of work that was counted already.
    pub(super) fn counted(core: &'a Arc<Core>) -> Pass<'a> {
        Pass::new(core, Kind::Plain)
    }

    pub(super) fn within(core: &'a Arc<Core>, outer: Outer<'_>) -> Pass<'a> {
        assert!(Arc::ptr_eq(core, outer.core), "a pass of another gate");
        if outer.kind == Kind::Inside || core.is_inherited() {
            return Pass::inside(core);
        }
        core.word.enter_within();
        Pass::nested(core)
    }

    /// The pass of work within another pass, which was counted already.
    pub(super) fn nested(core: &'a Arc<Core>) -> Pass<'a> {
        Pass::new(core, Kind::Nested)
    }

    pub(super) fn inside(core: &'a Arc<Core>) -> Pass<'a> {
        Pass::new(core, Kind::Inside)
    }

    fn new(core: &'a Arc<Core>, kind: Kind) -> Pass<'a> {
        if kind != Kind::Inside {
            core.hold();
        }
        Pass { core, kind, _stays: PhantomData }
    }

    /// Asks whether work should stop. Call it wherever work can stop.
    ///
    /// In a gate that was closed with [`Mode::InPlace`] the call returns when
    /// the gate opens. A pass that was [entered within](super::Gate::enter_within) another one does
    /// not wait here: its outer pass is active, so the gate could not close. It gets
    /// [`Step::Go`] and its work stops at the checkpoint of the outer pass.
    ///
    /// Returns [`Step::Abort`] in a forked child that inherited the gate.
    pub fn checkpoint(&mut self) -> Step {
        self.kind.checkpoint(self.core)
    }

    /// Returns the same pass without the borrow, to be stored or sent to another thread. Takes a lock for
    /// a moment, to record the place of the call: a closer that waits in vain is told
    /// "held since src/serve.rs:44".
    #[track_caller]
    pub fn into_owned(self) -> OwnedPass {
        let mut number = 0;
        // The new pass is counted before this one is dropped, so the work never ends in between.
        if self.kind != Kind::Inside && !self.core.is_inherited() {
            self.core.word.enter_within();
            number = self.core.holders.take(Location::caller());
        }
        OwnedPass { core: Arc::clone(self.core), kind: self.kind, number }
    }
}

impl OwnedPass {
    /// Asks whether work should stop, as [`Pass::checkpoint`].
    pub fn checkpoint(&mut self) -> Step {
        self.kind.checkpoint(&self.core)
    }

    /// Records the place in a host language where the pass was taken, instead of the place in Rust.
    pub fn note_place(&self, place: impl Into<String>) {
        if self.kind != Kind::Inside && !self.core.is_inherited() {
            self.core.holders.note_place(self.number, place.into());
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.kind != Kind::Inside {
            self.core.let_go();
            self.core.leave();
        }
    }
}

impl Drop for OwnedPass {
    fn drop(&mut self) {
        if self.kind != Kind::Inside && !self.core.is_inherited() {
            self.core.holders.forget(self.number);
            self.core.leave();
        }
    }
}

impl<'a> From<&'a Pass<'_>> for Outer<'a> {
    fn from(pass: &'a Pass<'_>) -> Outer<'a> {
        Outer { core: pass.core, kind: pass.kind }
    }
}

impl<'a> From<&'a OwnedPass> for Outer<'a> {
    fn from(pass: &'a OwnedPass) -> Outer<'a> {
        Outer { core: &pass.core, kind: pass.kind }
    }
}

/// A gate that is closed: no work passes while this exists. Dropping it opens the gate.
#[derive(Debug)]
#[must_use = "dropping it opens the gate"]
pub struct Closed {
    core: Arc<Core>,
    mode: Mode,
    /// Whether dropping it opens the gate.
    opens: bool,
}

impl Closed {
    /// The guard of a gate that this caller is closing, or has closed.
    pub(super) fn new(core: &Arc<Core>, mode: Mode) -> Closed {
        Closed { core: Arc::clone(core), mode, opens: true }
    }

    /// The guard of a gate that the release around this caller has closed, and opens.
    pub(super) fn inside(core: &Arc<Core>, mode: Mode) -> Closed {
        Closed { core: Arc::clone(core), mode, opens: false }
    }

    /// Opens the gate. Parked and waiting work goes on.
    pub fn open(self) {
        drop(self);
    }

    /// Returns how the gate was closed.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the number of passes that are parked and go on when the gate opens.
    pub fn parked(&self) -> usize {
        self.core.state().parked
    }

    /// Says what keeps the gate closed, for refusals, until it opens.
    pub(crate) fn kept_by(&self, keeper: Keeper) {
        self.core.holders.keep(keeper);
    }

    /// Says that memory is being put to sleep. The first work to come through
    /// [`Gate::enter_awake`](super::Gate::enter_awake) after the gate opens wakes it.
    pub fn mark_asleep(&self) {
        // Harmless in a forked child: the word that it changes is its own copy.
        self.core.word.mark_asleep();
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if self.opens {
            self.core.open();
        }
    }
}
