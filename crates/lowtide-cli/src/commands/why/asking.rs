//! Asks a process by the first way that is open: through its agent, by the protocol of its Python, or with a debugger.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use lowtide_proto::{Answer, Ask, Status, question_script};
use serde_json::Value;

use super::inject;
use super::python::{self, Python};
use super::remote_exec::RemoteExec;
use super::target::Target;
use super::waiting::Waiting;
use crate::commands::agents;

/// The time after which other threads are asked where the main one has not answered.
const MAIN_LIMIT: Duration = Duration::from_secs(2);

/// How a process was made to answer: its name, and in words.
pub(super) type Way = (&'static str, &'static str);
const AGENT: Way = ("agent", "asked through its agent");
const REMOTE_EXEC: Way = ("remote-exec", "asked by Python's remote execution (PEP 768)");
const INJECT: Way = ("inject", "asked with a debugger");

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
        let Ok(python) = python::of(target.pid) else { bail!(target.not_permitted()) };
        Ok(Asking { target, status, python, injects, limit })
    }

    /// Asks, and returns the answer, or why nobody can give one.
    pub(super) fn ask(
        &self,
        package: &Path,
        request: &mut Value,
    ) -> anyhow::Result<Result<(Way, Value), String>> {
        let pid = self.target.pid;
        let Some(python) = &self.python else {
            return Ok(Err(format!(
                "process {pid} has no Python interpreter, so no objects can be asked"
            )));
        };
        let mut until = Instant::now() + self.limit;
        let waiting = Waiting::of(self.target)?;
        let mut stopped = Duration::ZERO;
        let (way, claimed) = if self.status.is_some() {
            match agents::ask_if_any(pid, Ask::Why)? {
                Some(Answer::Asked) => (AGENT, waiting.claimed(until)?),
                Some(Answer::Refused { reason }) => bail!("process {pid}: {reason}"),
                _ => bail!("process {pid} has an agent that does not know this question"),
            }
        } else {
            let mut remote = RemoteExec::open(self.target, python)?;
            ensure!(
                self.injects || remote.is_some(),
                "process {pid} has a Python before 3.14, which nobody can ask from outside without preparation: start \
                 it with `lowtide run`, or use `lowtide why {pid} --inject`, which stops it for a moment with a debugger"
            );
            let script = waiting.script(&question_script(&waiting.path()))?;
            let claimed = self.target.sees(&script).and_then(|()| {
                if let Some(remote) = &mut remote {
                    return remotely(remote, &waiting, &script, until);
                }
                stopped = inject::execute(self.target, python, package, &script, self.limit)?;
                // The time of the debugger is not the process's.
                until = Instant::now() + self.limit;
                waiting.claimed(until)
            });
            // Goes last: a thread that was asked looks for it.
            if remote.as_ref().is_none_or(RemoteExec::withdraw) {
                waiting.remove_script()?;
            }
            (if remote.is_some() { REMOTE_EXEC } else { INJECT }, claimed?)
        };
        let answer = claimed.map(|stream| waiting.answer(&stream, until, request)).transpose()?;
        let Some(mut answer) = answer.flatten() else {
            return Ok(Err(format!(
                "process {pid} did not answer in {} s: no thread of it had the interpreter's lock for long enough, or \
                 came to a safe point",
                self.limit.as_secs_f64()
            )));
        };
        if let Some(walk_s) = answer["longest_stop_s"].as_f64() {
            answer["longest_stop_s"] = walk_s.max(stopped.as_secs_f64()).into();
        }
        Ok(Ok((way, answer)))
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
