//! Failures of code that is not ours: rungs, hooks, settings, allocators.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The reason why a rung, a hook, a setting or an allocator could not do its part.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Returns the message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(a panic without a message)".to_owned())
}

/// Runs a caller's code. Returns the message of a panic.
pub(crate) fn catch<R>(action: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(action)).map_err(|panic| {
        let text = message(&*panic);
        // What has no message is a value of the caller's, and could panic again when dropped.
        if !panic.is::<&str>() && !panic.is::<String>() {
            std::mem::forget(panic);
        }
        text
    })
}
