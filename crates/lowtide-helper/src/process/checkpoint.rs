//! The driver's calls, as steps on a process.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lowtide_device::Error;
use lowtide_device::cuda::{CheckpointState, Driver};
use lowtide_device::yama::PtraceScope;
use lowtide_proto::helper::{ProcessState, Refusal, Step};

use crate::process::handle;

const NOT_INITIALIZED: i32 = 3;
const OPERATING_SYSTEM: i32 = 304;
const NOT_READY: i32 = 600;

/// The tries to ask for a state, and the pause between two.
const STATE_TRIES: usize = 3;
const STATE_PAUSE: Duration = Duration::from_millis(5);

/// The driver of this helper, initialised once. A failure is not kept: a driver may be installed later.
#[derive(Default)]
pub(crate) struct CheckpointDriver {
    driver: Mutex<Option<Arc<Driver>>>,
}

impl CheckpointDriver {
    /// Returns the driver, and loads it first if that was not done.
    pub(crate) fn driver(&self) -> Result<Arc<Driver>, Refusal> {
        let mut kept = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*kept {
            return Ok(Arc::clone(driver));
        }
        let no_driver = |error: Error| Refusal::NoDriver { why: error.to_string() };
        let driver = Arc::new(Driver::load().map_err(no_driver)?);
        driver.checkpoint().map_err(no_driver)?;
        *kept = Some(Arc::clone(&driver));
        Ok(driver)
    }

    /// Asks for the state of a process, again where the driver fails.
    pub(crate) fn state(&self, pid: u32) -> Result<ProcessState, Refusal> {
        for _ in 1..STATE_TRIES {
            match self.state_once(pid) {
                Err(Refusal::NoDriver { .. }) => thread::sleep(STATE_PAUSE),
                answer => return answer,
            }
        }
        self.state_once(pid)
    }

    fn state_once(&self, pid: u32) -> Result<ProcessState, Refusal> {
        match self.driver()?.process_state(pid) {
            Ok(CheckpointState::RUNNING) => Ok(ProcessState::Running),
            Ok(CheckpointState::LOCKED) => Ok(ProcessState::Locked),
            Ok(CheckpointState::CHECKPOINTED) => Ok(ProcessState::Checkpointed),
            Ok(CheckpointState::FAILED) => Ok(ProcessState::Failed),
            Ok(_) => Ok(ProcessState::Unknown),
            Err(error) => Err(refusal(pid, None, &error, ProcessState::Unknown)),
        }
    }

    /// Has the driver do one step.
    pub(crate) fn take(&self, step: Step, pid: u32, lock_limit: Duration) -> Result<(), Refusal> {
        let driver = self.driver()?;
        let done = match step {
            Step::Lock => driver.lock_process(pid, lock_limit),
            Step::Checkpoint => driver.checkpoint_process(pid),
            Step::Restore => driver.restore_process(pid),
            Step::Unlock => driver.unlock_process(pid),
        };
        done.map_err(|error| match error {
            Error::Driver { code: NOT_READY, .. } if step == Step::Lock => {
                Refusal::Busy { pid, limit_ms: lock_limit.as_millis() as u64 }
            }
            error => {
                let state = self.state(pid).unwrap_or(ProcessState::Unknown);
                refusal(pid, Some(step), &error, state)
            }
        })
    }
}

fn refusal(pid: u32, step: Option<Step>, error: &Error, state: ProcessState) -> Refusal {
    let Error::Driver { code, name, .. } = error else {
        return Refusal::NoDriver { why: error.to_string() };
    };
    match (*code, step) {
        (NOT_INITIALIZED | OPERATING_SYSTEM, _) if handle::is_ending(pid) => Refusal::Ended { pid },
        (NOT_INITIALIZED, _) => Refusal::NotOnDevice { pid },
        (OPERATING_SYSTEM, _) => {
            let why = handle::about_tracing(PtraceScope::now()).to_owned();
            Refusal::Forbidden { pid, why }
        }
        (code, Some(step)) => Refusal::Driver { pid, step, code, name: name.clone(), state },
        (_, None) => Refusal::NoDriver { why: error.to_string() },
    }
}
