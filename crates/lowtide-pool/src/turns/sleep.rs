//! Sleep: content leaves the device, addresses stay.
//!
//! Plan under the lock (which chunks, which pages), apply without it, commit. At every moment a page is on
//! the device, or it is saved and a second digest right before its memory went has found it unchanged. So
//! whatever fails, what has left is brought back. Where even that fails, the tag is asleep with nothing
//! lost.
//!
//! The first sleep of a pool makes streams, loads a kernel and registers host memory. All of it takes
//! some device memory, for good, so the first sleep frees a little less than it moves. And the driver
//! compiles the kernel, for which it may load a library. [`Pool::prepare_sleep`] does it beforehand.

use std::sync::Arc;

use lowtide_device::Mapping;
use lowtide_types::{Phase, SleepPolicy, SleepReport};

use crate::Result;
use crate::backups::Backups;
use crate::copy::packing;
use crate::copy::streams::CopyStreams;
use crate::lock::MutexGuard;
use crate::lock::limit::Limit;
use crate::policy::{PAGE, Policy};
use crate::pool::Pool;
use crate::state::State;
use crate::state::arenas::ArenaId;
use crate::state::tags::{Scope, Tag, Tags};
use crate::turns::Turn;
use crate::turns::parts::{HeldChunks, SleepPart};
use crate::turns::parts::{WakePart, without};
use crate::turns::plan::Planner;
use crate::turns::saving::Saving;

impl Pool {
    /// Waits for all work on the device, then puts tags to sleep: their memory leaves the device,
    /// their addresses stay. The content of `Offload` tags is saved to the host, that of `Discard`
    /// tags is lost, and `Keep` tags stay awake. Tags that are asleep already stay so.
    ///
    /// Until the tags wake, no work may be given that touches their blocks. A
    /// [`lowtide_device::Stream`] that touched them must be synchronised, or watched by the pool's
    /// fence.
    ///
    /// On CUDA the wait covers the whole context, and the driver ends any graph capture in it. A
    /// program that captures graphs calls [`Pool::sleep_quiet`] instead.
    ///
    /// # Errors
    /// [`crate::Error::KeepsChanging`] where a page was written while it was saved, again and again.
    ///
    /// Whatever was refused, everything is brought back as it was before: awake, data intact. Where
    /// even that is refused, the tag is asleep and no data is lost ([`Pool::phase`] tells): the next
    /// sleep takes what is still on the device. A `Discard` tag that was given up by then stays
    /// asleep, too.
    pub fn sleep(&self, scope: Scope<'_>) -> Result<SleepReport> {
        self.sleep_within(scope, Limit::NONE)
    }

    /// Puts tags to sleep like [`Pool::sleep`], for as long as the limit says to go on. It is asked
    /// between pieces of work and while another sleep or wake is waited for.
    ///
    /// # Errors
    /// As [`Pool::sleep`]; [`crate::Error::Stopped`] where the limit said to stop. Everything is
    /// awake then with its data, `Discard` tags too. Bringing back what had left takes about as long
    /// as copying it out did.
    pub fn sleep_within(&self, scope: Scope<'_>, limit: Limit<'_>) -> Result<SleepReport> {
        let limit = limit.asked_by(&self.shared.monitor);
        self.sleep_after(scope, limit, || {
            self.settle_streams(true, limit)?;
            Ok(self.shared.device.synchronize()?)
        })
    }

    /// Puts tags to sleep like [`Pool::sleep`], but waits for no work of the caller: neither the
    /// context is synchronised nor the fence asked, so a graph capture goes on undisturbed. The
    /// caller has made sure that no work in flight touches the blocks of these tags.
    ///
    /// The limit is asked between pieces of work and while another sleep or wake is waited for.
    ///
    /// # Errors
    /// As [`Pool::sleep`]; [`crate::Error::Stopped`] where the limit said to stop. Everything is
    /// awake then with its data, `Discard` tags too. Bringing back what had left takes about as long
    /// as copying it out did.
    pub fn sleep_quiet(&self, scope: Scope<'_>, limit: Limit<'_>) -> Result<SleepReport> {
        self.sleep_after(scope, limit.asked_by(&self.shared.monitor), || Ok(()))
    }

