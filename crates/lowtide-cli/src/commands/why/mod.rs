//! `lowtide why PID`: what keeps device memory in use in another process, and cutting it there.
//!
//! | file | holds |
//! |---|---|
//! | `target` | the process, and what keeps anybody from asking it |
//! | `asking` | the ways into it, in order |
//! | `python`, `remote_exec`, `inject` | its interpreter; the protocol of 3.14; a debugger |
//! | `waiting` | the socket at which it answers |
//! | `package` | the package that it loads |
//! | `shown` | the answer for people, and what is shown where there is none |

mod asking;
mod inject;
mod package;
mod python;
mod remote_exec;
mod shown;
mod target;
mod waiting;

use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use lowtide_release::parse_time;
use serde_json::json;

use crate::commands::{agents, queue};
use crate::program::ending::Ending;
use crate::text::page;
use asking::Asking;
use target::Target;

/// The version that both sides have to have.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The process answers what `lowtide.why()` would answer in it. Three ways lead in, tried in this order; \
                  the answer says which:\n\
                  \x20 - a program that `lowtide run` started is asked through its agent\n\
                  \x20 - Python 3.14 or newer executes a file at its next safe point (PEP 768)\n\
                  \x20 - with --inject, gdb loads a library into Python 3.10 to 3.13\n\n\
                  The interpreter stands still while its objects are walked over; the answer says for how long. A \
                  process without Python is shown by its ledger.\n\n\
                  Examples:\n  lowtide why 4711\n  lowtide why 4711 --cut 1 --of 3fa2c1"
)]
pub(crate) struct Options {
    /// The process.
    #[arg(value_parser = agents::process)]
    pid: u32,
    /// Ask about this device; without it, about the one of which the program has most, or host memory.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Print JSON instead of text; docs/json.md lists the keys.
    #[arg(long)]
    json: bool,
    /// Apply a cut of an answer, by its number, or all of them. Asks first.
    #[arg(long, value_name = "N", requires = "of", value_parser = cut)]
    cut: Option<String>,
    /// The name of the answer, as it was printed. A later answer replaces it.
    #[arg(long, value_name = "NAME", requires = "cut")]
    of: Option<String>,
    /// Give up after so long; nothing of the question is left in the process then.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = limit)]
    limit: Duration,
    /// Use a debugger, gdb, where the other ways are closed. It stops the process for a moment, and where the debugger
    /// itself is killed in that moment, the process is lost.
    #[arg(long)]
    inject: bool,
    /// Do not ask whether a long question, or a cut, is meant.
    #[arg(long)]
    yes: bool,
}

/// Asks a process.
pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let target = Target::of(options.pid)?;
    let asking = Asking::new(&target, options.inject, options.limit)?;
    let queue = asking.status.as_ref().and_then(|_| queue::of_user());
    let waits =
        queue.iter().flat_map(|queue| &queue.waiters).any(|waiter| waiter.pid == target.pid);
    let package = package::find()?;
    target.sees(&package)?;
    if options.inject {
        page::complain(&format!(
            "warning: where no other way is open, gdb stops process {} for a moment; on a machine that matters, start \
             the program with `lowtide run` instead",
            target.pid
        ));
    }
    let mut request = json!({
        "home": format!("_lowtide_{}", VERSION.replace(['.', '-', '+'], "_")),
        "version": VERSION,
        "package": package.display().to_string(),
        "pid": target.pid,
        "command": target.command,
        "device": options.device,
        "waits": waits,
        "sure": options.yes,
        "cut": options.cut,
        "of": options.of,
    });
    loop {
        let (way, answer) = match asking.ask(&package, &mut request)? {
            Ok(answered) => answered,
            Err(reason) => {
                let (status, queue) = (asking.status.as_ref(), queue.as_ref());
                return shown::instead(&target, status, queue, reason, options.json);
            }
        };
        let text = |key: &str| answer[key].as_str().unwrap_or_default();
        match text("answer") {
            "why" => return shown::answer(&target, way, answer, options.json),
            "cut" => return shown::cut(&target, answer, options.json),
            "confirm" => confirm(text("question"), options)?,
            "refused" => bail!("process {}: {}", target.pid, text("reason")),
            _ => bail!("process {} answered something else: {answer}", target.pid),
        }
        request["sure"] = true.into();
    }
}

/// Asks whether something is meant. Fails if it is not.
fn confirm(question: &str, options: &Options) -> anyhow::Result<()> {
    let is_asked = !options.json && io::stdin().is_terminal() && io::stderr().is_terminal();
    ensure!(is_asked, "{question}; --yes says that this is meant");
    page::complain(&format!("{question}. Go on? [y/N]"));
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("reading the answer")?;
    ensure!(matches!(line.trim(), "y" | "Y" | "yes"), "nothing was done");
    Ok(())
}

fn cut(text: &str) -> Result<String, String> {
    let is_number = text.parse::<u32>().is_ok_and(|number| number > 0);
    if is_number || text == "all" {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not the number of a cut, or `all`"))
    }
}

fn limit(text: &str) -> Result<Duration, String> {
    let limit = parse_time(text).filter(|limit| (1..=3600).contains(&limit.as_secs()));
    limit.ok_or_else(|| format!("{text:?} is not a time from 1s to 1h"))
}
