//! Settling: blocks whose stream has passed become anybody's.
//!
//! Free neighbours are joined only where they have the same owner. So blocks do not change hands
//! without need: where one stream's allocation finds nothing that fits, the memory of the *other*
//! streams is settled, and where there are no others, all settled memory becomes that stream's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lowtide_types::Phase;

use crate::Result;
use crate::error::TurnStep;
use crate::lock::inside::{Inside, check_outside_fence};
use crate::lock::limit::{Limit, Progress};
use crate::pool::Pool;
use crate::pool::fence::{Fence, StreamId};
use crate::state::State;
use crate::state::streams::Seen;

impl Pool {
    /// Asks the fence about every stream, or waits for each, and lets anybody have what the streams
    /// have passed. The fence is asked without the lock; what is freed meanwhile has a later number and
    /// waits for the next time.
    ///
    /// # Errors
    /// [`crate::Error::InsideFence`] where the fence itself asks for this.
    pub(crate) fn settle_streams(&self, wait: bool, limit: Limit<'_>) -> Result<()> {
        self.settle_streams_for(None, wait, limit)
    }

    /// Settles like [`Pool::settle_streams`]. The blocks of one stream, which wants memory, stay its
    /// own; it is only recorded which of them it has passed.
    ///
    /// # Errors
    /// As [`Pool::settle_streams`].
    pub(crate) fn settle_streams_for(
        &self,
        wants: Option<StreamId>,
        wait: bool,
        limit: Limit<'_>,
    ) -> Result<()> {
        let Some(fence) = &self.shared.fence else { return Ok(()) };
        check_outside_fence(&self.shared.monitor)?;
        let mut state = self.state()?;
        state.clear_shelves();
        let streams = state.streams.seen();
        drop(state);
        for seen in &streams {
            if wait {
                limit.ask(TurnStep::Waiting, Progress::default)?;
                self.wait_for_fence(fence, seen.id)?;
            } else if !self.ask_fence(fence, seen.id) {
                self.state()?.settle_earlier(seen, wants);
                continue;
            }
            let mut state = self.state()?;
            if wants == Some(seen.id) {
                state.streams.has_passed(seen);
            } else {
                state.settle_stream(seen);
            }
        }
        if let ([only], Some(stream)) = (&streams[..], wants)
            && only.id == stream
        {
            self.state()?.adopt(only);
        }
        Ok(())
    }

    /// Waits until the fence says that a stream has passed.
    pub(crate) fn wait_for_fence(&self, fence: &Arc<dyn Fence>, stream: StreamId) -> Result<()> {
        let _asking = Inside::fence(&self.shared.monitor);
        Ok(fence.wait(stream)?)
    }

    // A panic counts as `false`.
    fn ask_fence(&self, fence: &Arc<dyn Fence>, stream: StreamId) -> bool {
        let _asking = Inside::fence(&self.shared.monitor);
        catch_unwind(AssertUnwindSafe(|| fence.has_passed(stream))).unwrap_or(false)
    }
}

impl State {
    fn settle_stream(&mut self, seen: &Seen) {
        // Where a sleep or a wake is at work, nothing changes; the stream is kept for later.
        let mut all = true;
        for arena_id in self.arenas.ids() {
            match self.tags[arena_id.tag()].phase() {
                Phase::Awake => self.arenas[arena_id].settle_stream(seen.number, seen.frees),
                Phase::Turning => all = false,
                Phase::Asleep => {}
            }
        }
        if all {
            self.streams.forget(seen);
        }
    }

    // The stream has not passed all of its frees, but it may have passed some while they stayed its own.
    fn settle_earlier(&mut self, seen: &Seen, wants: Option<StreamId>) {
        let passed = self.streams.passed(seen.number);
        if wants == Some(seen.id) || passed == 0 {
            return;
        }
        for arena_id in self.awake_arenas() {
            self.arenas[arena_id].settle_stream(seen.number, passed);
        }
    }

    fn adopt(&mut self, stream: &Seen) {
        if !self.streams.is_known(stream) {
            return;
        }
        for arena_id in self.awake_arenas() {
            self.arenas[arena_id].adopt(stream.number);
        }
    }
}
