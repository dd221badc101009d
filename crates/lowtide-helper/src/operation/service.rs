//! Suspending and resuming a process, step by step.
//!
//! Each function runs in a thread of its own. It may take longer than its asker waits: then it is left alone
//! ([`Work::leave`]) and ends in a state that is right by itself: a process that was only locked is unlocked,
//! one that is off the device stays so, one that came back is unlocked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::headroom::HostHeadroom;
use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::{
    DeviceBytes, ProcessState, ProcessStatus, Refusal, Resume, Resumed, Step, StepTime, Suspend,
    Suspended, Target,
};
use lowtide_types::{Bytes, Verdict};

use crate::operation::admission as room;
use crate::operation::journal::{Asked, Journal, Record};
use crate::operation::lock_table::{Desk, Key, Work};
use crate::operation::machine_locks::MachineLocks;
use crate::process::checkpoint::Steps;
use crate::process::handle::{self as inspection, Found};
use crate::process::readings::{self as devices, Reading};

/// The time in which the driver's numbers follow a checkpoint.
const SETTLE: Duration = Duration::from_secs(2);
/// The pause between two readings.
const PAUSE: Duration = Duration::from_millis(5);

/// What all operations of this helper share.
pub(crate) struct Office {
    pub(crate) steps: Steps,
    pub(crate) desk: Arc<Desk>,
    pub(crate) journal: Journal,
    pub(crate) machine: MachineLocks,
    /// The folder of the results of trials.
    pub(crate) folder: PrivateFolder,
}

/// The steps of one operation, with the times that they took.
pub(crate) struct Doing<'a> {
    office: &'a Office,
    work: &'a Work,
    record: Record,
    pub(crate) times: Vec<StepTime>,
}

impl<'a> Doing<'a> {
    pub(crate) fn new(office: &'a Office, work: &'a Work, record: Record) -> Doing<'a> {
        Doing { office, work, record, times: Vec::new() }
    }

    /// Writes a step down, then has the driver do it.
    pub(crate) fn step(&mut self, step: Step, lock_limit: Duration) -> Result<(), Refusal> {
        self.record.step = Some(step);
        self.office.journal.write(&self.record)?;
        self.work.begin(step);
        let began = Instant::now();
        self.office.steps.take(step, self.record.target.pid, lock_limit)?;
        self.times.push(StepTime { step, took_s: began.elapsed().as_secs_f64() });
        Ok(())
    }

    /// Lets a locked process go on, and forgets it. Its record stays if that fails, so that the next helper
    /// tries again.
    pub(crate) fn bring_back(&mut self) -> Result<(), Refusal> {
        let target = self.record.target;
        match self.step(Step::Unlock, Duration::ZERO) {
            Ok(()) | Err(Refusal::Ended { .. }) => {}
            // Somebody else unlocked it; the driver's locks have no owner.
            Err(_) if self.office.steps.state(target.pid) == Ok(ProcessState::Running) => {}
            Err(refusal) => return Err(refusal),
        }
        self.office.journal.remove(target);
        Ok(())
    }

    /// Writes down that the process is off the device.
    pub(crate) fn is_suspended(&mut self) -> Result<(), Refusal> {
        self.record = Record { asked: Asked::Suspend, step: None, ..self.record.clone() };
        self.office.journal.write(&self.record)
    }
}

impl Office {
    /// Takes a process off the device.
    pub(crate) fn suspend(
        &self,
        ask: &Suspend,
        work: &Arc<Work>,
        deadline: Instant,
    ) -> Result<Suspended, Refusal> {
        let (target, pid) = (ask.target, ask.target.pid);
        let found = Found::find(target)?;
        found.check_suspendable(ask.force || ask.is_alone)?;
        let uuids = self.devices_of(target)?;
        devices::check_modes(pid, &uuids)?;
        if !ask.force {
            self.check_trial()?;
        }
        let _seat = self.desk.take(keys(pid, &uuids), work, deadline)?;
        let _locks = self.machine.take(&uuids, deadline)?;
        if work.is_left() {
            return Err(Refusal::UnderWay { pid });
        }
        // Another operation may have been at work on it meanwhile.
        found.check_suspendable(ask.force || ask.is_alone)?;
        let before = Reading::now()?;
        let record =
            Record { target, asked: Asked::Suspend, step: None, needs: before.needs_of(pid) };
        let mut doing = Doing::new(self, work, record);
        match self.steps.state(pid)? {
            ProcessState::Running => {
                check_host_memory(&doing.record.needs)?;
                let lock_limit = Duration::from_millis(ask.lock_limit_ms);
                let locked = doing.step(Step::Lock, lock_limit);
                if locked.is_err() && self.steps.state(pid) != Ok(ProcessState::Locked) {
                    // It runs, or has ended.
                    self.journal.remove(target);
                }
                locked?;
            }
            // Somebody began, and died: the driver's locks have no owner.
            ProcessState::Locked => {}
            ProcessState::Checkpointed => return self.suspended_already(target, &before),
            state => return Err(Refusal::WrongState { pid, state }),
        }
        if work.is_left() || found.check_moving().is_err() {
            doing.bring_back()?;
            return Err(found.check_moving().err().unwrap_or(Refusal::UnderWay { pid }));
        }
        // While it is locked its memory stands still: this is what it will need.
        let locked = Reading::now().inspect_err(|_| drop(doing.bring_back()))?;
        doing.record.needs = larger(doing.record.needs, locked.needs_of(pid));
        if let Err(refusal) = doing.step(Step::Checkpoint, Duration::ZERO) {
            return Err(self.after_refused_checkpoint(&mut doing, refusal));
        }
        self.proof(&mut doing, &locked, &uuids)
    }

