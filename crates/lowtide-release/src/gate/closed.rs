//! The guard of a closer.

use super::core::Core;
use super::report::Mode;
use super::who::Keeper;
use crate::sync::Arc;

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
        self.core.who.keep(keeper);
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
