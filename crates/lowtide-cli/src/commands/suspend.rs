//! `lowtide suspend` and `lowtide resume`: takes a process off the device and brings it back, by the helper.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use lowtide_proto::helper::{
    Answer, Ask, Connection, DeviceChange, Refusal, Resume, Resumed, StepTime, Suspend, Suspended,
    Target,
};
use lowtide_release::parse_time;
use lowtide_types::{Bytes, Verdict};

use crate::commands::{agents, helper};
use crate::program::ending::Ending;
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
    if let Some(answer) = agents::ask_if_any(options.pid, lowtide_proto::Ask::Suspend)? {
        return told_by_agent(options.pid, options.json, answer);
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
                receipt(&suspended).print()?;
            }
            Ok(ending(suspended.verdict))
        }
        other => refused(other),
    }
}

/// Says what the agent of a program answered. It put the program to sleep before it asked the helper, and a
/// program that comes back sleeps on.
fn told_by_agent(pid: u32, json: bool, answer: lowtide_proto::Answer) -> anyhow::Result<Ending> {
    use lowtide_proto::Answer as Agent;
    if json {
        page::print_json(&answer)?;
    }
    let say = |page: Page| if json { Ok(()) } else { page.print().map(drop) };
    let line = |text: String| {
        let mut page = Page::default();
        page.line(&text);
        say(page)
    };
    match answer {
        Agent::Suspended { receipts, suspended } => {
            if !json {
                agents::print_receipts(&receipts)?;
            }
            say(receipt(&suspended))?;
            Ok(ending(suspended.verdict))
        }
        Agent::Asleep => {
            line(format!("process {pid} is suspended already"))?;
            Ok(Ending::Proved)
        }
        Agent::Slept { receipts } => {
            if !json {
                agents::print_receipts(&receipts)?;
            }
            Ok(Ending::NotProved { what: "the program did not fall asleep".to_owned() })
        }
        Agent::Resumed(resumed) if resumed.steps.is_empty() => {
            line(format!("process {pid} was not suspended"))?;
            Ok(Ending::Proved)
        }
        Agent::Resumed(resumed) => {
            let took_s = resumed.took_s;
            line(format!(
                "process {pid} is on the device again after {took_s:.3} s; its memory sleeps until its next use of \
                 the device"
            ))?;
            Ok(Ending::Proved)
        }
        Agent::NoRoom(no_room) => Ok(Ending::NotProved { what: no_room.to_string() }),
        Agent::Refused { reason } => Ok(Ending::NotProved { what: reason }),
        other => bail!("the agent answered something else: {}", other.to_line()),
    }
}

fn ending(verdict: Verdict) -> Ending {
    if verdict.is_proved() {
        Ending::Proved
    } else {
        Ending::NotProved { what: verdict.to_string() }
    }
}

/// Brings a process back to the device.
pub(crate) fn resume(options: &ResumeOptions) -> anyhow::Result<Ending> {
    let target = target(options.pid)?;
    say_at_interrupt(options.pid)?;
    agents::warn_of_starting(options.pid);
    if let Some(answer) = agents::ask_if_any(options.pid, lowtide_proto::Ask::Resume)? {
        return told_by_agent(options.pid, options.json, answer);
    }
    let (maps, wait_ms, limit_ms) = (Vec::new(), ms(options.wait), ms(LIMIT));
    let ask = Ask::Resume(Resume { target, maps, wait_ms, limit_ms });
    let answer = connect()?.ask(ask).context("resuming it")?;
    if options.json {
        page::print_json(&answer)?;
    }
    match answer {
        Answer::Resumed(resumed) => {
            if !options.json {
                resumed_page(&resumed).print()?;
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

fn receipt(suspended: &Suspended) -> Page {
    let (mut page, target) = (Page::default(), suspended.target);
    if suspended.was_suspended {
        page.line(&format!("{target} was suspended already"));
    } else {
        let (verdict, times) = (suspended.verdict, times(&suspended.steps));
        page.line(&format!("{target}: {verdict}, off the device in {times}"));
    }
    changes(&mut page, &suspended.devices);
    for need in &suspended.needs {
        page.line(&format!("  to come back: {} must be free on {}", need.bytes, need.uuid));
    }
    page.line(&format!("  → lowtide resume {}", target.pid));
    page
}

fn resumed_page(resumed: &Resumed) -> Page {
    let (mut page, target) = (Page::default(), resumed.target);
    if resumed.was_running {
        page.line(&format!("{target} was not suspended"));
        return page;
    }
    let times = times(&resumed.steps);
    page.line(&format!("{target}: runs, back on the device in {times}"));
    changes(&mut page, &resumed.devices);
    page
}

fn times(steps: &[StepTime]) -> String {
    let total: f64 = steps.iter().map(|time| time.took_s).sum();
    let each = steps.iter().map(|time| format!("{} {:.3} s", time.step.as_str(), time.took_s));
    format!("{total:.3} s ({})", each.collect::<Vec<_>>().join(", "))
}

fn changes(page: &mut Page, devices: &[DeviceChange]) {
    let told = |bytes: Option<Bytes>| bytes.map_or("not told".to_owned(), |it| it.to_string());
    for device in devices {
        let (before, after) = (told(device.process_before), told(device.process_after));
        let (all_before, all_after) = (device.before.in_use(), device.after.in_use());
        page.line(&format!(
            "  {}: {before} → {after} by the process, {all_before} → {all_after} by all",
            device.uuid
        ));
    }
}