    // A driver that refuses, for managed memory for example, leaves the process locked.
    fn after_refused_checkpoint(&self, doing: &mut Doing<'_>, refusal: Refusal) -> Refusal {
        let target = doing.record.target;
        match (refusal, self.steps.state(target.pid)) {
            (refusal @ Refusal::Ended { .. }, _) => {
                self.journal.remove(target);
                refusal
            }
            (Refusal::Driver { pid, step, code, name, .. }, _) => {
                let brought = doing.bring_back();
                let state = match brought {
                    Ok(()) => ProcessState::Running,
                    Err(_) => self.steps.state(pid).unwrap_or(ProcessState::Unknown),
                };
                Refusal::Driver { pid, step, code, name, state }
            }
            (refusal, _) => {
                let _brought = doing.bring_back();
                refusal
            }
        }
    }

    fn proof(
        &self,
        doing: &mut Doing<'_>,
        before: &Reading,
        uuids: &[String],
    ) -> Result<Suspended, Refusal> {
        let target = doing.record.target;
        let pid = target.pid;
        match self.steps.state(pid) {
            Ok(ProcessState::Checkpointed) => {}
            Ok(state) => return Err(Refusal::WrongState { pid, state }),
            Err(refusal) => {
                if matches!(refusal, Refusal::Ended { .. }) {
                    self.journal.remove(target);
                }
                return Err(refusal);
            }
        }
        // It is off the device by the driver's word. Without numbers that is not proved.
        let (mut after, end) = (Reading::now().ok(), Instant::now() + SETTLE);
        let verdict = |after: &Option<Reading>| {
            let judge = |after| before.verdict(after, pid, uuids);
            after.as_ref().map_or(Verdict::Unverified, judge)
        };
        while verdict(&after) != Verdict::Released && before.tells(pid) && Instant::now() < end {
            thread::sleep(PAUSE);
            after = Reading::now().ok();
        }
        if let Some(after) = after.as_ref().filter(|_| !before.tells(pid)) {
            doing.record.needs = fallen(before, after, &doing.record.needs);
        }
        doing.is_suspended()?;
        let verdict = verdict(&after);
        let after = after.unwrap_or_else(|| before.clone());
        Ok(Suspended {
            target,
            was_suspended: false,
            steps: doing.times.clone(),
            devices: before.changes(&after, pid, uuids),
            verdict,
            needs: doing.record.needs.clone(),
        })
    }

    fn suspended_already(&self, target: Target, now: &Reading) -> Result<Suspended, Refusal> {
        let record = self.journal.of(target).unwrap_or_else(|| {
            let needs = Vec::new();
            Record { target, asked: Asked::Suspend, step: None, needs }
        });
        let record = Record { asked: Asked::Suspend, step: None, ..record };
        self.journal.write(&record)?;
        let verdict = if now.lists(target.pid) { Verdict::Partial } else { Verdict::Released };
        Ok(Suspended {
            target,
            was_suspended: true,
            steps: Vec::new(),
            devices: Vec::new(),
            verdict,
            needs: record.needs,
        })
    }

