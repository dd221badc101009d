//! A stage that has begun, without its model: what was in use before it, and its peak so far.

use lowtide_types::{Bytes, Reading};

/// A stage that has begun: the numbers before it, and its peak so far.
#[derive(Debug, Clone)]
#[must_use = "a stage that is not closed is in no report"]
pub struct Opened {
    pub(crate) name: String,
    pub(crate) before: Reading,
    pub(crate) peak: Bytes,
    /// By how much the device's number rose while the model was loaded.
    pub(crate) loaded: Bytes,
    /// How many clean-ups between tasks came before the stage.
    pub(crate) cleaned_before: usize,
}

impl Opened {
    /// Returns what the stage has taken: what its model took when it was loaded, or the growth of the
    /// allocators since, if that is more.
    pub fn taken(&self, now: &Reading) -> Bytes {
        self.loaded.max(now.reserved.saturating_sub(self.before.reserved))
    }

    /// Returns what was in use before the stage, where the device could be asked.
    pub fn before(&self) -> Option<Bytes> {
        self.before.in_use()
    }
}
