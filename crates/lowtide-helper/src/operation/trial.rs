//! Whether this driver suspends processes at all, found out on a disposable one and remembered.
//!
//! A driver that fails here would fail with a program that somebody needs. The result is kept by the driver's
//! version in the folder of the user's agents, until the machine is started again. A file that cannot be
//! used, because it belongs to somebody else or is damaged, says nothing.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::nvml::Nvml;
use lowtide_device::private_files::{PrivateFileError, PrivateFolder};
use lowtide_device::{Device, DeviceId, end_with_parent};
use lowtide_proto::helper::{Refusal, Resume, Suspend, Target, Trial};

use crate::operation::lock_table::Operation;
use crate::operation::service::Service;

/// The name of the file.
const FILE: &str = "suspend-trials.json";
/// The most bytes that it has.
const MOST: u64 = 1 << 16;
/// The most results that are kept.
const KEPT: usize = 8;
/// The argument that makes this program the disposable process.
pub(crate) const ROLE: &str = "--disposable";
/// The time in which the disposable process gets its context.
const CONTEXT_LIMIT: Duration = Duration::from_secs(20);
/// The time for each of the driver's steps.
const STEP_LIMIT_MS: u64 = 10_000;

/// Reads what is remembered about a driver; `None` if nothing is, or if the file cannot be used.
pub fn recall(folder: &PrivateFolder, driver: &str) -> Option<Trial> {
    all(folder).into_iter().find(|trial| trial.driver == driver)
}

/// Remembers a result, in the place of an earlier one of the same driver.
///
/// # Errors
/// Those of the folder and of the file.
pub fn remember(folder: &PrivateFolder, trial: &Trial) -> Result<(), PrivateFileError> {
    let mut kept = all(folder);
    kept.retain(|other| other.driver != trial.driver);
    kept.insert(0, trial.clone());
    kept.truncate(KEPT);
    // Plain data: there is nothing that JSON could not hold.
    folder.replace(FILE, &serde_json::to_vec(&kept).unwrap_or_default())
}

fn all(folder: &PrivateFolder) -> Vec<Trial> {
    let bytes = folder.read(FILE, MOST).ok().flatten().unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Returns whether a refusal says something about the driver, and not about this moment or this user.
pub fn is_about_driver(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Driver { .. } | Refusal::WrongState { .. } | Refusal::Unfinished { .. }
    )
}

impl Service {
    /// Refuses if a trial with this driver failed. A driver that was never tried may be used.
    pub(crate) fn check_trial(&self) -> Result<(), Refusal> {
        let folder = self.journal.folder.as_ref().ok();
        match driver_version().ok().and_then(|driver| recall(folder?, &driver)) {
            Some(Trial { driver, failure: Some(why) }) => Err(Refusal::Tried { driver, why }),
            _ => Ok(()),
        }
    }

    /// Suspends a disposable process and brings it back, unless the result of that is known.
    pub(crate) fn try_driver(&self, deadline: Instant) -> Result<Trial, Refusal> {
        let driver = driver_version()?;
        let folder = self.journal.folder.as_ref().ok();
        if let Some(known) = folder.and_then(|folder| recall(folder, &driver)) {
            return Ok(known);
        }
        let failure = match self.attempt(deadline) {
            Ok(()) => None,
            Err(refusal) if is_about_driver(&refusal) => Some(refusal.to_string()),
            // It may be otherwise the next time.
            Err(refusal) => return Err(refusal),
        };
        let trial = Trial { driver, failure };
        if let Some(Err(error)) = folder.map(|folder| remember(folder, &trial)) {
            tracing::warn!(%error, "the result of a trial is not remembered");
        }
        Ok(trial)
    }

    fn attempt(&self, deadline: Instant) -> Result<(), Refusal> {
        let disposable = Disposable::start()?;
        let target = disposable.target;
        let (lock_limit_ms, limit_ms) = (STEP_LIMIT_MS, STEP_LIMIT_MS);
        let ask = Suspend { target, lock_limit_ms, limit_ms, force: true, is_alone: true };
        self.suspend(&ask, &Operation::new(target), deadline)?;
        let ask = Resume {
            target,
            needs: Vec::new(),
            maps: Vec::new(),
            wait_ms: STEP_LIMIT_MS,
            limit_ms,
        };
        self.resume(&ask, &Operation::new(target), deadline)?;
        drop(disposable);
        self.journal.remove(target);
        Ok(())
    }
}

