//! The floor: the device memory that a bare context uses, measured in a child process and stored. Both processes
//! are here; the child writes one JSON line per step.
//!
//! The driver reports the memory of the child, so other processes may come and go meanwhile. Where it
//! does not (some containers), the device's number is read before the child has a context, while it has
//! one, and after it has ended. A process that allocated and freed in between would go unnoticed: such
//! a floor is uncertain, and is not stored. The floor depends on device and driver, so it is stored for
//! each pair.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use lowtide_device::digest::Keys;
use lowtide_device::nvml::Nvml;
use lowtide_device::survey::Surveyed;
use lowtide_device::{Bytes, Device, DeviceId, end_with_parent};
use lowtide_release::floor::{Floor, recall, remember};
use serde::{Deserialize, Serialize};

use crate::program::ending::Ending;
use crate::text::page;

const PATIENCE: Duration = Duration::from_secs(60);
const TRIES: usize = 3;

/// A line that the child writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChildLine {
    /// The child has a bare context.
    Ready,
    /// The child could not create a context.
    Failed {
        /// The driver's error, as text.
        reason: String,
    },
    /// The child has tried every operation once.
    Tried {
        /// The first failure, if there was one.
        failure: Option<String>,
    },
}

/// The number that a floor was taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FloorSource {
    /// The driver's number for the child.
    Process,
    /// The difference of the device's numbers: uncertain, since others use the device too.
    Difference,
}

/// The floor of a device as it is known now.
pub(crate) struct CurrentFloor {
    pub(crate) floor: Floor,
    pub(crate) from: FloorSource,
    /// True if it was measured just now.
    pub(crate) is_fresh: bool,
}

