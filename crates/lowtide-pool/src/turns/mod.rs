//! A turn: the time in which some tags fall asleep or wake.
//!
//! While it lives, its tags are turning: nobody allocates in them, nobody moves their chunks, and
//! what is freed only rests. So the driver's part is done without the lock. Where the turn ends
//! without having said otherwise, its tags are as they were. Who waits for whom is in `monitor.rs`.

pub(crate) mod parts;
pub(crate) mod plan;
mod restoring;
mod saving;
mod second_digest;
mod sleep;
pub(crate) mod wake;

use lowtide_types::{Phase, SleepPolicy};

use crate::backups::Backups;
use crate::copy::streams::CopyStreams;
use crate::lock::limit::Limit;
use crate::pool::Pool;
use crate::state::arenas::{ARENAS_OF_TAG, ArenaId};
use crate::state::tags::{Scope, Tag, Turning};
use crate::{Error, Result};

pub(crate) struct Turn<'a> {
    pool: &'a Pool,
    pub(crate) tags: Vec<Turning>,
    pub(crate) backups: Backups,
    pub(crate) copy_streams: Option<CopyStreams>,
}

impl Turning {
    pub(crate) fn arenas(self) -> [ArenaId; ARENAS_OF_TAG] {
        ArenaId::of_tag(self.tag)
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
        for arena_id in tags.iter().copied().flat_map(Turning::arenas) {
            state.clear(arena_id, from == Phase::Asleep);
        }
        let (backups, copy_streams) =
            (std::mem::take(&mut state.backups), state.copy_streams.take());
        let (ring, is_unsettled) = (state.ahead.ring.take(), state.ahead.is_unsettled());
        drop(state);
        // Its memory is wanted now, and steps make it again.
        drop(ring);
        if is_unsettled && let Some(Err(error)) = copy_streams.as_ref().map(CopyStreams::settle) {
            tracing::warn!(%error, "work of a failed backup may keep pages pinned for now");
        }
        Ok(Some(Turn { pool: self, tags, backups, copy_streams }))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Also where the pool broke meanwhile: no thread may wait for the end of this turn for ever.
        let Some(mut state) = self.pool.shared.monitor.lock_as_it_is() else { return };
        state.backups = std::mem::take(&mut self.backups);
        state.copy_streams = self.copy_streams.take();
        state.count_backups();
        state.count_physical();
        self.pool.shared.monitor.end_turn(state, &self.tags);
    }
}

impl Pool {
    /// Sets what later sleeps do with a tag. Waits for the end of a sleep or a wake that is under way.
    ///
    /// A tag that sleeps may become `Discard`: its backup is given up, and its next wake brings memory
    /// with undefined content. Backups that were kept after a wake are given up, too.
    ///
    /// ```
    /// # use lowtide_device::{Bytes, Device, HostOptions};
    /// # use lowtide_pool::{Pool, Scope, SleepPolicy};
    /// # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
    /// let pool = Pool::new(&device)?;
    /// let weights = pool.tag("weights", SleepPolicy::Offload)?;
    /// let block = pool.block_tagged(Bytes::mib(5), weights)?;
    /// pool.set_policy(weights, SleepPolicy::Discard)?; // they are loaded again after the wake
    /// assert_eq!(pool.sleep(Scope::Whole)?.copied, Bytes::ZERO);
    /// # Ok::<(), lowtide_pool::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PolicyWhileAsleep`] where the tag sleeps and the policy is another than `Discard`;
    /// [`Error::UnknownTag`] for a tag of another pool.
    pub fn set_policy(&self, tag: Tag, policy: SleepPolicy) -> Result<()> {
        let are_here = |tags: &mut crate::state::tags::Tags| !tags.has_lent_backups();
        let mut state = self.shared.monitor.wait_until(self.state()?, Limit::NONE, are_here)?;
        let known = state.tags.get(tag)?;
        if known.policy == policy {
            return Ok(());
        }
        if known.phase() == Phase::Asleep && policy != SleepPolicy::Discard {
            return Err(Error::PolicyWhileAsleep {
                name: known.name.to_string(),
                known: known.policy,
                wanted: policy,
            });
        }
        state.tags[tag].policy = policy;
        if policy == SleepPolicy::Discard {
            for arena_id in ArenaId::of_tag(tag) {
                state.backups.forget(arena_id);
            }
            state.backups.shrink();
            state.count_backups();
        }
        Ok(())
    }
}
