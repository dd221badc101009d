//! The floor: what a bare context costs on a device, measured by a disposable child and remembered.
//!
//! The driver's number is read before the child has a context, while it has one, and after it has
//! gone. Only where the first and the last agree did nobody else move, and the difference is the
//! child's. It depends on device and driver, so it is remembered for each.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use lowtide_device::nvml::Nvml;
use lowtide_device::survey::Surveyed;
use lowtide_device::{Bytes, DeviceId};
use lowtide_release::floor::{Floor, recall, remember};
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);
const TRIES: usize = 3;

/// What the child says, line by line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChildLine {
    /// It has a context, and nothing else.
    Ready,
    /// It could not get a context.
    Failed {
        /// Why.
        reason: String,
    },
    /// It has tried everything once.
    Tried {
        /// What went wrong, if anything did.
        failure: Option<String>,
    },
}

/// The floor of a GPU, remembered or measured now, and whether it was measured now.
pub(crate) fn of(
    device: &Surveyed,
    driver: &str,
    measure_anew: bool,
) -> anyhow::Result<(Floor, bool)> {
    let uuid = device.info.uuid.clone().context("a GPU without an identity")?;
    let mut remembered = recall();
    let known = remembered.iter().position(|floor| floor.uuid == uuid && floor.driver == driver);
    match known {
        // A trial that failed may go better today.
        Some(index) if !measure_anew && remembered[index].trial_failure.is_none() => {
            return Ok((remembered.swap_remove(index), false));
        }
        Some(index) => drop(remembered.swap_remove(index)),
        None => {}
    }
    let (bytes, trial_failure) = measure(device.info.id, &uuid)?;
    let measured_at_s =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let floor = Floor { uuid, driver: driver.to_owned(), bytes, measured_at_s, trial_failure };
    remembered.push(floor.clone());
    if let Err(error) = remember(&remembered) {
        anstream::eprintln!("lowtide: the floor could not be remembered: {error}");
    }
    Ok((floor, true))
}

fn measure(id: DeviceId, uuid: &str) -> anyhow::Result<(Bytes, Option<String>)> {
    let nvml = Nvml::load()?;
    for _ in 0..TRIES {
        let before = nvml.usage(uuid)?.in_use();
        let mut child = Disposable::start(id)?;
        match child.next_line()? {
            ChildLine::Ready => {}
            ChildLine::Failed { reason } => bail!("{reason}"),
            ChildLine::Tried { .. } => bail!("the child spoke out of turn"),
        }
        let with = nvml.usage(uuid)?.in_use();
        child.go_on()?;
        let ChildLine::Tried { failure } = child.next_line()? else {
            bail!("the child spoke out of turn")
        };
        child.finish();
        let after = nvml.usage(uuid)?.in_use();
        if before == after {
            return Ok((with.saturating_sub(before), failure));
        }
    }
    bail!(
        "other processes kept taking and giving device memory meanwhile; try again when it is quiet"
    )
}

/// The child, killed if it is still there when this goes.
struct Disposable {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Disposable {
    fn start(id: DeviceId) -> anyhow::Result<Disposable> {
        let program = env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .args(["floor-child", &id.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a child")?;
        let out = child.stdout.take().context("the child's output is piped")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Disposable { child, lines })
    }

    fn next_line(&mut self) -> anyhow::Result<ChildLine> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                serde_json::from_str(&line).with_context(|| format!("the child said {line:?}"))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the child did not answer within {} s", PATIENCE.as_secs())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().context("waiting for the child")?;
                bail!("the child that was to hold a context ended with {status}")
            }
        }
    }

    fn go_on(&mut self) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("the child's input is piped")?;
        stdin.write_all(b"\n").context("talking to the child")
    }

    // It has said everything; its output ends when it does. One that hangs is killed.
    fn finish(self) {
        let _ = self.lines.recv_timeout(PATIENCE);
    }
}

impl Drop for Disposable {
    fn drop(&mut self) {
        // Most often it is gone by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
