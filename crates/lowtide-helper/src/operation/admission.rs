//! Whether a process may come back to the device, and waiting for that.
//!
//! While nothing is free for it, a process that waits holds neither its devices nor the machine's locks:
//! others must be able to leave.

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{DeviceBytes, ProcessState, Refusal, Resume};
use lowtide_types::Bytes;

use crate::operation::lock_table::{Seat, Work};
use crate::operation::service::{Office, keys};
use crate::process::handle::Found;
use crate::process::readings::{self as devices, Reading};

/// The pause between two looks at the devices.
const PAUSE: Duration = Duration::from_millis(20);

/// The right to restore a process, for which there is room.
pub(crate) struct Admitted {
    pub(crate) state: ProcessState,
    pub(crate) needs: Vec<DeviceBytes>,
    pub(crate) reading: Reading,
    _seat: Seat,
    _locks: Vec<File>,
}

/// Waits until there is room for a process and for what it maps afterwards, up to a moment. A process that is
/// not off the device needs none.
pub(crate) fn wait(
    office: &Office,
    found: &Found,
    ask: &Resume,
    work: &Arc<Work>,
    room_until: Instant,
    deadline: Instant,
) -> Result<Admitted, Refusal> {
    let (target, pid) = (ask.target, ask.target.pid);
    let mut uuids = office.devices_of(target)?;
    uuids.extend(ask.maps.iter().map(|need| need.uuid.clone()));
    loop {
        let seat = office.desk.take(keys(pid, &uuids), work, deadline)?;
        let locks = office.machine.take(&uuids, deadline)?;
        if work.is_left() {
            return Err(Refusal::UnderWay { pid });
        }
        found.check_moving()?;
        let (state, reading) = (office.steps.state(pid)?, Reading::now()?);
        let recorded = office.journal.of(target).map(|record| record.needs);
        let needs = recorded
            .filter(|needs| !needs.is_empty())
            .unwrap_or_else(|| reading.needs_of_stranger(found.resident()));
        match missing(&reading, &needs, &ask.maps) {
            Some(no_room) if state == ProcessState::Checkpointed => {
                drop((seat, locks));
                if Instant::now() >= room_until {
                    return Err(no_room.refusal());
                }
            }
            _ => return Ok(Admitted { state, needs, reading, _seat: seat, _locks: locks }),
        }
        thread::sleep(PAUSE);
    }
}

/// A device without enough free memory.
struct Missing {
    uuid: String,
    needed: Bytes,
    free: Bytes,
}

impl Missing {
    fn refusal(self) -> Refusal {
        let holders = devices::holders(&self.uuid);
        Refusal::NoRoom { device: self.uuid, needed: self.needed, free: self.free, holders }
    }
}

fn missing(reading: &Reading, needs: &[DeviceBytes], maps: &[DeviceBytes]) -> Option<Missing> {
    reading.devices.iter().find_map(|device| {
        let of = |list: &[DeviceBytes]| -> Bytes {
            list.iter().filter(|need| need.uuid == device.uuid).map(|need| need.bytes).sum()
        };
        // More than the device has cannot become free: it was less, and the rest is a margin.
        let needed = (of(needs) + of(maps)).min(device.capacity());
        let free = device.usage.free;
        (free < needed).then(|| Missing { uuid: device.uuid.clone(), needed, free })
    })
}
