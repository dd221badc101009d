//! `lowtide status`, `sleep`, `wake` and `release`: asks the agents of running programs.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use lowtide_device::neighbours;
use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::{Ask as HelperAsk, Target};
use lowtide_proto::line::connect;
use lowtide_proto::{Answer, Ask, AskError, Question, SOCKET, Status, socket_name};
use lowtide_release::IdleOptions;
use lowtide_types::Bytes;
use serde::Serialize;

use crate::commands::answers;
use crate::commands::helper::{self, SuspendedProcess};
use crate::commands::queue;
use crate::commands::started::{self, Started};
use crate::program::ending::Ending;
use crate::text::clock::since_1970;
use crate::text::page::{self, Page, Refused};

/// The time in which a program answers that is not stopped, unless the machine is busy.
const SOON: Duration = Duration::from_millis(100);
/// What `status` says where there is nothing to list.
const NONE: &str =
    "no program of this user was started with `lowtide run`; `lowtide run -- COMMAND` starts one";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Programs that were started with `lowtide run` have an agent. Without a process, shows all of this \
                  user's, and of those that take turns (`run --share`) who has the room and who waits. Ends with 3 if the process that is named was not started so."
)]
pub(crate) struct StatusOptions {
    /// The number of a process.
    #[arg(value_parser = process)]
    pid: Option<u32>,
    /// Print JSON instead of text, a line for each process, and one for the turns that programs take.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The process: a program that was started with `lowtide run`.
    #[arg(value_parser = process)]
    pid: u32,
    /// Print the agent's answer as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --to the program sleeps, as by `lowtide sleep`. With --to it sleeps only if it uses more than \
                  that. Its memory comes back at its next use of the device.\n\n\
                  Example:\n  lowtide release 4711 --to 2GiB"
)]
pub(crate) struct ReleaseOptions {
    #[command(flatten)]
    process: Options,
    /// The most that the program may use afterwards, on each device: 500MiB, 2GiB. Counted by the driver,
    /// with the program's context.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    to: Option<Bytes>,
}

/// A program that `run` has started.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Program {
    /// Its agent has answered.
    Answered(Box<Status>),
    /// No agent has, because there is none yet, or it did not in time.
    Silent(Started),
}

impl Program {
    pub(super) fn pid(&self) -> u32 {
        match self {
            Program::Answered(status) => status.pid,
            Program::Silent(started) => started.pid,
        }
    }
}

/// Shows what programs that `run` has started have on their devices.
pub(crate) fn status(options: &StatusOptions) -> anyhow::Result<Ending> {
    let folder = PrivateFolder::of_user()?;
    let programs = match options.pid {
        Some(pid) => vec![program(&folder, pid)?],
        None => all(
            &folder,
            &mut HashSet::new(),
            |_| false,
            |pid, reason| {
                page::complain(&format!("process {pid} {reason}"));
            },
        )?,
    };
    let queue = if options.pid.is_none() { queue::of_user() } else { None };
    if options.json {
        for program in &programs {
            page::print_json_line(program)?;
        }
        if let Some(queue) = &queue {
            page::print_json_line(&serde_json::json!({ "queue": queue }))?;
        }
        if programs.is_empty() {
            page::print_json_line(&Refused::because(NONE))?;
        }
        return Ok(Ending::Proved);
    }
    let mut page = Page::default();
    let suspended = if options.pid.is_none() { suspended()? } else { Vec::new() };
    for process in &suspended {
        page.row(&format!("process {}", process.pid), &process.need());
    }
    if programs.is_empty() && suspended.is_empty() {
        page.line(NONE);
    }
    for program in &programs {
        match program {
            Program::Answered(agent) => describe(&mut page, agent, options.pid.is_some()),
            Program::Silent(started) => {
                title(&mut page, started.pid);
                page.row("state", &started.reason);
                page.blank();
            }
        }
    }
    if let Some(queue) = &queue {
        queue::describe(&mut page, queue);
    }
    page.print()?;
    Ok(Ending::Proved)
}

