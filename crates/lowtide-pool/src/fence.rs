//! Fences: whether a stream has passed what was given to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lowtide_device::Stream;

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

/// The fence for streams of [`lowtide_device`]. A stream it does not know has passed everything.
#[derive(Default)]
pub struct StreamFence {
    streams: Mutex<HashMap<StreamId, Weak<Stream>>>,
}

impl StreamFence {
    /// Watches a stream for as long as somebody has it, and says under which identity blocks are
    /// freed on it. A stream that nobody has any more has waited for its work.
    pub fn watch(&self, stream: &Arc<Stream>) -> StreamId {
        let id = StreamId(stream.id());
        let mut streams = self.streams();
        streams.retain(|_, stream| stream.strong_count() > 0);
        streams.insert(id, Arc::downgrade(stream));
        id
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<StreamId, Weak<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: StreamId) -> Option<Arc<Stream>> {
        self.streams().get(&id)?.upgrade()
    }
}

impl Fence for StreamFence {
    fn has_passed(&self, stream: StreamId) -> bool {
        let Some(stream) = self.get(stream) else { return true };
        // Where it cannot be said, it has not.
        stream.has_passed().unwrap_or(false)
    }

    fn wait(&self, stream: StreamId) -> lowtide_device::Result<()> {
        self.get(stream).map_or(Ok(()), |stream| stream.synchronize())
    }
}
