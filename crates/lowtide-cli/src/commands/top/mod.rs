//! `lowtide top`: device memory over time and the programs that use it, live in a terminal.
//!
//! One thread looks, this one draws and hears keys. Acts are the commands of this program, each in a process of its
//! own, so that they are the same as those that a person types.

mod chart;
mod draw;
mod screen;

use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lowtide_proto::helper::Target;
use lowtide_types::printable;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGTERM;
use signal_hook::flag;

use self::screen::{Act, Outcome, Screen};
use crate::commands::cluster::Cluster;
use crate::commands::look::{Look, Looker};
use crate::commands::ps;
use crate::program::ending::Ending;
use crate::text::clock::{since_1970, time_of_day};
use crate::text::page;
use crate::text::terminal;

/// The time between two looks for keys and for the end of an act.
const KEYS: Duration = Duration::from_millis(200);
/// The rows of a picture that nobody scrolls, beside those of its programs.
const ROWS: u16 = 20;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The bands of a device add up to the driver's number (total − free). live, cached and context are of \
                  programs under `lowtide run`; others are processes without an agent. Works without any agent. \
                  NO_COLOR draws without colours.\n\n\
                  Keys: ↑ ↓ choose a program, s sleeps it, w wakes it, x suspends it, y asks why it has its memory; \
                  each asks first. o sorts, / filters, Tab shows the next device, q quits."
)]
pub(crate) struct Options {
    /// Change nothing: no key sleeps, wakes, suspends or asks a program.
    #[arg(long)]
    read_only: bool,
    /// How often to look.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = ps::seconds)]
    every: Duration,
    /// Print what is there now and end; with a number, look so many times first.
    #[arg(long, value_name = "LOOKS", num_args = 0..=1, default_missing_value = "1", value_parser = looks)]
    once: Option<u16>,
    /// Show every node of a cluster of Ray, and change nothing: of the one that `RAY_ADDRESS` names or this machine
    /// belongs to, or of the one at ADDRESS.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "auto")]
    ray: Option<String>,
    /// Print JSON instead of a picture; docs/json.md lists the keys.
    #[arg(long, requires = "once")]
    json: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    if let Some(looks) = options.once {
        return once(looks, options);
    }
    if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        bail!(
            "`top` needs a terminal; `lowtide top --once` and `lowtide ps` print what is there now"
        );
    }
    let mut look = looking(options)?;
    let has_colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut screen = Screen::new(options.read_only || options.ray.is_some(), has_colours);
    // Where there is no cluster, it is said without a screen.
    screen.show(look()?);
    let (sender, looks) = mpsc::channel();
    thread::spawn(move || {
        loop {
            let found = look();
            let is_last = found.is_err();
            if sender.send(found).is_err() || is_last {
                return;
            }
            if has_hung_up(&io::stdin()) {
                // The thread that reads keys reads the end of the terminal again and again, and cannot be told.
                process::exit(1);
            }
        }
    });
    let is_told_to_end = Arc::new(AtomicBool::new(false));
    flag::register(SIGTERM, Arc::clone(&is_told_to_end)).context("watching for SIGTERM")?;
    let mut terminal = ratatui::try_init().context("taking the terminal")?;
    let ended = watch(screen, &mut terminal, &looks, &is_told_to_end);
    ratatui::restore();
    ended.map(|()| Ending::Proved)
}

/// Returns whether a terminal is not there any more: a signal says so, too, but not to a program that ignores it.
fn has_hung_up(terminal: &impl AsFd) -> bool {
    let mut end = [PollFd::new(terminal, PollFlags::empty())];
    poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ended| ended > 0)
}

