//! Taking a process off the device, step by step.
//!
//! Each operation runs in a thread of its own. It may take longer than its asker waits: then it is left alone
//! ([`Operation::leave`]) and ends in a state that is right by itself: a process that was only locked is unlocked,
//! one that is off the device stays so, one that came back is unlocked.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::headroom::HostHeadroom;
use lowtide_proto::helper::{DeviceBytes, ProcessState, Refusal, Step, Suspend, Suspended, Target};
use lowtide_types::{Bytes, Verdict};

use crate::operation::journal::{Asked, Record};
use crate::operation::lock_table::Operation;
use crate::operation::service::{Journaled, Service};
use crate::process::handle::ProcessHandle;
use crate::process::readings::{self, Reading};

/// The time in which the driver's numbers follow a checkpoint.
const SETTLE: Duration = Duration::from_secs(2);
/// The pause between two readings.
const PAUSE: Duration = Duration::from_millis(5);

impl Service {
    /// Takes a process off the device.
    pub(crate) fn suspend(
        &self,
        ask: &Suspend,
        operation: &Arc<Operation>,
        deadline: Instant,
    ) -> Result<Suspended, Refusal> {
        let (target, pid) = (ask.target, ask.target.pid);
        let process = ProcessHandle::find(target)?;
        // Without a driver nothing else about the process matters.
        self.driver.driver()?;
        process.check_suspendable(ask.force || ask.is_alone)?;
        let uuids = self.devices_of(target)?;
        readings::check_modes(pid, &uuids)?;
        if !ask.force {
            self.check_trial()?;
        }
        let _exclusive = self.take(&uuids, operation, deadline)?;
        // Another operation may have been at work on it meanwhile.
        process.check_suspendable(ask.force || ask.is_alone)?;
        let before = Reading::now()?;
        let record =
            Record { target, asked: Asked::Suspend, step: None, needs: before.needs_of(pid) };
        let mut journaled = Journaled::new(self, operation, record);
        match self.driver.state(pid)? {
            ProcessState::Running => {
                check_host_memory(&journaled.record.needs)?;
                if let Err(refusal) = journaled.lock(Duration::from_millis(ask.lock_limit_ms)) {
                    return Err(undone(&mut journaled, refusal));
                }
            }
            // Somebody began, and died: the driver's locks have no owner.
            ProcessState::Locked => {
                if let Err(refusal) = self.journal.write(&journaled.record) {
                    return Err(undone(&mut journaled, refusal));
                }
            }
            ProcessState::Checkpointed => return Ok(self.suspended_already(target, &before)),
            state => return Err(Refusal::WrongState { pid, state }),
        }
        if operation.is_left() || process.check_moving().is_err() {
            journaled.bring_back()?;
            return Err(process.check_moving().err().unwrap_or(Refusal::UnderWay { pid }));
        }
        // While it is locked its memory stands still: this is what it will need.
        let locked = Reading::now().map_err(|refusal| undone(&mut journaled, refusal))?;
        journaled.record.needs = larger(journaled.record.needs, locked.needs_of(pid));
        if let Err(refusal) = journaled.step(Step::Checkpoint) {
            let refusal = undone(&mut journaled, refusal);
            // A call that failed after it did its work: there is no way back but forward.
            if self.driver.state(pid) != Ok(ProcessState::Checkpointed) {
                return Err(refusal);
            }
        }
        self.proof(&mut journaled, &locked, &uuids)
    }

