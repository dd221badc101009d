//! Fences: whether a stream has done the work that was given to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lowtide_device::Stream;

/// The identity of a stream, never used twice. On CUDA it is what `cuStreamGetId` returns, because
/// handles are recycled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamId(pub u64);

/// Says how far the streams of a program are. In a pool without a fence, a free means that nothing
/// uses the block any more.
///
/// A fence may free blocks of the pool that asks it, and is given blocks that are cached. Other calls of
/// that pool, on the same thread, return [`Error::InsideFence`](crate::Error::InsideFence) where they
/// would ask the fence again or wait.
pub trait Fence: Send + Sync {
    /// Returns whether all work given to the stream until now is done. Does not wait. A panic counts as
    /// `false`.
    fn has_passed(&self, stream: StreamId) -> bool;

    /// Waits until all work given to the stream until now is done.
    ///
    /// # Errors
    /// What went wrong in the stream's work.
    fn wait(&self, stream: StreamId) -> lowtide_device::Result<()>;
}

/// A fence for streams of [`lowtide_device`]. A stream that it does not watch has passed everything.
#[derive(Default)]
pub struct StreamFence {
    streams: Mutex<HashMap<StreamId, Weak<Stream>>>,
}

impl StreamFence {
    /// Watches a stream for as long as it exists, and returns the identity under which blocks are
    /// freed on it. A stream that was dropped has waited for its work.
    pub fn watch(&self, stream: &Arc<Stream>) -> StreamId {
        let id = StreamId(stream.id());
        let mut streams = self.streams();
        streams.retain(|_, stream| stream.strong_count() > 0);
        streams.insert(id, Arc::downgrade(stream));
        id
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<StreamId, Weak<Stream>>> {
        // A map of which one entry changes at a time.
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