/// Returns the floor of a GPU, stored or measured now.
pub(crate) fn of(
    device: &Surveyed,
    driver: &str,
    measure_anew: bool,
) -> anyhow::Result<CurrentFloor> {
    let uuid = device.info.uuid.clone().context("this GPU has no UUID")?;
    let (mut remembered, mut unused) = match recall() {
        Ok(remembered) => (remembered, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let known = remembered.iter().position(|floor| floor.uuid == uuid && floor.driver == driver);
    if let Some(floor) = known.map(|index| remembered.swap_remove(index)) {
        unused = floor.on(device.info.total).err();
        // A trial that failed may succeed today.
        if unused.is_none() && !measure_anew && floor.trial_failure.is_none() {
            return Ok(CurrentFloor { floor, from: FloorSource::Process, is_fresh: false });
        }
    }
    let (bytes, from, trial_failure) = measure(device.info.id, &uuid)?;
    ensure!(!driver.is_empty(), "NVML does not report the version of the driver");
    let measured_at_s =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let floor = Floor { uuid, driver: driver.to_owned(), bytes, measured_at_s, trial_failure };
    floor.on(device.info.total).context("the measurement cannot be right")?;
    remembered.push(floor.clone());
    let stored = if from == FloorSource::Process { remember(&remembered) } else { Ok(()) };
    match (stored, unused) {
        (Err(error), _) => page::complain(&format!("the floor could not be stored: {error}")),
        (Ok(()), Some(error)) => {
            page::complain(&format!("the stored floor is not used: {error}"));
        }
        (Ok(()), None) => {}
    }
    Ok(CurrentFloor { floor, from, is_fresh: true })
}

fn measure(id: DeviceId, uuid: &str) -> anyhow::Result<(Bytes, FloorSource, Option<String>)> {
    let nvml = Nvml::load()?;
    for _ in 0..TRIES {
        let before = nvml.usage(uuid)?.in_use();
        let listed = nvml.processes(uuid)?;
        let mut child = FloorChild::start(id)?;
        let pid = child.child.id();
        match child.next_line()? {
            ChildLine::Ready => {}
            ChildLine::Failed { reason } => bail!("{reason}"),
            ChildLine::Tried { .. } => bail!("the child wrote a line out of order"),
        }
        let with = nvml.usage(uuid)?.in_use();
        // Inside a container the driver may report PIDs of another namespace. A process that had this
        // number before is not the child.
        let is_new = listed.iter().all(|process| process.pid != pid);
        let own = nvml.processes(uuid)?.into_iter().find(|process| is_new && process.pid == pid);
        let own = own.and_then(|child| child.used).filter(|used| *used > Bytes::ZERO);
        child.go_on()?;
        let ChildLine::Tried { failure } = child.next_line()? else {
            bail!("the child wrote a line out of order")
        };
        child.finish();
        if let Some(own) = own {
            return Ok((own, FloorSource::Process, failure));
        }
        let after = nvml.usage(uuid)?.in_use();
        if before == after {
            return Ok((with.saturating_sub(before), FloorSource::Difference, failure));
        }
    }
    bail!(
        "other processes allocated or freed device memory meanwhile; try again when the device is quiet"
    )
}

/// Starts a process with a bare context, tells its number, and ends it.
pub(crate) fn with_bare_process<T>(
    id: DeviceId,
    work: impl FnOnce(u32) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut child = FloorChild::start(id)?;
    match child.next_line()? {
        ChildLine::Ready => work(child.child.id()),
        ChildLine::Failed { reason } => bail!("{reason}"),
        ChildLine::Tried { .. } => bail!("the child wrote a line out of order"),
    }
}

/// The child process. It is killed if it still runs when this is dropped.
struct FloorChild {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl FloorChild {
    fn start(id: DeviceId) -> anyhow::Result<FloorChild> {
        let program = env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .args(["floor-child", &id.to_string(), "--parent", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a child")?;
        let out = child.stdout.take().context("the child's output is piped")?;
        let (sender, lines) = mpsc::channel();
        // Whatever fails from here on, the child is killed.
        let started = FloorChild { child, lines };
        let read = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .spawn(read)
            .context("starting a thread that reads from the child")?;
        Ok(started)
    }

    fn next_line(&mut self) -> anyhow::Result<ChildLine> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                serde_json::from_str(&line).with_context(|| format!("the child wrote {line:?}"))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the child did not answer within {} s", PATIENCE.as_secs())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().context("waiting for the child")?;
                bail!("the child that creates a context ended with {status}")
            }
        }
    }

    fn go_on(&mut self) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("the child's input is piped")?;
        stdin.write_all(b"\n").context("talking to the child")
    }

    // The child has nothing more to write: its output ends when it does. One that hangs is killed.
    fn finish(self) {
        let _ = self.lines.recv_timeout(PATIENCE);
    }
}

impl Drop for FloorChild {
    fn drop(&mut self) {
        // It has usually ended by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs in the child: holds a bare context until it is told to go on, then tries each operation once, so that
/// what `doctor` reports as working has been seen to work.
pub(super) fn run_child(id: DeviceId, parent: Option<u32>) -> anyhow::Result<Ending> {
    parent.map_or(Ok(()), end_with_parent)?;
    let device = match Device::open(id) {
        Ok(device) => device,
        Err(error) => {
            page::print_json_line(&ChildLine::Failed { reason: error.to_string() })?;
            return Ok(Ending::Proved);
        }
    };
    page::print_json_line(&ChildLine::Ready)?;
    io::stdin().lock().read_line(&mut String::new())?;
    let failure = trial(&device).err().map(|error| format!("{error:#}"));
    page::print_json_line(&ChildLine::Tried { failure })?;
    Ok(Ending::Proved)
}
// Reserves, creates, maps, fills, digests, and copies one page out and back.
fn trial(device: &Device) -> anyhow::Result<()> {
    let (start, page) = (Bytes::ZERO, device.info().page);
    let reservation = device.reserve(page)?;
    reservation.map(start, device.create(page)?)?;
    reservation.open(start, page)?;
    let (backup, stream, keys) =
        (device.host_memory(page)?, device.stream()?, Keys::of_this_process());
    stream.fill((&reservation, start), 0xa5, page)?;
    let before = stream.digest((&reservation, start), page, keys)?.wait()?;
    stream.copy_out((&reservation, start), (&backup, start), page)?;
    stream.fill((&reservation, start), 0, page)?;
    stream.copy_in((&backup, start), (&reservation, start), page)?;
    let after = stream.digest((&reservation, start), page, keys)?.wait()?;
    ensure!(before == after, "a page changed on its way to the host and back");
    let expected = keys.digest(&vec![0xa5; page.as_usize()]);
    ensure!(before == [expected], "the device and the host compute different digests of a page");
    Ok(())
}
