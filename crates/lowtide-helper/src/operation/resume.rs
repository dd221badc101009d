//! Bringing a process back to the device: waiting for room, then step by step.
//!
//! While nothing is free for it, a process that waits holds neither its devices nor the machine's locks:
//! others must be able to leave.

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{DeviceBytes, ProcessState, Refusal, Resume, Resumed, Step};
use lowtide_types::Bytes;

use crate::operation::journal::{Asked, Record};
use crate::operation::lock_table::{Exclusive, Operation};
use crate::operation::service::{Journaled, Service};
use crate::process::handle::ProcessHandle;
use crate::process::readings::{self, Reading};

/// The pause between two looks at the devices.
const PAUSE: Duration = Duration::from_millis(20);

/// The right to restore a process, for which there is room.
struct Admitted {
    state: ProcessState,
    needs: Vec<DeviceBytes>,
    reading: Option<Reading>,
    _exclusive: (Exclusive, Vec<File>),
}

impl Service {
    /// Brings a process back to the device.
    pub(crate) fn resume(
        &self,
        ask: &Resume,
        operation: &Arc<Operation>,
        deadline: Instant,
    ) -> Result<Resumed, Refusal> {
        let (target, pid) = (ask.target, ask.target.pid);
        let (process, began) = (self.find(target)?, Instant::now());
        process.check_moving()?;
        let room_until = began + Duration::from_millis(ask.wait_ms);
        let admitted = self.admit(&process, ask, operation, room_until, deadline)?;
        let waited_s = began.elapsed().as_secs_f64();
        let needs = admitted.needs.clone();
        let record = Record { target, asked: Asked::Resume, step: None, needs };
        let mut journaled = Journaled::new(self, operation, record);
        match admitted.state {
            ProcessState::Running => {
                self.journal.remove(target);
                let (steps, devices) = (Vec::new(), Vec::new());
                return Ok(Resumed { target, was_running: true, waited_s, steps, devices });
            }
            ProcessState::Checkpointed => {
                if let Err(refusal) = journaled.step(Step::Restore) {
                    self.check_restored(&mut journaled, refusal)?;
                }
            }
            // A restore that a killed helper began completes by itself.
            ProcessState::Locked => {}
            state => return Err(Refusal::WrongState { pid, state }),
        }
        journaled.bring_back()?;
        // It runs, whether its numbers can be read or not.
        let uuids: Vec<String> = admitted.needs.iter().map(|need| need.uuid.clone()).collect();
        let devices = match (&admitted.reading, Reading::now()) {
            (Some(before), Ok(after)) => before.changes(&after, pid, &uuids),
            _ => Vec::new(),
        };
        Ok(Resumed {
            target,
            was_running: false,
            waited_s,
            steps: journaled.times.clone(),
            devices,
        })
    }

    // Returns the refusal, unless the process is on the device all the same: the call failed after it did its
    // work, or somebody else restored the process.
    fn check_restored(
        &self,
        journaled: &mut Journaled<'_>,
        refusal: Refusal,
    ) -> Result<(), Refusal> {
        let target = journaled.record.target;
        match self.driver.state(target.pid) {
            Ok(ProcessState::Locked | ProcessState::Running) => return Ok(()),
            Ok(ProcessState::Checkpointed) => journaled.is_suspended(),
            Err(Refusal::Ended { .. }) => self.journal.remove(target),
            _ => {}
        }
        Err(refusal)
    }

    /// Waits until there is room for a process and for what it maps afterwards, up to a moment. A process that is
    /// not off the device needs none.
    fn admit(
        &self,
        process: &ProcessHandle,
        ask: &Resume,
        operation: &Arc<Operation>,
        room_until: Instant,
        deadline: Instant,
    ) -> Result<Admitted, Refusal> {
        let (target, pid) = (ask.target, ask.target.pid);
        // A process that is on the device comes back without a number of any device.
        let mut uuids = self.devices_of(target).unwrap_or_default();
        uuids.extend(ask.maps.iter().map(|need| need.uuid.clone()));
        loop {
            let exclusive = self.take(&uuids, operation, deadline)?;
            process.check_moving()?;
            let (state, reading) = (self.driver.state(pid)?, Reading::now());
            let mut needs = self.journal.needs_of(target);
            if needs.is_empty() {
                needs.clone_from(&ask.needs);
            }
            if state != ProcessState::Checkpointed {
                let reading = reading.ok();
                return Ok(Admitted { state, needs, reading, _exclusive: exclusive });
            }
            let reading = reading?;
            if needs.is_empty() {
                needs = reading.needs_of_stranger(process.resident());
            }
            let Some((device, needed, free)) = missing(&reading, &needs, &ask.maps) else {
                let reading = Some(reading);
                return Ok(Admitted { state, needs, reading, _exclusive: exclusive });
            };
            drop(exclusive);
            if Instant::now() >= room_until {
                let holders = readings::holders(&device);
                return Err(Refusal::NoRoom { device, needed, free, holders });
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Names a device without enough free memory, if there is one.
fn missing(
    reading: &Reading,
    needs: &[DeviceBytes],
    maps: &[DeviceBytes],
) -> Option<(String, Bytes, Bytes)> {
    reading.devices.iter().find_map(|device| {
        let of = |list: &[DeviceBytes]| -> Bytes {
            list.iter().filter(|need| need.uuid == device.uuid).map(|need| need.bytes).sum()
        };
        // More than the device has cannot become free: it was less, and the rest is a margin.
        let needed = (of(needs) + of(maps)).min(device.capacity());
        let free = device.usage.free;
        (free < needed).then(|| (device.uuid.clone(), needed, free))
    })
}