/// Returns the processes that are suspended. A helper that was killed has the next one finish what it began.
fn suspended() -> anyhow::Result<Vec<SuspendedProcess>> {
    let found = helper::suspended()?;
    if found.iter().any(|process| process.step.is_some()) {
        let asked =
            helper::of_user().and_then(|helper| Ok(helper.connect()?.ask(HelperAsk::List)?));
        if let Err(error) = asked {
            page::complain(&format!("what was begun cannot be finished: {error:#}"));
        }
        return helper::suspended();
    }
    Ok(found)
}

/// Puts a program to sleep.
pub(crate) fn sleep(options: &Options) -> anyhow::Result<Ending> {
    take(options, Ask::Sleep)
}

/// Frees memory of a program.
pub(crate) fn release(options: &ReleaseOptions) -> anyhow::Result<Ending> {
    take(&options.process, Ask::Release { to: options.to })
}

/// Wakes a program.
pub(crate) fn wake(options: &Options) -> anyhow::Result<Ending> {
    take(options, Ask::Wake)
}

/// Asks an agent for something that moves memory, and prints the answer.
fn take(options: &Options, question: Ask) -> anyhow::Result<Ending> {
    let pid = options.pid;
    warn_of_starting(pid);
    let at_s = since_1970();
    let answer = ask(&socket_of(&PrivateFolder::of_user()?, pid)?, pid, question)?;
    answers::of_agent(pid, options.json, (question, at_s), answer)
}

/// Says which program beside a process has just started: it may be measuring free memory, which a typed command
/// changes all the same. A process that NVML does not list may come to any GPU.
pub(super) fn warn_of_starting(pid: u32) {
    let options = IdleOptions::default().giving_way(|name| std::env::var(name).ok());
    let limit = options.unwrap_or_default().give_way;
    let others = neighbours::of(pid).or_else(|_| neighbours::on_all_gpus(pid));
    for other in others.unwrap_or_default().iter().filter(|other| other.age < limit) {
        page::complain(&format!(
            "{other}: if it is measuring free memory, what changes now confuses it"
        ));
    }
}

fn state_of(status: &Status) -> &'static str {
    match (status.is_suspended, status.is_asleep) {
        (true, _) => "suspended: nothing of it is on a device; the rest is as it was before",
        (false, true) => "asleep",
        (false, false) => "awake",
    }
}

/// Adds a process and its command line. Its end may have come meanwhile; a title without a command says enough.
fn title(page: &mut Page, pid: u32) {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    page.title(&format!("process {pid}"), &command);
}

