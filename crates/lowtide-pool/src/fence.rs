//! Fences: whether a stream has passed what was given to it.

use crate::StreamId;

/// Says how far the streams of a program are. A pool without one takes a free to mean that nothing
/// uses the block any more.
pub trait Fence: Send + Sync {
    /// Whether everything given to the stream until now is done. Does not wait.
    fn has_passed(&self, stream: StreamId) -> bool;

    /// Waits until everything given to the stream until now is done.
    ///
    /// # Errors
    /// What went wrong in the stream's work.
    fn wait(&self, stream: StreamId) -> lowtide_device::Result<()>;
}
