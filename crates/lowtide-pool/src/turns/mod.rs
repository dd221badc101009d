//! A turn: the time in which some tags fall asleep or wake.
//!
//! While it lives, its tags are turning: nobody allocates in them, nobody moves their chunks, and
//! what is freed only rests. So the driver's part is done without the lock. Where the turn ends
//! without having said otherwise, its tags are as they were. Who waits for whom is in `monitor.rs`.

pub(crate) mod changes;
mod leaving;
mod losing;
mod preparing;
mod restoring;
mod saving;
mod sleep;
pub(crate) mod sleep_part;
mod unfinished;
pub(crate) mod wake;
pub(crate) mod wake_part;

use std::sync::Arc;

use crate::Result;
use lowtide_types::Phase;

use crate::backups::Backups;
use crate::copy::carriers::Carriers;
use crate::lock::limit::Limit;
use crate::pool::Pool;
use crate::state::room::{ROOMS, RoomId};
use crate::state::tag::Scope;
use crate::state::tags::Turning;

pub(crate) struct Turn<'a> {
    pool: &'a Pool,
    pub(crate) tags: Vec<Turning>,
    pub(crate) backups: Backups,
    pub(crate) carriers: Option<Carriers>,
}

impl Turning {
    pub(crate) fn rooms(self) -> [RoomId; ROOMS] {
        RoomId::of_tag(self.tag)
    }
}

impl Pool {
    /// Begins a turn for the tags of a scope that are in this phase; `None` where there are none.
    /// Waits for a turn that is under way, and for jobs at the driver.
    pub(crate) fn begin_turn(
        &self,
        scope: Scope<'_>,
        from: Phase,
        limit: Limit<'_>,
    ) -> Result<Option<Turn<'_>>> {
        let Some((mut state, tags)) = self.shared.monitor.begin_turn(scope, from, limit)? else {
            return Ok(None);
        };
        for room in tags.iter().copied().flat_map(Turning::rooms) {
            state.clear(room, from == Phase::Asleep);
        }
        let (backups, carriers) = (std::mem::take(&mut state.backups), state.carriers.take());
        let (copier, reader) = (state.ahead.copier.take(), Arc::clone(&state.reader));
        let is_unsettled = state.ahead.is_unsettled();
        drop(state);
        // Its memory is wanted now, and steps make it again.
        drop(copier);
        if is_unsettled && let Err(error) = reader.settle() {
            tracing::warn!(%error, "work of a failed backup may keep pages pinned for now");
        }
        Ok(Some(Turn { pool: self, tags, backups, carriers }))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Also where the pool broke meanwhile: no thread may wait for the end of this turn for ever.
        let Some(mut state) = self.pool.shared.monitor.lock_as_it_is() else { return };
        state.backups = std::mem::take(&mut self.backups);
        state.carriers = self.carriers.take();
        state.count_backups();
        state.count_physical();
        self.pool.shared.monitor.end_turn(state, &self.tags);
    }
}
