//! The process that is asked: what it is, and what keeps anybody from asking it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{bail, ensure};
use lowtide_device::identity::{self, Identity};
use lowtide_device::private_files::effective_user;
use lowtide_device::yama::PtraceScope;
use lowtide_helper::about_tracing;
use lowtide_types::{kernel_text, printable};

use super::python::seen_by;
use crate::commands::helper;

/// The most characters of a command line in a sentence.
const COMMAND_MOST: usize = 60;

/// A process that may be asked.
pub(super) struct Target {
    pub(super) pid: u32,
    /// Its command line, for people.
    pub(super) command: String,
}

impl Target {
    /// Looks a process up, and refuses one that could not answer, by its reason.
    pub(super) fn of(pid: u32) -> anyhow::Result<Target> {
        let Ok(found) = fs::metadata(format!("/proc/{pid}")) else {
            bail!("there is no process {pid}; `lowtide ps` lists those that use device memory");
        };
        let user = found.uid();
        ensure!(
            user == effective_user(),
            "process {pid} belongs to another user, who alone can ask it: `sudo -u '#{user}' lowtide why {pid}`"
        );
        let command = match identity::of_driver_pid(pid) {
            Identity::Known { command, .. } if !command.is_empty() => command,
            _ => "without a command line".to_owned(),
        };
        let command = printable(&command).chars().take(COMMAND_MOST).collect();
        let target = Target { pid, command };
        ensure!(target.is_there(), "process {pid} has ended");
        if lowtide_helper::is_stopped(pid) {
            match target.tracer() {
                None => bail!("process {pid} is stopped; `kill -CONT {pid}` lets it go on"),
                Some(tracer) => {
                    bail!("process {pid} is stopped by its debugger, process {tracer}")
                }
            }
        }
        if helper::suspended()?.iter().any(|one| one.pid == pid) {
            bail!("process {pid} is suspended; `lowtide resume {pid}` brings it back first");
        }
        Ok(target)
    }

    pub(super) fn is_there(&self) -> bool {
        !self.field("State").is_none_or(|state| state.starts_with(['Z', 'X']))
    }

    /// Returns the process that traces it.
    pub(super) fn tracer(&self) -> Option<u32> {
        self.field("TracerPid")?.parse().ok().filter(|tracer| *tracer != 0)
    }

    /// Returns a field of `/proc/PID/status`.
    fn field(&self, name: &str) -> Option<String> {
        let status = kernel_text(format!("/proc/{}/status", self.pid)).ok()?;
        let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Some(found?.trim().to_owned())
    }

    /// Refuses a process that does not see the same file at a path: one in a container.
    pub(super) fn sees(&self, path: &Path) -> anyhow::Result<()> {
        let pid = self.pid;
        let of = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        ensure!(
            of(&seen_by(pid, path)) == of(path),
            "process {pid} is in a container, or has another root, and cannot read {}: run `lowtide why` there",
            path.display()
        );
        Ok(())
    }

    /// Returns what to do where the kernel does not let this process into the other one.
    pub(super) fn not_permitted(&self) -> String {
        let (pid, why) = (self.pid, about_tracing(PtraceScope::now()));
        format!("the kernel does not let lowtide look into process {pid}: {why}")
    }
}
