//! Failures of code that is not ours: rungs, hooks, settings, allocators.

use std::any::Any;

/// The reason why a rung, a hook, a setting or an allocator could not do its part.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Returns the message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}
