//! Changing what a sleep does with a tag.

use lowtide_types::{Phase, SleepPolicy};

use crate::lock::limit::Limit;
use crate::pool::Pool;
use crate::state::room::RoomId;
use crate::state::tag::Tag;
use crate::{Error, Result};

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
            for room in RoomId::of_tag(tag) {
                state.backups.forget(room);
            }
            state.backups.shrink();
            state.count_backups();
        }
        Ok(())
    }
}