fn describe(page: &mut Page, status: &Status, in_detail: bool) {
    title(page, status.pid);
    page.row("state", state_of(status));
    match status.idle_s {
        Some(idle_s) => {
            let quiet_s = status.quiet_s.filter(|quiet_s| *quiet_s > idle_s);
            let grown = quiet_s.map(|_| format!(" ({idle_s} s, and work came back soon)"));
            let (quiet_s, grown) = (quiet_s.unwrap_or(idle_s), grown.unwrap_or_default());
            let due = status.due_s.map(|due_s| {
                let unused_s = quiet_s - due_s;
                format!("; unused for {unused_s:.0} s, so in {due_s:.0} s")
            });
            let suspends = status.idle_to.as_deref() == Some("suspend");
            let what = if suspends { "is suspended" } else { "sleeps" };
            let due = due.unwrap_or_default();
            page.row(what, &format!("after {quiet_s} s without a use of the device{grown}{due}"));
        }
        None if status.shares => {}
        None => page.row("sleeps", "when `lowtide sleep` says so"),
    }
    if status.shares {
        page.row("sleeps", "when another program needs its room");
    }
    if let Some(gives_way) = &status.gives_way {
        page.row("gives way", gives_way);
    }
    if let Some(failed) = &status.failed {
        page.row("failed last", failed);
    }
    for context in &status.contexts {
        let (blocks, bytes, on_device) = (context.blocks, context.bytes, context.on_device);
        page.row(
            &context.device.to_string(),
            &format!("{blocks} allocations that can sleep, {bytes}; {on_device} on the device"),
        );
    }
    for limit in &status.limits {
        let (own, cap, told, free) = (limit.own, limit.cap, limit.told_free, limit.free);
        let life = limit.life.map(|life| format!(", {life} for its life")).unwrap_or_default();
        let kin = match limit.kin {
            Bytes::ZERO => String::new(),
            kin => format!(" and {kin} of other processes of its run,"),
        };
        let text = format!(
            "{own}{kin} of at most {cap} on {}{life}; it is told {told} free, the driver has {free}",
            limit.device
        );
        page.row("limit", &text);
    }
    for staying in &status.staying {
        let (what, count, bytes) = (&staying.what, staying.count, staying.bytes);
        page.row("stays", &format!("{what}: {bytes} in {count} allocations"));
    }
    for obstacle in &status.obstacles {
        page.row("cannot sleep", obstacle);
    }
    for ledger in status.ledgers.iter().filter(|_| in_detail) {
        page.row("ledger", &format!("all memory in use on {}", ledger.device));
        for line in ledger.to_string().lines() {
            page.line(line);
        }
    }
    page.blank();
}

/// Asks every agent of this user, all at once: one that does not answer keeps nobody waiting. A socket that nobody
/// serves any more is removed. `silent` has those that did not answer the last time, and then those that do not now:
/// these are asked only while they are not stopped, so that no questions pile up. `is_known` is true for processes that
/// need not be looked up. `complain` is told which does not answer, and why.
pub(super) fn all(
    folder: &PrivateFolder,
    silent: &mut HashSet<u32>,
    is_known: impl Fn(Target) -> bool,
    complain: impl Fn(u32, &str),
) -> anyhow::Result<Vec<Program>> {
    let (mut asked, mut found) = (Vec::new(), Vec::new());
    let before = std::mem::take(silent);
    let mut silent = |pid, why: &dyn Display| {
        let reason = format!("does not answer: {why:#}");
        complain(pid, &reason);
        silent.insert(pid);
        Program::Silent(Started { pid, agent: None, reason })
    };
    for name in folder.names()? {
        let Some(name) = name.to_str().filter(|name| name.starts_with(SOCKET)) else { continue };
        let Some(pid) = name.rsplit('-').next().and_then(|pid| pid.parse().ok()) else { continue };
        if before.contains(&pid) && lowtide_helper::is_stopped(pid) {
            found.push(silent(pid, &stopped(pid)));
            continue;
        }
        match Question::begin(&folder.path().join(name), Ask::Status) {
            Ok(question) => asked.push((pid, question)),
            // It ended without a word, as processes do.
            Err(AskError::NoAgent(why)) if why.kind() == ErrorKind::ConnectionRefused => {
                folder.remove(name)?;
            }
            Err(error) => found.push(silent(pid, &anyhow!(error))),
        }
    }
    let soon = Instant::now() + SOON;
    for (pid, question) in asked {
        if !question.waits_until(soon) && lowtide_helper::is_stopped(pid) {
            found.push(silent(pid, &stopped(pid)));
            continue;
        }
        found.push(match status_in(pid, question) {
            Ok(status) => Program::Answered(Box::new(status)),
            Err(error) => silent(pid, &error),
        });
    }
    let answered: HashSet<u32> = found.iter().map(Program::pid).collect();
    let is_known = |target: Target| answered.contains(&target.pid) && is_known(target);
    let mut others = started::all_but(folder, is_known)?;
    others.retain(|started| !answered.contains(&started.pid));
    found.extend(others.into_iter().map(Program::Silent));
    Ok(found)
}