/// Returns what looks when it is called, but not more often than `--every` says.
fn looking(options: &Options) -> anyhow::Result<Box<dyn FnMut() -> anyhow::Result<Look> + Send>> {
    let every = options.every;
    if let Some(address) = &options.ray {
        let words = ["top", "--every", &every.as_secs_f64().to_string()];
        let mut cluster = Cluster::ask(address, &words)?;
        return Ok(Box::new(move || {
            Look::of_nodes(&cluster.line()?.context("the view of the cluster has ended")?)
        }));
    }
    let (mut next, mut looker) = (Instant::now(), Looker::default());
    Ok(Box::new(move || {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = Instant::now() + every;
        Ok(looker.look())
    }))
}

fn once(looks: u16, options: &Options) -> anyhow::Result<Ending> {
    let (mut screen, mut look) = (Screen::new(true, false), looking(options)?);
    for _ in 0..looks {
        screen.show(look()?);
    }
    if options.json {
        page::print_json(&screen.look)?;
        return Ok(Ending::Proved);
    }
    let width = u16::try_from(terminal::width_of(&io::stdout())).unwrap_or(u16::MAX);
    let rows = ROWS.saturating_add(u16::try_from(screen.look.programs.len()).unwrap_or(u16::MAX));
    page::print_text(&picture(&screen, width, rows)?)?;
    Ok(Ending::Proved)
}

fn looks(text: &str) -> Result<u16, String> {
    let looks = text.parse().ok().filter(|looks| *looks > 0);
    looks.ok_or_else(|| format!("{text:?} is not a number of looks from 1 to {}", u16::MAX))
}

/// Returns a screen as lines of text.
fn picture(screen: &Screen, width: u16, rows: u16) -> anyhow::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, rows))?;
    terminal.draw(|frame| draw::draw(frame, screen))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for line in buffer.content().chunks(usize::from(width.max(1))) {
        let line: String = line.iter().map(Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text.trim_end().to_owned() + "\n")
}

fn watch(
    mut screen: Screen,
    terminal: &mut ratatui::DefaultTerminal,
    looks: &Receiver<anyhow::Result<Look>>,
    is_told_to_end: &AtomicBool,
) -> anyhow::Result<()> {
    let (told, acts) = mpsc::channel();
    let mut is_stale = true;
    while !is_told_to_end.load(Ordering::Relaxed) {
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| draw::draw(frame, &screen)).context("drawing")?;
        }
        match looks.recv_timeout(Duration::ZERO) {
            Ok(look) => {
                screen.show(look?);
                is_stale = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the thread that looks has ended"),
        }
        if let Ok(message) = acts.try_recv() {
            screen.say(message);
            is_stale = true;
        }
        if !event::poll(KEYS).context("waiting for keys")? {
            continue;
        }
        is_stale = true;
        if let Event::Key(key) = event::read().context("reading a key")?
            && key.kind != KeyEventKind::Release
        {
            match screen.key(key) {
                Outcome::Stay => {}
                Outcome::Quit => return Ok(()),
                Outcome::Do(act) => begin(act, &told),
            }
        }
    }
    Ok(())
}

/// Runs the command of an act, if its process is still the one that was shown. What it says is told.
fn begin(act: Act, told: &Sender<String>) {
    let told = told.clone();
    thread::spawn(move || {
        // Where nobody hears any more, the program is ending.
        let _sent = told.send(said_by(&act).unwrap_or_else(|error| format!("{error:#}")));
    });
}

fn said_by(act: &Act) -> anyhow::Result<String> {
    let Act { verb, pid, start_ticks, .. } = act;
    if Target::of(*pid).ok().map(|target| target.start_ticks) != Some(*start_ticks) {
        bail!("process {pid} has ended; nothing was done");
    }
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    command.arg(verb.command()).arg(pid.to_string()).stdin(Stdio::null());
    let at_s = since_1970();
    let output = command.output().with_context(|| format!("running `lowtide {verb}`"))?;
    let said = [output.stdout, output.stderr].concat();
    let lines = String::from_utf8_lossy(&said);
    let lines = lines.lines().map(|line| printable(line).into_owned()).collect::<Vec<_>>();
    Ok(format!("lowtide {verb} {pid}, {}\n{}", time_of_day(at_s), lines.join("\n")))
}

#[cfg(test)]
mod tests;