    fn sleep_after(
        &self,
        scope: Scope<'_>,
        limit: Limit<'_>,
        quiet: impl FnOnce() -> Result<()>,
    ) -> Result<SleepReport> {
        let unfinished = self.state()?.unfinished(scope)?;
        let finished = self.finish_sleep(&unfinished, limit)?;
        let Some(mut turn) = self.begin_turn(scope, Phase::Awake, limit)? else {
            return Ok(finished);
        };
        quiet()?;
        let change = self.shared.monitor.change("a sleep");
        let parts = self.state()?.plan_sleep(&turn);
        let outcome = self.apply_sleep(&mut turn, &parts, limit);
        self.state()?.commit_sleep(&mut turn, &parts, outcome.is_ok());
        if outcome.is_err() {
            // What its streams were given keeps pages pinned until they are waited for.
            let settled = turn.copy_streams.as_ref().map_or(Ok(()), CopyStreams::settle);
            if let Err(error) = settled {
                tracing::warn!(%error, "work of a failed sleep may keep pages pinned for now");
            }
            if let Err(error) = self.bring_back(&mut turn) {
                tracing::error!(%error, "a sleep failed, and what has left could not be brought back");
            }
        }
        let tags = turn.tags.len();
        drop((turn, change));
        let report = sum(finished, SleepReport { tags, ..outcome? });
        tracing::info!(freed = %report.freed, copied = %report.copied, tags, "asleep");
        Ok(report)
    }

    pub(crate) fn apply_sleep(
        &self,
        turn: &mut Turn<'_>,
        parts: &[SleepPart],
        limit: Limit<'_>,
    ) -> Result<SleepReport> {
        let freed = parts.iter().map(SleepPart::size).sum();
        let (saved, lost): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.saves);
        let mut report = SleepReport::default();
        if saved.iter().any(|part| !part.pages.is_empty()) {
            let (device, policy) = (&self.shared.device, &self.shared.policy);
            let streams = CopyStreams::ready(&mut turn.copy_streams, device, policy)?;
            let (backups, others) = (&mut turn.backups, self.state()?.awake_arenas());
            let planner = Planner { device, streams, policy, others: &others, limit };
            let plan = planner.plan(backups, &saved)?;
            report = plan.report;
            let saving = Saving { streams, planner, parts: &saved, lost: &lost, limit };
            report.copied_again = saving.copy(backups, plan)?;
        } else {
            let all = saved.iter().chain(&lost).copied();
            drop(HeldChunks::unmap(all, limit)?);
            // No page is on the device. If none has left either, no page is live.
            for part in saved.iter().filter(|part| part.left.is_empty()) {
                turn.backups.forget(part.arena_id);
            }
        }
        turn.backups.shrink();
        Ok(SleepReport { freed, ..report })
    }
}

fn sum(one: SleepReport, other: SleepReport) -> SleepReport {
    SleepReport {
        tags: one.tags + other.tags,
        copied: one.copied + other.copied,
        unchanged: one.unchanged + other.unchanged,
        zero: one.zero + other.zero,
        copied_again: one.copied_again + other.copied_again,
        freed: one.freed + other.freed,
    }
}

impl State {
    fn plan_sleep(&self, turn: &Turn<'_>) -> Vec<SleepPart> {
        let mut parts = Vec::new();
        for (turning, tag) in turn.tags.iter().enumerate() {
            for arena_id in tag.arenas() {
                let arena = &self.arenas[arena_id];
                parts.push(SleepPart {
                    turning,
                    arena_id,
                    name: Arc::clone(&self.tags[tag.tag].name),
                    saves: tag.policy == SleepPolicy::Offload,
                    reservation: arena.reservation.clone(),
                    chunks: arena.chunks(),
                    pages: arena.live_pages(),
                    left: Vec::new(),
                });
            }
        }
        parts
    }

