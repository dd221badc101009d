//! The process that is asked: what it is, and what keeps anybody from asking it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{bail, ensure};
use lowtide_device::identity::{self, Identity};
use lowtide_device::private_files::effective_user;
use lowtide_device::yama::PtraceScope;
use lowtide_types::{kernel_text, printable};

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
        let field = |name| field_of(pid, name);
        ensure!(!field("State").starts_with(['Z', 'X']), "process {pid} has ended");
        if lowtide_helper::is_stopped(pid) {
            match field("TracerPid").as_str() {
                "0" | "" => bail!("process {pid} is stopped; `kill -CONT {pid}` lets it go on"),
                tracer => bail!("process {pid} is stopped by its debugger, process {tracer}"),
            }
        }
        if helper::suspended()?.iter().any(|one| one.pid == pid) {
            bail!("process {pid} is suspended; `lowtide resume {pid}` brings it back first");
        }
        let command = match identity::of_driver_pid(pid) {
            Identity::Known { command, .. } if !command.is_empty() => command,
            _ => "without a command line".to_owned(),
        };
        let command = printable(&command).chars().take(COMMAND_MOST).collect();
        Ok(Target { pid, command })
    }

    pub(super) fn is_there(&self) -> bool {
        fs::read(format!("/proc/{}/cmdline", self.pid)).is_ok_and(|words| !words.is_empty())
    }

    /// Returns the process that traces it; "0" if none does.
    pub(super) fn tracer(&self) -> String {
        field_of(self.pid, "TracerPid")
    }

    /// Refuses a process that a debugger has, which no other can have.
    pub(super) fn is_not_traced(&self) -> anyhow::Result<()> {
        let (pid, tracer) = (self.pid, self.tracer());
        ensure!(
            matches!(tracer.as_str(), "0" | ""),
            "a debugger is attached to process {pid} already: process {tracer}"
        );
        Ok(())
    }

    /// Refuses a process that does not see the same file at a path: one in a container.
    pub(super) fn sees(&self, path: &Path) -> anyhow::Result<()> {
        let pid = self.pid;
        let theirs =
            Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path));
        let of = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        ensure!(
            of(&theirs).ok() == of(path).ok(),
            "process {pid} is in a container, or has another root, and cannot read {}: run `lowtide why` there",
            path.display()
        );
        Ok(())
    }

    /// Returns what to do where the kernel does not let this process into the other one.
    pub(super) fn not_permitted(&self) -> String {
        let pid = self.pid;
        let first = format!("the kernel does not let lowtide look into process {pid}");
        match PtraceScope::now() {
            PtraceScope::Everybody => format!(
                "{first}; in a container it needs CAP_SYS_PTRACE (`docker run --cap-add SYS_PTRACE`), and the process \
                 may have forbidden it (PR_SET_DUMPABLE)"
            ),
            PtraceScope::Named | PtraceScope::Root => format!(
                "{first} (kernel.yama.ptrace_scope); `sudo sysctl kernel.yama.ptrace_scope=0` allows it until the next \
                 start of the machine, and a program that `lowtide run` started needs no leave"
            ),
            PtraceScope::Nobody => {
                format!("{first} until the machine starts again (kernel.yama.ptrace_scope is 3)")
            }
        }
    }
}

/// Returns a field of `/proc/PID/status`; nothing if it cannot be read.
fn field_of(pid: u32, name: &str) -> String {
    let status = kernel_text(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_default().trim().to_owned()
}
