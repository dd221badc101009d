//! Asks a process by the first way that is open: through its agent, by the protocol of its Python, or with a debugger.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use lowtide_proto::{Answer, Ask, Status, question_script};
use serde::Serialize;
use serde_json::Value;

use super::inject;
use super::python::{self, Python};
use super::remote_exec::RemoteExec;
use super::target::Target;
use super::waiting::{Answered, Waiting};
use crate::commands::agents;

/// The time after which other threads are asked where the main one has not answered.
const MAIN_LIMIT: Duration = Duration::from_secs(2);
/// The first minor version of Python 3 that has a protocol for debuggers.
const REMOTE_EXEC: u32 = 14;

/// How a process was made to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    Agent,
    RemoteExec,
    Inject,
}

impl Way {
    /// Returns the way in words.
    pub(super) fn text(self) -> &'static str {
        match self {
            Way::Agent => "asked through its agent",
            Way::RemoteExec => "asked by Python's remote execution (PEP 768)",
            Way::Inject => "asked with a debugger",
        }
    }
}

/// A process with the ways into it.
pub(super) struct Asking<'a> {
    target: &'a Target,
    /// What its agent says of it, if it has one.
    pub(super) status: Option<Status>,
    python: Option<Python>,
    /// Whether a debugger may be used.
    injects: bool,
    limit: Duration,
}

/// What came of a question.
pub(super) enum Outcome {
    Answered(Way, Answered),
    /// No thread of the process has the interpreter's lock in time.
    Busy,
    /// The process has no Python.
    NoPython,
}

impl<'a> Asking<'a> {
    /// Finds the ways into a process.
    pub(super) fn new(
        target: &'a Target,
        injects: bool,
        limit: Duration,
    ) -> anyhow::Result<Asking<'a>> {
        let status = match agents::ask_if_any(target.pid, Ask::Status)? {
            Some(Answer::Status(status)) => Some(status),
            _ => None,
        };
        ensure!(
            !status.as_ref().is_some_and(|status| status.is_suspended),
            "process {pid} is suspended; `lowtide resume {pid}` brings it back first",
            pid = target.pid
        );
        let Ok(python) = python::of(target.pid) else { bail!(target.not_permitted()) };
        Ok(Asking { target, status, python, injects, limit })
    }

    /// Asks, and waits for the answer. `request` is made for the time that is left then.
    pub(super) fn ask(&self, request: impl FnOnce(Duration) -> Value) -> anyhow::Result<Outcome> {
        let Some(python) = &self.python else { return Ok(Outcome::NoPython) };
        let until = Instant::now() + self.limit;
        let waiting = Waiting::of(self.target)?;
        let mut stopped = Duration::ZERO;
        let (way, claimed) = if self.status.is_some() {
            self.by_agent()?;
            (Way::Agent, waiting.claimed(until)?)
        } else {
            let remote = match python.minor {
                Some(minor) if minor < REMOTE_EXEC => None,
                _ => RemoteExec::open(self.target, python)?,
            };
            if remote.is_none() {
                self.may_inject(python)?;
            }
            let script = waiting.script(&question_script(&waiting.path()))?;
            let is_seen = self.target.sees(&script);
            let (way, claimed, is_left) = if let Some(mut remote) = remote {
                let claimed =
                    is_seen.and_then(|()| remotely(&mut remote, &waiting, &script, until));
                (Way::RemoteExec, claimed, !remote.withdraw())
            } else {
                let claimed = is_seen.and_then(|()| {
                    stopped = inject::execute(self.target, python, &script, until)?;
                    waiting.claimed(until.max(Instant::now() + MAIN_LIMIT))
                });
                (Way::Inject, claimed, false)
            };
            // Goes last: a thread that was asked looks for it.
            if !is_left {
                waiting.remove_script()?;
            }
            (way, claimed?)
        };
        let Some(stream) = claimed else { return Ok(Outcome::Busy) };
        let mut answered = waiting.answer(stream, until, request)?;
        let walk_s = answered.answer["longest_stop_s"].as_f64();
        if let Some(walk_s) = walk_s {
            answered.answer["longest_stop_s"] = walk_s.max(stopped.as_secs_f64()).into();
        }
        Ok(Outcome::Answered(way, answered))
    }

    fn by_agent(&self) -> anyhow::Result<()> {
        match agents::ask_if_any(self.target.pid, Ask::Why)? {
            Some(Answer::Asked) => Ok(()),
            Some(Answer::Refused { reason }) => bail!("process {}: {reason}", self.target.pid),
            _ => bail!("process {} has an agent that does not know this question", self.target.pid),
        }
    }

    fn may_inject(&self, python: &Python) -> anyhow::Result<()> {
        let pid = self.target.pid;
        let version = python.minor.map_or_else(String::new, |minor| format!(" 3.{minor}"));
        ensure!(
            self.injects,
            "process {pid} has Python{version}, which nobody can ask from outside without preparation: start it with \
             `lowtide run`, or use `lowtide why {pid} --inject`, which stops it for a moment with a debugger"
        );
        Ok(())
    }
}

/// Asks the main thread, and the others where it does not answer.
fn remotely(
    remote: &mut RemoteExec,
    waiting: &Waiting<'_>,
    script: &Path,
    until: Instant,
) -> anyhow::Result<Option<UnixStream>> {
    remote.ask_main(script)?;
    let claimed = waiting.claimed(until.min(Instant::now() + MAIN_LIMIT))?;
    if claimed.is_some() || Instant::now() > until {
        return Ok(claimed);
    }
    remote.ask_others(script)?;
    waiting.claimed(until)
}