fn stopped(pid: u32) -> String {
    format!("it is stopped; `kill -CONT {pid}` lets it go on")
}

/// Reads the number of a process.
pub(super) fn process(text: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    number.ok_or_else(|| {
        format!(
            "{text:?} is not the number of a process; `lowtide status` and `lowtide ps` list them"
        )
    })
}

fn status_in(pid: u32, question: Question) -> anyhow::Result<Status> {
    match question.answer().with_context(|| format!("asking process {pid}"))? {
        Answer::Status(status) => Ok(status),
        Answer::Refused { reason } => bail!("process {pid}: {reason}"),
        other => Err(answers::unexpected(&other)),
    }
}

/// Returns what a program that `run` has started says, as `status --json` prints it.
pub(super) fn program_of(pid: u32) -> anyhow::Result<impl Serialize> {
    program(&PrivateFolder::of_user()?, pid)
}

/// Asks one program; one that has no agent yet answers by its note.
fn program(folder: &PrivateFolder, pid: u32) -> anyhow::Result<Program> {
    let socket = socket_of(folder, pid)?;
    match started::of(folder, pid)? {
        Some(started) if !is_served(&socket) => Ok(Program::Silent(started)),
        _ => Ok(Program::Answered(Box::new(status_in(pid, begin(&socket, pid, Ask::Status)?)?))),
    }
}

fn socket_of(folder: &PrivateFolder, pid: u32) -> anyhow::Result<PathBuf> {
    let namespace =
        fs::read_link("/proc/self/ns/pid").context("reading this process's namespace")?;
    Ok(folder.path().join(socket_name(&namespace.to_string_lossy(), pid)))
}

/// Asks the agent of a process; `None` if the process has none.
pub(super) fn ask_if_any(pid: u32, question: Ask) -> anyhow::Result<Option<Answer>> {
    let socket = socket_of(&PrivateFolder::of_user()?, pid)?;
    if !is_served(&socket) {
        return Ok(None);
    }
    ask(&socket, pid, question).map(Some)
}

/// Returns whether somebody has a socket open, also who does not take connections now.
fn is_served(socket: &Path) -> bool {
    let is_nobody = |error: io::Error| {
        matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
    };
    !connect(socket).is_err_and(is_nobody)
}

fn ask(socket: &Path, pid: u32, ask: Ask) -> anyhow::Result<Answer> {
    begin(socket, pid, ask)?.answer().with_context(|| format!("asking process {pid}"))
}

fn begin(socket: &Path, pid: u32, ask: Ask) -> anyhow::Result<Question> {
    // It would answer once it goes on, which may be never.
    if lowtide_helper::is_stopped(pid) {
        bail!("process {pid} does not answer: {}", stopped(pid));
    }
    let begun = Question::begin(socket, ask);
    if let Err(AskError::NoAgent(source)) = &begun {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            bail!("there is no process {pid}; `lowtide status` lists the programs that can sleep");
        }
        let user_of = |process: &str| fs::metadata(format!("/proc/{process}")).map(|it| it.uid());
        if let (Ok(user), Ok(own)) = (user_of(&pid.to_string()), user_of("self"))
            && user != own
        {
            bail!(
                "process {pid} belongs to another user, who alone can ask it: `sudo -u '#{user}' lowtide status {pid}`"
            );
        }
        // No socket is the ordinary case, and the system's words for it add nothing.
        if source.kind() == ErrorKind::NotFound {
            if let Some(started) = started::of(&PrivateFolder::of_user()?, pid)? {
                bail!("process {pid} was started with `lowtide run`, but {}", started.reason);
            }
            bail!(
                "process {pid} has no agent, or has not used CUDA yet; only programs that \
                 `lowtide run` started have one (`lowtide status` lists them)"
            );
        }
    }
    begun.with_context(|| format!("asking process {pid}"))
}