fn driver_version() -> Result<String, Refusal> {
    let version = Nvml::kept().and_then(|nvml| nvml.driver_version());
    version.map_err(|error| Refusal::NoDriver { why: error.to_string() })
}

/// A process with a bare context. It is killed when this is dropped.
struct Disposable {
    child: Child,
    target: Target,
}

impl Disposable {
    fn start() -> Result<Disposable, Refusal> {
        let broken = |why: String| Refusal::Broken { why: format!("a disposable process: {why}") };
        let program = env::current_exe().map_err(|error| broken(error.to_string()))?;
        let mut command = Command::new(program);
        command.args([ROLE, &std::process::id().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| broken(error.to_string()))?;
        let out = child.stdout.take();
        // From here on it is killed, whatever happens.
        let target = Target { pid: child.id(), start_ticks: 0 };
        let mut started = Disposable { child, target };
        let (sender, line) = mpsc::channel();
        let read = move || {
            let mut line = String::new();
            let _read = out.map(|out| BufReader::new(out.take(4096)).read_line(&mut line));
            let _sent = sender.send(line);
        };
        let reader = thread::Builder::new().spawn(read);
        reader.map_err(|error| broken(error.to_string()))?;
        match line.recv_timeout(CONTEXT_LIMIT).as_deref().map(str::trim) {
            Ok("ready") => {}
            Ok(why) => return Err(broken(why.to_owned())),
            Err(_) => return Err(broken(format!("no context within {CONTEXT_LIMIT:?}"))),
        }
        started.target =
            Target::of(started.target.pid).map_err(|error| broken(error.to_string()))?;
        Ok(started)
    }
}

impl Drop for Disposable {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Plays the disposable process: makes a context, says so, and waits for its end.
pub(crate) fn play(parent: &str) {
    let mut out = std::io::stdout();
    let ready = parent.parse().map_err(|_| "no parent".to_owned()).and_then(|parent| {
        end_with_parent(parent).map_err(|error| error.to_string())?;
        Device::open(DeviceId::Cuda(0)).map_err(|error| error.to_string())
    });
    let line = ready.as_ref().map_or_else(Clone::clone, |_| "ready".to_owned());
    let _said = writeln!(out, "{line}").and_then(|()| out.flush());
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    drop(ready);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_by_driver_and_a_file_that_is_none_says_nothing() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("own");
        let folder = PrivateFolder::create(&path).expect("a folder");
        let trial = |driver: &str, failure: Option<&str>| Trial {
            driver: driver.to_owned(),
            failure: failure.map(str::to_owned),
        };
        assert_eq!(recall(&folder, "580.1"), None);
        let (good, bad) = (trial("580.1", None), trial("590.2", Some("it hangs")));
        remember(&folder, &bad).expect("written");
        remember(&folder, &good).expect("written");
        assert_eq!(recall(&folder, "580.1"), Some(good));
        assert_eq!(recall(&folder, "590.2"), Some(bad));
        let better = trial("590.2", None);
        remember(&folder, &better).expect("written");
        assert_eq!(recall(&folder, "590.2"), Some(better), "the last one counts");
        for number in 0..20 {
            remember(&folder, &trial(&format!("600.{number}"), None)).expect("written");
        }
        assert_eq!((all(&folder).len(), recall(&folder, "580.1")), (KEPT, None));
        std::fs::write(path.join(FILE), "[{").expect("written");
        assert_eq!(all(&folder), [], "damaged");
        std::fs::remove_file(path.join(FILE)).expect("it is there");
        std::os::unix::fs::symlink("/etc/passwd", path.join(FILE)).expect("a link");
        assert_eq!(all(&folder), [], "no link is followed");
    }
}
