//! What all operations of a helper share: the driver, the locks, the journal.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{ProcessState, ProcessStatus, Refusal, Step, StepTime, Target};

use crate::operation::journal::{Asked, Journal, Record};
use crate::operation::lock_table::{Exclusive, LockTable, Operation, Resource};
use crate::operation::machine_locks::MachineLocks;
use crate::process::checkpoint::CheckpointDriver;
use crate::process::handle::{self, ProcessHandle};
use crate::process::readings::Reading;

/// What all operations of this helper share.
pub(crate) struct Service {
    pub(crate) driver: CheckpointDriver,
    pub(crate) lock_table: Arc<LockTable>,
    pub(crate) journal: Journal,
    pub(crate) machine: MachineLocks,
}

/// The steps of one operation, with the times that they took.
pub(crate) struct Journaled<'a> {
    service: &'a Service,
    operation: &'a Operation,
    pub(crate) record: Record,
    pub(crate) times: Vec<StepTime>,
}

impl<'a> Journaled<'a> {
    pub(crate) fn new(
        service: &'a Service,
        operation: &'a Operation,
        record: Record,
    ) -> Journaled<'a> {
        Journaled { service, operation, record, times: Vec::new() }
    }

    /// Writes a step down, then has the driver do it.
    pub(crate) fn step(&mut self, step: Step, lock_limit: Duration) -> Result<(), Refusal> {
        self.record.step = Some(step);
        self.service.journal.write(&self.record)?;
        self.operation.begin(step);
        let began = Instant::now();
        self.service.driver.take(step, self.record.target.pid, lock_limit)?;
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
            Err(_) if self.service.driver.state(target.pid) == Ok(ProcessState::Running) => {}
            Err(refusal) => return Err(refusal),
        }
        self.service.journal.remove(target);
        Ok(())
    }

    /// Writes down that the process is off the device.
    pub(crate) fn is_suspended(&mut self) -> Result<(), Refusal> {
        self.record = Record { asked: Asked::Suspend, step: None, ..self.record.clone() };
        self.service.journal.write(&self.record)
    }
}

impl Service {
    /// Waits until nobody else is at work on a process and its devices, up to a moment, and takes them: in this
    /// helper, and on this machine.
    pub(crate) fn take(
        &self,
        uuids: &[String],
        operation: &Arc<Operation>,
        deadline: Instant,
    ) -> Result<(Exclusive, Vec<File>), Refusal> {
        let pid = operation.target.pid;
        let resources = uuids.iter().cloned().map(Resource::Device).chain([Resource::Process(pid)]);
        let exclusive = self.lock_table.take(resources.collect(), operation, deadline)?;
        let locked = self.machine.take(uuids, deadline)?;
        if operation.is_left() { Err(Refusal::UnderWay { pid }) } else { Ok((exclusive, locked)) }
    }

    /// Returns the state of a process. A stopped one is not asked: the driver's call might hang.
    pub(crate) fn state(&self, target: Target) -> Result<ProcessStatus, Refusal> {
        ProcessHandle::find(target)?;
        let state = if handle::is_stopped(target.pid) {
            ProcessState::Unknown
        } else {
            self.driver.state(target.pid)?
        };
        let needs = match state {
            ProcessState::Running => Vec::new(),
            _ => self.journal.needs_of(target),
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
            if matches!(ProcessHandle::find(record.target), Err(Refusal::Ended { .. })) {
                self.journal.remove(record.target);
            }
        }
        !self.journal.all().is_empty()
    }

    /// Returns the devices that an operation on a process may be at work on: those that it is written down
    /// with, else those that it is on now.
    pub(crate) fn devices_of(&self, target: Target) -> Result<Vec<String>, Refusal> {
        let needs = self.journal.needs_of(target);
        if !needs.is_empty() {
            return Ok(needs.into_iter().map(|need| need.uuid).collect());
        }
        let reading = Reading::now()?;
        Ok(reading.devices_of(target.pid).into_iter().map(|device| device.uuid.clone()).collect())
    }
}