    fn proof(
        &self,
        journaled: &mut Journaled<'_>,
        before: &Reading,
        uuids: &[String],
    ) -> Result<Suspended, Refusal> {
        let target = journaled.record.target;
        let pid = target.pid;
        // The driver has made the checkpoint. Whatever cannot be asked any more, the answer is not a refusal: only a
        // resume leads back.
        let state = self.driver.state(pid);
        if let Err(refusal @ Refusal::Ended { .. }) = state {
            self.journal.remove(target);
            return Err(refusal);
        }
        // Without numbers nothing is proved.
        let (mut after, end) = (Reading::now().ok(), Instant::now() + SETTLE);
        let verdict = |after: &Option<Reading>| {
            let judge = |after| before.verdict(after, pid, uuids);
            let after = after.as_ref().filter(|_| state == Ok(ProcessState::Checkpointed));
            after.map_or(Verdict::Unverified, judge)
        };
        while verdict(&after) != Verdict::Released && before.tells(pid) && Instant::now() < end {
            thread::sleep(PAUSE);
            after = Reading::now().ok();
        }
        if let Some(after) = after.as_ref().filter(|_| !before.tells(pid)) {
            journaled.record.needs = fallen(before, after, &journaled.record.needs);
        }
        journaled.is_suspended();
        let verdict = verdict(&after);
        let after = after.unwrap_or_else(|| before.clone());
        Ok(Suspended {
            target,
            was_suspended: false,
            steps: journaled.times.clone(),
            devices: before.changes(&after, pid, uuids),
            verdict,
            needs: journaled.record.needs.clone(),
        })
    }

    fn suspended_already(&self, target: Target, now: &Reading) -> Suspended {
        let needs = self.journal.needs_of(target);
        let record = Record { target, asked: Asked::Suspend, step: None, needs };
        self.journal.note(&record);
        let verdict = if now.lists(target.pid) { Verdict::Partial } else { Verdict::Released };
        Suspended {
            target,
            was_suspended: true,
            steps: Vec::new(),
            devices: Vec::new(),
            verdict,
            needs: record.needs,
        }
    }
}

// Lets the process go on after something failed; returns why it failed. Where the process does not go on, that comes
// first: other refusals say that it runs. A driver that refuses a checkpoint, for managed memory for example, leaves
// the process locked.
fn undone(journaled: &mut Journaled<'_>, refusal: Refusal) -> Refusal {
    let state = match journaled.bring_back() {
        Ok(()) => ProcessState::Running,
        Err(Refusal::WrongState { state, .. }) => state,
        Err(_) => ProcessState::Unknown,
    };
    match refusal {
        Refusal::Driver { pid, step, code, name, .. } => {
            Refusal::Driver { pid, step, code, name, state }
        }
        refusal if state == ProcessState::Running => refusal,
        _ => Refusal::WrongState { pid: journaled.record.target.pid, state },
    }
}

// The driver copies all of the process's memory to host memory.
fn check_host_memory(needs: &[DeviceBytes]) -> Result<(), Refusal> {
    let needed: Bytes = needs.iter().map(|need| need.bytes).sum();
    let left = HostHeadroom::now().left;
    if left < needed { Err(Refusal::NoHostMemory { needed, left }) } else { Ok(()) }
}

fn larger(one: Vec<DeviceBytes>, other: Vec<DeviceBytes>) -> Vec<DeviceBytes> {
    let mut all = one;
    for need in other {
        match all.iter_mut().find(|known| known.uuid == need.uuid) {
            Some(known) => known.bytes = known.bytes.max(need.bytes),
            None => all.push(need),
        }
    }
    all
}

// Where NVML does not name the process: what became free is what it had.
fn fallen(before: &Reading, after: &Reading, most: &[DeviceBytes]) -> Vec<DeviceBytes> {
    let need = |need: &DeviceBytes| {
        let free = |reading: &Reading| reading.device(&need.uuid).map(|it| it.usage.free);
        let bytes = match (free(before), free(after)) {
            (Some(before), Some(after)) => after.saturating_sub(before).min(need.bytes),
            _ => need.bytes,
        };
        DeviceBytes { uuid: need.uuid.clone(), bytes }
    };
    most.iter().map(need).filter(|need| need.bytes > Bytes::ZERO).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_does_not_fit_in_host_memory_is_refused_with_both_numbers() {
        let need = |bytes| vec![DeviceBytes { uuid: "GPU-0".to_owned(), bytes }];
        check_host_memory(&need(Bytes::ZERO)).expect("nothing is copied");
        let needed = Bytes::gib(1 << 20);
        let refused = check_host_memory(&need(needed)).expect_err("no machine has as much");
        assert!(matches!(refused, Refusal::NoHostMemory { needed: asked, .. } if asked == needed));
    }
}
