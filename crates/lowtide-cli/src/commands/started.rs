//! The programs that `lowtide run` has started, also those that have no agent at a socket.
//!
//! `run` leaves a file for each in the folder of this user's running programs. Its name has the PID namespace, the
//! PID and the start of the process, none of which an exec changes. Whoever lists them removes those that have ended.

use std::path::Path;
use std::time::Duration;
use std::{fs, process};

use anyhow::Context;
use lowtide_device::cuda::Driver;
use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::Target;
use serde::Serialize;

/// The beginning of the files' names.
const PREFIX: &str = "started-";
/// The age at which a file of another PID namespace goes: whether its program runs cannot be seen from here.
const FOREIGN_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// The most bytes of a reason.
const REASON_MOST: u64 = 1 << 16;

/// A program that `run` has started.
#[derive(Debug, Serialize)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    /// The version of its agent: none has answered.
    pub(crate) agent: Option<String>,
    /// Why there is nothing to free, or no answer.
    pub(crate) reason: String,
}

/// Notes that this process is about to become a program. Returns the name of the note. `reason` says why the program
/// has no agent, if so.
pub(super) fn note(folder: &PrivateFolder, reason: &str) -> anyhow::Result<String> {
    all_but(folder, |_| false)?;
    let target = Target::of(process::id())?;
    let name = of_this_namespace()? + &target.to_text();
    folder.replace(&name, reason.as_bytes())?;
    Ok(name)
}

/// Returns the programs that run but for those that are known to, and removes the notes of those that have ended.
pub(super) fn all_but(
    folder: &PrivateFolder,
    is_known: impl Fn(Target) -> bool,
) -> anyhow::Result<Vec<Started>> {
    let (own, mut found) = (of_this_namespace()?, Vec::new());
    for name in folder.names()? {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let target = name.strip_prefix(&own).and_then(|rest| rest.parse().ok());
        match target {
            Some(target) if is_known(target) => {}
            Some(target) if runs(target) => {
                let reason = folder.read(name, REASON_MOST)?.unwrap_or_default();
                let reason = String::from_utf8_lossy(&reason).into_owned();
                found.push(Started { pid: target.pid, agent: None, reason });
            }
            None if !is_old(&folder.path().join(name)) => {}
            _ => folder.remove(name)?,
        }
    }
    for started in found.iter_mut().filter(|started| started.reason.is_empty()) {
        started.reason = match Driver::find_library() {
            Ok(()) => "no CUDA call of it was seen yet, so there is nothing to free".to_owned(),
            Err(error) => format!("nothing of it can be freed here: {error}"),
        };
    }
    Ok(found)
}

/// Returns the program of this number, if `run` has started it.
pub(super) fn of(folder: &PrivateFolder, pid: u32) -> anyhow::Result<Option<Started>> {
    Ok(all_but(folder, |_| false)?.into_iter().find(|started| started.pid == pid))
}

fn runs(target: Target) -> bool {
    // One that has ended and was not waited for has no command line.
    let command = fs::read(format!("/proc/{}/cmdline", target.pid));
    Target::of(target.pid).is_ok_and(|now| now == target) && command.is_ok_and(|it| !it.is_empty())
}

fn is_old(path: &Path) -> bool {
    let written = fs::metadata(path).and_then(|file| file.modified());
    written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > FOREIGN_MOST))
}

fn of_this_namespace() -> anyhow::Result<String> {
    let namespace =
        fs::read_link("/proc/self/ns/pid").context("reading this process's namespace")?;
    let digits = namespace.to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
    Ok(format!("{PREFIX}{digits}-"))
}
