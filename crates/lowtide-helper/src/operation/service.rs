//! What all operations of a helper share: the driver, the locks, the journal.

use std::fs::File;
use std::sync::Arc;
use std::thread;
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

/// The tries to let a locked process go on, and the pause between two.
const UNLOCK_TRIES: usize = 5;
const UNLOCK_PAUSE: Duration = Duration::from_millis(20);

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
        // Room for a lock, a checkpoint, a restore and every unlock: the way back takes no memory.
        Journaled { service, operation, record, times: Vec::with_capacity(3 + UNLOCK_TRIES) }
    }

    /// Writes the process down, then has the driver lock it.
    pub(crate) fn lock(&mut self, limit: Duration) -> Result<(), Refusal> {
        self.record.step = Some(Step::Lock);
        self.service.journal.write(&self.record)?;
        self.take(Step::Lock, limit)
    }

    /// Notes a step on a process that is locked or off the device, and has the driver do it.
    pub(crate) fn step(&mut self, step: Step) -> Result<(), Refusal> {
        self.record.step = Some(step);
        self.service.journal.note(&self.record);
        self.take(step, Duration::ZERO)
    }

    fn take(&mut self, step: Step, lock_limit: Duration) -> Result<(), Refusal> {
        self.operation.begin(step);
        let began = Instant::now();
        self.service.driver.take(step, self.record.target.pid, lock_limit)?;
        self.times.push(StepTime { step, took_s: began.elapsed().as_secs_f64() });
        Ok(())
    }

    /// Lets a locked process go on, and forgets it. Its record stays if that fails, so that the next question
    /// or the next helper tries again. The driver is asked first, and everything else comes after it.
    ///
    /// # Errors
    /// [`Refusal::WrongState`]: the process does not run.
    pub(crate) fn bring_back(&mut self) -> Result<(), Refusal> {
        let target = self.record.target;
        for tried in 1.. {
            if let Ok(()) | Err(Refusal::Ended { .. }) = self.take(Step::Unlock, Duration::ZERO) {
                break;
            }
            let pid = target.pid;
            match self.service.driver.state(pid).unwrap_or(ProcessState::Unknown) {
                // Somebody else unlocked it; the driver's locks have no owner.
                ProcessState::Running => break,
                state if tried == UNLOCK_TRIES || state == ProcessState::Checkpointed => {
                    return Err(Refusal::WrongState { pid, state });
                }
                _ => thread::sleep(UNLOCK_PAUSE),
            }
        }
        self.service.journal.remove(target);
        Ok(())
    }

    /// Notes that the process is off the device.
    pub(crate) fn is_suspended(&mut self) {
        self.record.asked = Asked::Suspend;
        self.record.step = None;
        self.service.journal.note(&self.record);
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

    /// Finds a process of this user, or one that was when it was suspended: it may have become another user since.
    pub(crate) fn find(&self, target: Target) -> Result<ProcessHandle, Refusal> {
        if self.journal.all().iter().any(|record| record.target == target) {
            ProcessHandle::find_of_anybody(target)
        } else {
            ProcessHandle::find(target)
        }
    }

    /// Returns the state of a process. A stopped one is not asked: the driver's call might hang.
    pub(crate) fn state(&self, target: Target) -> Result<ProcessStatus, Refusal> {
        self.find(target)?;
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
            if matches!(self.find(record.target), Err(Refusal::Ended { .. })) {
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
