//! The guard of work.

use std::borrow::Cow;

use super::core::Core;
use super::report::Step;
use crate::sync::Arc;

/// Work that has entered a gate. Dropping the pass ends the work.
///
/// A pass borrows its gate, so that taking one costs no reference count.
/// [`into_owned`](Pass::into_owned) returns a pass that can be stored or sent to another thread.
#[derive(Debug)]
#[must_use = "dropping it ends the work"]
pub struct Pass<'a> {
    core: Cow<'a, Arc<Core>>,
    /// Whether it was entered within another pass.
    nested: bool,
}

impl<'a> Pass<'a> {
    /// The pass of work that was counted already.
    pub(super) fn counted(core: &'a Arc<Core>) -> Pass<'a> {
        Pass { core: Cow::Borrowed(core), nested: false }
    }

    pub(super) fn within(core: &'a Arc<Core>, outer: &Pass<'_>) -> Pass<'a> {
        assert!(Arc::ptr_eq(core, &outer.core), "a pass of another gate");
        core.word.enter_within();
        Pass { core: Cow::Borrowed(core), nested: true }
    }

    /// Asks whether work should stop. Call it wherever work can stop.
    ///
    /// In a gate that was closed with [`Mode::InPlace`](super::Mode::InPlace) the call returns when
    /// the gate opens. A pass that was [entered within](super::Gate::enter_within) another one does
    /// not wait here: its outer pass is active, so the gate could not close. It gets
    /// [`Step::Go`] and its work stops at the checkpoint of the outer pass.
    pub fn checkpoint(&mut self) -> Step {
        self.core.checkpoint(!self.nested)
    }

    /// Returns the same pass without the borrow, to be stored or sent to another thread.
    pub fn into_owned(self) -> Pass<'static> {
        // The new pass is counted before this one is dropped, so the work never ends in between.
        self.core.word.enter_within();
        Pass { core: Cow::Owned(Arc::clone(&self.core)), nested: self.nested }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.core.leave();
    }
}
