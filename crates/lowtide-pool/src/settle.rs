//! Settling: blocks whose stream has passed become anybody's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lowtide_types::Phase;

use crate::Result;
use crate::fence::{Fence, StreamId};
use crate::inside::{Inside, check_outside_fence};
use crate::limit::{Limit, Progress};
use crate::pool::Pool;
use crate::state::State;
use crate::streams::Seen;
use crate::turn_step::TurnStep;

impl Pool {
    /// Asks the fence about every stream, or waits for each, and lets anybody have what the streams
    /// have passed. The fence is asked without the lock; what is freed meanwhile has a later number and
    /// waits for the next time.
    ///
    /// # Errors
    /// [`crate::Error::InsideFence`] where the fence itself asks for this.
    pub(crate) fn settle_streams(&self, wait: bool, limit: Limit<'_>) -> Result<()> {
        let Some(fence) = &self.shared.fence else { return Ok(()) };
        check_outside_fence(&self.shared.monitor)?;
        let mut state = self.state()?;
        state.clear_shelves();
        let streams = state.streams.seen();
        drop(state);
        for seen in streams {
            if wait {
                limit.ask(TurnStep::Waiting, Progress::default)?;
                self.wait_for_fence(fence, seen.id)?;
            } else if !self.ask_fence(fence, seen.id) {
                continue;
            }
            self.state()?.settle_stream(&seen);
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
        for room in self.rooms.ids() {
            match self.tags[room.tag()].phase() {
                Phase::Awake => self.rooms[room].arena.settle_stream(seen.number, seen.frees),
                Phase::Turning => all = false,
                Phase::Asleep => {}
            }
        }
        if all {
            self.streams.forget(seen);
        }
    }
}
