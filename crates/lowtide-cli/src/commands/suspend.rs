//! `lowtide suspend` and `lowtide resume`: takes a process off the device and brings it back, by the helper.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use lowtide_proto::helper::{Answer, Ask, Connection, Refusal, Resume, Suspend, Target};
use lowtide_release::parse_time;

use crate::commands::{agents, answers, helper};
use crate::program::ending::Ending;
use crate::text::clock::since_1970;
use crate::text::page::{self, Page};

/// The time that a checkpoint or a restore may take: the driver copies about 2 GiB in a second.
const LIMIT: Duration = Duration::from_secs(900);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The process uses no device memory while it is suspended: its context leaves, too. It lives on, and \
                  waits in its next CUDA call until `lowtide resume`. The driver copies its device memory to host \
                  memory, at about 2 GiB/s. A program that was started with `lowtide run` sleeps first, which is \
                  faster, and comes back by itself at its next use of the device.\n\n\
                  A helper process of this user does it, with the driver's process checkpoint (driver 570 or newer, \
                  Linux). It is started if it does not run.\n\n\
                  Ends with 0 if the process is off the device by the driver's numbers, with 1 if that is not \
                  confirmed or the process was busy, with 3 if it cannot be suspended.\n\n\
                  Example:\n  lowtide suspend 4711 && lowtide ps && lowtide resume 4711"
)]
pub(crate) struct SuspendOptions {
    /// The number of a process of this user.
    #[arg(value_parser = agents::process)]
    pid: u32,
    /// How long to wait for the work that the process has on the device; then it runs on.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    lock_timeout: Duration,
    /// Suspend it although it uses NCCL or NVSHMEM. A checkpoint can hang while such a library communicates.
    /// Frameworks such as `PyTorch` load NCCL at their start, used or not.
    #[arg(long)]
    force: bool,
    /// Print the helper's answer as JSON; docs/json.md lists the keys.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The process comes back only if the memory that it needs is free; `lowtide ps` shows how much that is, \
                  and which processes use the device.\n\n\
                  Ends with 0 if the process runs, with 1 if there is no room for it (it stays suspended, and nothing \
                  is lost), with 3 if it cannot be resumed.\n\n\
                  Example:\n  lowtide resume 4711 --wait 5m"
)]
pub(crate) struct ResumeOptions {
    /// The number of a process that is suspended.
    #[arg(value_parser = agents::process)]
    pid: u32,
    /// How long to wait for room on the device.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    wait: Duration,
    /// Print the helper's answer as JSON; docs/json.md lists the keys.
    #[arg(long)]
    json: bool,
}

/// Takes a process off the device.
pub(crate) fn suspend(options: &SuspendOptions) -> anyhow::Result<Ending> {
    let target = target(options.pid)?;
    say_at_interrupt(options.pid)?;
    agents::warn_of_starting(options.pid);
    let question = lowtide_proto::Ask::Suspend;
    let at_s = since_1970();
    if let Some(answer) = agents::ask_if_any(options.pid, question)? {
        return answers::of_agent(options.pid, options.json, (question, at_s), answer);
    }
    let (lock_limit_ms, limit_ms) = (ms(options.lock_timeout), ms(LIMIT));
    let ask = Ask::Suspend(Suspend {
        target,
        lock_limit_ms,
        limit_ms,
        force: options.force,
        is_alone: false,
    });
    let answer = connect()?.ask(ask).context("suspending it")?;
    if options.json {
        page::print_json(&answer)?;
    }
    match answer {
        Answer::Suspended(suspended) => {
            if !options.json {
                let mut page = Page::default();
                answers::suspended(&mut page, &suspended);
                page.print()?;
            }
            Ok(answers::ending(suspended.verdict))
        }
        other => refused(other),
    }
}

/// Brings a process back to the device.
pub(crate) fn resume(options: &ResumeOptions) -> anyhow::Result<Ending> {
    let target = target(options.pid)?;
    say_at_interrupt(options.pid)?;
    agents::warn_of_starting(options.pid);
    let question = lowtide_proto::Ask::Resume;
    let at_s = since_1970();
    if let Some(answer) = agents::ask_if_any(options.pid, question)? {
        return answers::of_agent(options.pid, options.json, (question, at_s), answer);
    }
    let (maps, wait_ms, limit_ms) = (Vec::new(), ms(options.wait), ms(LIMIT));
    let ask = Ask::Resume(Resume { target, needs: Vec::new(), maps, wait_ms, limit_ms });
    let answer = connect()?.ask(ask).context("resuming it")?;
    if options.json {
        page::print_json(&answer)?;
    }
    match answer {
        Answer::Resumed(resumed) => {
            if !options.json {
                let mut page = Page::default();
                answers::resumed(&mut page, &resumed);
                page.print()?;
            }
            Ok(Ending::Proved)
        }
        other => refused(other),
    }
}

fn refused(answer: Answer) -> anyhow::Result<Ending> {
    let Answer::Refused { refusal } = answer else {
        bail!("the helper answered something else: {}", answer.to_line())
    };
    match refusal {
        Refusal::Busy { .. }
        | Refusal::UnderWay { .. }
        | Refusal::DeviceTaken { .. }
        | Refusal::MachineTaken { .. }
        | Refusal::Unfinished { .. }
        | Refusal::NoRoom { .. } => Ok(Ending::NotProved { what: refusal.to_string() }),
        refusal => Err(refusal.into()),
    }
}

/// Says at Ctrl-C that what was asked for goes on: nothing that the driver has begun is cancelled.
fn say_at_interrupt(pid: u32) -> anyhow::Result<()> {
    /// The code of a command that was interrupted.
    const INTERRUPTED: i32 = 130;
    let say = move || {
        page::complain(&format!(
            "interrupted; what was asked for goes on without this command: `lowtide status` shows process {pid}, and \
             `lowtide resume {pid}` brings it back"
        ));
        std::process::exit(INTERRUPTED);
    };
    ctrlc::set_handler(say).context("watching for Ctrl-C")
}

fn target(pid: u32) -> anyhow::Result<Target> {
    Target::of(pid).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("there is no process {pid}; `lowtide ps` lists them"),
        _ => anyhow!(error).context(format!("looking process {pid} up")),
    })
}

fn connect() -> anyhow::Result<Connection> {
    Ok(helper::of_user()?.connect()?)
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

fn time(text: &str) -> Result<Duration, String> {
    parse_time(text).ok_or_else(|| format!("{text:?} is not a time; write 500ms, 30s or 5m"))
}