    /// Brings a process back to the device.
    pub(crate) fn resume(
        &self,
        ask: &Resume,
        work: &Arc<Work>,
        deadline: Instant,
    ) -> Result<Resumed, Refusal> {
        let (target, pid) = (ask.target, ask.target.pid);
        let (found, began) = (Found::find(target)?, Instant::now());
        found.check_moving()?;
        let room_until = began + Duration::from_millis(ask.wait_ms);
        let admitted = room::wait(self, &found, ask, work, room_until, deadline)?;
        let waited_s = began.elapsed().as_secs_f64();
        let before = &admitted.reading;
        let needs = admitted.needs.clone();
        let record = Record { target, asked: Asked::Resume, step: None, needs };
        let mut doing = Doing::new(self, work, record);
        match admitted.state {
            ProcessState::Running => {
                self.journal.remove(target);
                let (steps, devices) = (Vec::new(), Vec::new());
                return Ok(Resumed { target, was_running: true, waited_s, steps, devices });
            }
            ProcessState::Checkpointed => {
                if let Err(refusal) = doing.step(Step::Restore, Duration::ZERO) {
                    return Err(self.after_refused_restore(&mut doing, refusal));
                }
            }
            // A restore that a killed helper began completes by itself.
            ProcessState::Locked => {}
            state => return Err(Refusal::WrongState { pid, state }),
        }
        doing.bring_back()?;
        // It runs, whether its numbers can be read or not.
        let after = Reading::now().unwrap_or_else(|_| before.clone());
        let uuids: Vec<String> = admitted.needs.iter().map(|need| need.uuid.clone()).collect();
        let devices = before.changes(&after, pid, &uuids);
        Ok(Resumed { target, was_running: false, waited_s, steps: doing.times.clone(), devices })
    }

    fn after_refused_restore(&self, doing: &mut Doing<'_>, refusal: Refusal) -> Refusal {
        let target = doing.record.target;
        match self.steps.state(target.pid) {
            Ok(ProcessState::Checkpointed) => {
                let _written = doing.is_suspended();
            }
            // Somebody else restored it: the driver's locks have no owner.
            Ok(ProcessState::Locked) => {
                let _brought = doing.bring_back();
            }
            Err(Refusal::Ended { .. }) => self.journal.remove(target),
            _ => {}
        }
        refusal
    }

    /// Returns the state of a process. A stopped one is not asked: the driver's call might hang.
    pub(crate) fn state(&self, target: Target) -> Result<ProcessStatus, Refusal> {
        Found::find(target)?;
        let state = if inspection::is_stopped(target.pid) {
            ProcessState::Unknown
        } else {
            self.steps.state(target.pid)?
        };
        let needs = match state {
            ProcessState::Running => Vec::new(),
            _ => self.journal.of(target).map(|record| record.needs).unwrap_or_default(),
        };
        Ok(ProcessStatus { target, state, needs })
    }

    /// Lists the processes that are suspended or on their way, and forgets those that have ended.
    pub(crate) fn list(&self) -> Vec<ProcessStatus> {
        let mut list = Vec::new();
        for record in self.journal.all() {
            match self.state(record.target) {
                Ok(status) => list.push(status),
                Err(Refusal::Ended { .. }) => self.journal.remove(record.target),
                Err(_) => {
                    let (target, needs) = (record.target, record.needs);
                    list.push(ProcessStatus { target, state: ProcessState::Unknown, needs });
                }
            }
        }
        list
    }

    /// Forgets the processes that have ended. Returns whether anybody is suspended or on the way. Asks the
    /// kernel only: the driver may be at work.
    pub(crate) fn has_records(&self) -> bool {
        for record in self.journal.all() {
            if matches!(Found::find(record.target), Err(Refusal::Ended { .. })) {
                self.journal.remove(record.target);
            }
        }
        !self.journal.all().is_empty()
    }

    /// Returns the devices that an operation on a process may be at work on: those that it is written down
    /// with, else those that it is on now.
    pub(crate) fn devices_of(&self, target: Target) -> Result<Vec<String>, Refusal> {
        let needs = self.journal.of(target).map(|record| record.needs).unwrap_or_default();
        if !needs.is_empty() {
            return Ok(needs.into_iter().map(|need| need.uuid).collect());
        }
        let reading = Reading::now()?;
        Ok(reading.devices_of(target.pid).into_iter().map(|device| device.uuid.clone()).collect())
    }
}

/// Returns the keys of an operation on a process and devices.
pub(crate) fn keys(pid: u32, uuids: &[String]) -> BTreeSet<Key> {
    uuids.iter().cloned().map(Key::Device).chain([Key::Process(pid)]).collect()
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
        assert!(matches!(refused, Refusal::NoHostMemory { needed: told, .. } if told == needed));
    }
}
