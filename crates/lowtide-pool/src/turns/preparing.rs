//! Preparing a sleep: what it needs besides memory of the device, made beforehand.
//!
//! The first sleep of a pool makes streams, loads a kernel and registers host memory. All of it takes
//! some device memory, for good, so the first sleep frees a little less than it moves. And the driver
//! compiles the kernel, for which it may load a library.

use lowtide_types::{Phase, SleepPolicy};

use crate::Result;
use crate::backups::Backups;
use crate::copy::packing;
use crate::copy::streams::CopyStreams;
use crate::lock::limit::Limit;
use crate::lock::sync::MutexGuard;
use crate::policy::{PAGE, Policy};
use crate::pool::Pool;
use crate::state::State;
use crate::state::tags::Tags;

impl Pool {
    /// Makes what a sleep of all that is awake will need, as far as it takes device memory: streams,
    /// the kernels for digests and packing, and the part of the backups that is registered with the
    /// device. For callers that measure what a sleep frees, or that have little time for it. Nothing waits meanwhile.
    ///
    /// The next sleep gives back what it did not need.
    ///
    /// # Errors
    /// What was refused, by the host or by the driver. The next sleep tries on its own.
    pub fn prepare_sleep(&self) -> Result<()> {
        self.prepare_streams()?;
        let pages = self.state_between_steps()?.pages_missing(&self.shared.policy);
        let backups = Backups::registered(&self.shared.device, pages)?;
        let mut state = self.state_between_steps()?;
        // A turn that began meanwhile has made its own.
        if !state.tags.has_turn() {
            state.backups.join(backups);
            state.count_backups();
        }
        Ok(())
    }

    /// Makes the streams of turns and loads their kernels, unless they are there.
    pub(crate) fn prepare_streams(&self) -> Result<()> {
        let (device, policy) = (&self.shared.device, &self.shared.policy);
        let are_there =
            |state: &State| state.tags.has_lent_backups() || state.copy_streams.is_some();
        if are_there(&*self.state()?) {
            return Ok(());
        }
        let made = CopyStreams::new(device, policy)?;
        device.prepare_digests()?;
        if packing::is_on(device, policy) {
            device.prepare_packing()?;
        }
        let mut state = self.state()?;
        if !are_there(&state) {
            state.copy_streams = Some(made);
        }
        Ok(())
    }

    // A step of backups ahead of time has the backups, for a moment.
    fn state_between_steps(&self) -> Result<MutexGuard<'_, State>> {
        let has_ended = |tags: &mut Tags| tags.has_turn() || !tags.has_lent_backups();
        self.shared.monitor.wait_until(self.state()?, Limit::NONE, has_ended)
    }
}

impl State {
    // The number of registered pages that a sleep would have to make.
    fn pages_missing(&self, policy: &Policy) -> u64 {
        if self.tags.has_turn() {
            return 0;
        }
        let tags = self.tag_snapshots().into_iter();
        let saved =
            tags.filter(|tag| tag.phase == Phase::Awake && tag.policy == SleepPolicy::Offload);
        let needed: u64 = saved.map(|tag| tag.physical_bytes.0).sum();
        let missing = needed.saturating_sub(self.backups.held().0);
        let direct = policy.direct_backups.0.saturating_sub(self.backups.direct().0);
        let most = policy.backup_most.map_or(u64::MAX, |most| most.0);
        let allowed = most.saturating_sub(self.backups.held().0);
        missing.min(direct).min(allowed) / PAGE
    }
}
