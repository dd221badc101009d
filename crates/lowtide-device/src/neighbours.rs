//! Other processes on the GPUs of a process, and how old they are.
//!
//! A program that starts may compute what it uses from the fall of the free number. So whoever changes
//! that number by itself looks here first.
#![allow(unsafe_code, reason = "reads the clock that counts from the boot")]

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::identity::{self, Identity};
use crate::nvml::Nvml;
use crate::os::process::start_ticks;
use crate::{Error, Result};

/// The name of the helper's processes. They measure nothing, and are on a device for a moment only.
const HELPER: &str = "lowtide-helper";
/// The kernel's clock ticks in a second, as it reports them to programs.
const TICKS_A_SECOND: u64 = 100;

/// Another process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The PID.
    pub pid: u32,
    /// The time of its start since the boot, in clock ticks: with the PID, no other process.
    pub start_ticks: u64,
    /// The name of its program, for people.
    pub name: String,
    /// The time since its start.
    pub age: Duration,
}

/// Prints a part of a sentence: `python3 (pid 77) started 12 s ago`.
impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Neighbour { pid, name, age, .. } = self;
        write!(f, "{name} (pid {pid}) started {} s ago", age.as_secs())
    }
}

/// Returns the other processes on every GPU on which this one is, youngest first. Children of this process
/// are others: an engine computes the same wherever it was started. Asks NVML, and creates no context.
///
/// # Errors
/// Where NVML cannot be asked, or does not list this process, which is on a GPU: then it reports PIDs of
/// another namespace, or none.
pub fn of(pid: u32) -> Result<Vec<Neighbour>> {
    on_gpus(pid, false)
}

/// Returns the other processes on all GPUs of this machine, youngest first.
///
/// # Errors
/// Where NVML cannot be asked.
pub fn on_all_gpus(pid: u32) -> Result<Vec<Neighbour>> {
    on_gpus(pid, true)
}

fn on_gpus(pid: u32, everywhere: bool) -> Result<Vec<Neighbour>> {
    let (nvml, mut pids) = (Nvml::kept()?, BTreeSet::new());
    for uuid in nvml.uuids()? {
        let here = nvml.processes(&uuid)?;
        if everywhere || here.iter().any(|process| process.pid == pid) {
            pids.extend(here.into_iter().map(|process| process.pid));
        }
    }
    if !pids.remove(&pid) && !everywhere {
        let answer = format!("process {pid} is not in NVML's lists, as in some containers");
        return Err(Error::Nvml { question: "the processes beside this one", answer });
    }
    let now = since_boot();
    let mut found: Vec<_> = pids.into_iter().filter_map(|pid| neighbour(pid, now)).collect();
    found.sort_by_key(|neighbour| neighbour.age);
    Ok(found)
}

/// Returns a process by the driver's PID; `None` if it has ended, cannot be seen, or is the helper.
fn neighbour(pid: u32, now: Duration) -> Option<Neighbour> {
    let Identity::Known { name, .. } = identity::of_driver_pid(pid) else { return None };
    let start_ticks = start_ticks(&pid.to_string()).ok().filter(|_| name != HELPER)?;
    let started = Duration::from_millis(start_ticks.saturating_mul(1000 / TICKS_A_SECOND));
    Some(Neighbour { pid, start_ticks, name, age: now.saturating_sub(started) })
}

/// Returns the time since the boot, the time in which the machine was suspended included. `/proc/uptime` may
/// be a container's own.
fn since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the value of ours. Linux has had this clock since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_as_old_as_its_start_says() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let now = since_boot();
        let young = neighbour(child.id(), now);
        let later = neighbour(child.id(), now + Duration::from_secs(500));
        child.kill().unwrap();
        child.wait().unwrap();
        // In a container a PID without an open device is not believed.
        let Some((young, later)) = young.zip(later) else { return };
        assert_eq!((young.pid, young.start_ticks), (child.id(), later.start_ticks));
        assert_eq!(young.age + Duration::from_secs(500), later.age);
        assert_eq!(neighbour(child.id(), now), None, "it has ended");
    }
}