    // What is mapped is what the device layer says, whatever went wrong: where a sleep failed, a tag
    // that still has all its memory is awake, and any other is asleep.
    fn commit_sleep(&mut self, turn: &mut Turn<'_>, parts: &[SleepPart], slept: bool) {
        for (index, turning) in turn.tags.iter_mut().enumerate() {
            let own = || parts.iter().filter(|part| part.turning == index);
            if !slept && own().all(SleepPart::is_whole) {
                continue;
            }
            turning.becomes = Phase::Asleep;
            for part in own() {
                let still = part.reservation.mappings().into_iter();
                let still: Vec<_> = still.map(|Mapping { range, .. }| range).collect();
                self.arenas[part.arena_id].fall_asleep(&still, &[]);
            }
        }
    }
}

impl Pool {
    /// Takes away what sleeping tags still have on the device. On failure they are asleep as before, and
    /// nothing is lost.
    pub(crate) fn finish_sleep(&self, tags: &[Tag], limit: Limit<'_>) -> Result<SleepReport> {
        if tags.is_empty() {
            return Ok(SleepReport::default());
        }
        let Some(mut turn) = self.begin_turn(Scope::Tags(tags), Phase::Asleep, limit)? else {
            return Ok(SleepReport::default());
        };
        let _change = self.shared.monitor.change("the rest of a sleep");
        let (all, policy): (Vec<usize>, _) = ((0..turn.tags.len()).collect(), &self.shared.policy);
        let arenas = self.state()?.plan_wake(&turn, &all, policy);
        let outcome = self.take_rest(&mut turn, &arenas, limit);
        if outcome.is_err() {
            // What its streams were given keeps pages pinned until they are waited for.
            let settled = turn.copy_streams.as_ref().map_or(Ok(()), CopyStreams::settle);
            if let Err(error) = settled {
                tracing::warn!(%error, "work of a failed sleep may keep pages pinned for now");
            }
        }
        let mut state = self.state()?;
        for arena_id in &arenas {
            state.stay_asleep(arena_id);
        }
        drop(state);
        Ok(SleepReport { tags: all.len(), ..outcome? })
    }

    fn take_rest(
        &self,
        turn: &mut Turn<'_>,
        arenas: &[WakePart],
        limit: Limit<'_>,
    ) -> Result<SleepReport> {
        arenas.iter().try_for_each(WakePart::clear_the_way)?;
        let parts = self.state()?.plan_rest(turn, arenas);
        self.apply_sleep(turn, &parts, limit)
    }
}

impl State {
    /// Lists tags that are asleep and still have memory on the device, which could not be taken away.
    pub(crate) fn unfinished(&self, scope: Scope<'_>) -> Result<Vec<Tag>> {
        let mut tags = self.tags.of(scope)?;
        tags.retain(|tag| {
            let mapped = |arena_id: ArenaId| self.arenas[arena_id].mapped() > 0;
            self.tags[*tag].phase() == Phase::Asleep
                && ArenaId::of_tag(*tag).into_iter().any(mapped)
        });
        Ok(tags)
    }

    fn plan_rest(&self, turn: &Turn<'_>, arenas: &[WakePart]) -> Vec<SleepPart> {
        let plan = |arena_id: &WakePart| {
            let (tag, live) =
                (&turn.tags[arena_id.turning], self.arenas[arena_id.arena_id].live_pages());
            let left = without(live.clone(), &arena_id.kept);
            SleepPart {
                turning: arena_id.turning,
                arena_id: arena_id.arena_id,
                name: Arc::clone(&self.tags[tag.tag].name),
                saves: tag.policy == SleepPolicy::Offload,
                reservation: arena_id.reservation.clone(),
                chunks: arena_id.kept.clone(),
                pages: without(live, &left),
                left,
            }
        };
        arenas.iter().map(plan).collect()
    }
}

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
