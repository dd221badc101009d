//! `lowtide ps`: which processes use device memory, once or again and again.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, bail};
use lowtide_device::identity::Identity;
use lowtide_device::processes::{self, DeviceProcesses, HostProcesses, ProcessUsage};
use lowtide_device::{Bytes, DeviceId, Error};
use lowtide_types::printable;
use serde::Serialize;

use crate::arguments::devices::{self, MissingDevice};
use crate::commands::cluster::Cluster;
use crate::commands::helper::{self, SuspendedProcess};
use crate::program::ending::Ending;
use crate::text::clock::since_1970;
use crate::text::page::{self, Page, Reader};

/// The longest part of a command line that is shown.
const LONGEST_COMMAND: usize = 120;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The rows of a GPU add up to the driver's own number (total − free). `unattributed` is memory in \
                  use that the driver reports for no process. `reserved` is memory that the driver keeps for \
                  itself. `ps` creates no context, so it uses no device memory.\n\n\
                  Ends with 0 on a machine without a GPU, and with 3 if the device named with --device is missing \
                  or NVML fails."
)]
pub(crate) struct Options {
    /// Show this device only: host, cuda:0, …
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
    device: Option<DeviceId>,
    /// Look again every so many seconds until Ctrl-C; every 2 seconds if no number is given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    watch: Option<Duration>,
    /// The order of the processes of a device.
    #[arg(long, value_name = "KEY", default_value = "memory")]
    sort: Sort,
    /// Show the devices and programs of every node of a cluster of Ray: of the one that `RAY_ADDRESS` names or this
    /// machine belongs to, or of the one at ADDRESS.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "auto", conflicts_with_all = ["watch", "device", "sort"])]
    ray: Option<String>,
    /// Print JSON instead of text, with --watch one line per look, with --ray one per node; docs/json.md lists the
    /// keys.
    #[arg(long)]
    json: bool,
}

/// The order of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Largest first.
    Memory,
    Pid,
    /// By command.
    Name,
}

/// Every process that uses device memory, by device.
#[derive(Serialize)]
struct ProcessList {
    /// The time at which the devices were asked, in seconds since 1970.
    at_s: f64,
    devices: Vec<DeviceProcesses>,
    /// A sentence for each GPU that exists and could not be read.
    problems: Vec<String>,
    /// `None` where another device was named.
    host: Option<HostProcesses>,
    /// The reason why no GPU is listed.
    reason: Option<String>,
    /// Processes of this user that are off the device, with what they need to come back.
    suspended: Vec<SuspendedProcess>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    if let Some(interval) = options.watch {
        return watch(options, interval);
    }
    if let Some(address) = &options.ray {
        let json = options.json.then_some("--json");
        let words: Vec<&str> = ["status"].into_iter().chain(json).collect();
        let mut cluster = Cluster::ask(address, &words)?;
        while let Some(line) = cluster.line()? {
            page::print_text(&(line + "\n"))?;
        }
        return Ok(Ending::Proved);
    }
    let list = look(options.device, options.sort)?;
    if options.json { page::print_json(&list) } else { text(&list).print() }?;
    match list.problems.first() {
        None => Ok(Ending::Proved),
        Some(first) => bail!("not every GPU could be read: {first}"),
    }
}

// Looks and shows until Ctrl-C, or until nobody reads any more.
fn watch(options: &Options, interval: Duration) -> anyhow::Result<Ending> {
    let (stop, stopped) = mpsc::channel();
    ctrlc::set_handler(move || {
        // Where the receiver is gone, the program is ending already.
        let _ = stop.send(());
    })
    .context("listening for Ctrl-C")?;
    let is_drawn = !options.json && io::stdout().is_terminal();
    loop {
        let list = look(options.device, options.sort)?;
        let reader = if options.json {
            page::print_json_line(&list)?
        } else if is_drawn {
            text(&list).redraw()?
        } else {
            let mut page = text(&list);
            page.blank();
            page.print()?
        };
        let is_stopped = stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
        if is_stopped || reader == Reader::Gone {
            return Ok(Ending::Proved);
        }
    }
}

fn look(only: Option<DeviceId>, sort: Sort) -> anyhow::Result<ProcessList> {
    let at_s = since_1970();
    let (mut devices, problems, reason) = match only {
        Some(DeviceId::Host) => (Vec::new(), Vec::new(), None),
        _ => told(processes::gpus())?,
    };
    let mut host = matches!(only, None | Some(DeviceId::Host)).then(processes::host);
    if let Some(host) = &mut host {
        sort_by(&mut host.processes, sort);
    }
    if let Some(wanted) = only.filter(|id| *id != DeviceId::Host) {
        let shown = devices.iter().filter_map(|device| device.id);
        let known = shown.chain([DeviceId::Host]).collect();
        devices.retain(|device| device.id == Some(wanted));
        if devices.is_empty() {
            // What is wrong with NVML says nothing about a name that no GPU has.
            let reason = reason.or_else(|| problems.first().cloned());
            let reason = reason.filter(|_| matches!(wanted, DeviceId::Cuda(_)));
            return Err(MissingDevice { wanted, known, reason }.into());
        }
    }
    for device in &mut devices {
        sort_by(&mut device.processes, sort);
    }
    // A folder that cannot be read has nobody in it that this user could resume.
    let suspended = helper::suspended().unwrap_or_default();
    Ok(ProcessList { at_s, devices, problems, host, reason, suspended })
}

fn sort_by(processes: &mut [ProcessUsage], sort: Sort) {
    match sort {
        // As they come.
        Sort::Memory => {}
        Sort::Pid => processes.sort_by_key(|process| process.pid),
        Sort::Name => processes.sort_by_cached_key(|process| name(&process.identity)),
    }
}

// The GPUs that were read, what could not be read, and why there is none.
pub(super) fn told(
    read: lowtide_device::Result<(Vec<DeviceProcesses>, Vec<String>)>,
) -> anyhow::Result<(Vec<DeviceProcesses>, Vec<String>, Option<String>)> {
    match read {
        Ok((devices, problems)) if devices.is_empty() && problems.is_empty() => {
            Ok((devices, problems, Some("NVML shows no GPU".to_owned())))
        }
        Ok((devices, problems)) => Ok((devices, problems, None)),
        Err(error @ Error::NoLibrary { .. }) => {
            Ok((Vec::new(), Vec::new(), Some(error.to_string())))
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a number of seconds from 0.1 to 3600");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(wrong())
    }
}

fn text(list: &ProcessList) -> Page {
    let mut page = Page::default();
    for device in &list.devices {
        gpu(&mut page, device);
        page.blank();
    }
    for problem in &list.problems {
        page.row("not readable", problem);
        page.blank();
    }
    if let Some(reason) = &list.reason {
        page.row("no GPU", reason);
        page.blank();
    }
    if !list.suspended.is_empty() {
        suspended(&mut page, &list.suspended);
        page.blank();
    }
    if let Some(processes) = &list.host {
        host(&mut page, processes);
    }
    page
}

fn gpu(page: &mut Page, device: &DeviceProcesses) {
    let id = device
        .id
        .map_or_else(|| "a GPU that CUDA does not show here".to_owned(), |id| id.to_string());
    page.title(&id, device.uuid.as_deref().unwrap_or_default());
    heading(page);
    for process in &device.processes {
        row(page, &process.pid.to_string(), process.held, &name(&process.identity));
    }
    signed_row(page, device.unattributed, "unattributed");
    row(page, "-", Some(device.usage.reserved), "reserved by the driver");
    page.line(&format!("{:>10}  {:>16}", "", "—".repeat(16)));
    signed_row(page, device.sum(), "in use (total − free)");
    row(page, "-", Some(device.usage.free), "free");
    row(page, "-", Some(device.usage.total), "total");
}

fn host(page: &mut Page, host: &HostProcesses) {
    page.title("host", "devices made of this machine's memory");
    if let Some(reason) = &host.reason {
        page.line(&format!("  not known: {reason}"));
    } else if host.processes.is_empty() {
        page.line("  no process uses any");
    } else {
        heading(page);
        for process in &host.processes {
            row(page, &process.pid.to_string(), process.held, &name(&process.identity));
        }
    }
    if host.unreadable > 0 {
        page.line(&format!(
            "  {} processes of other users could not be read; run as root to see them",
            host.unreadable
        ));
    }
}

fn suspended(page: &mut Page, processes: &[SuspendedProcess]) {
    page.title("suspended", "off the device; `lowtide resume PID` brings them back");
    page.columns(&cells("PID", "NEEDS"), "PROCESS");
    for process in processes {
        let needs = process.needs.iter().map(|need| need.bytes).sum();
        let who = name(&lowtide_device::identity::of_driver_pid(process.pid));
        row(page, &process.pid.to_string(), Some(needs), &who);
    }
}

fn heading(page: &mut Page) {
    page.columns(&cells("PID", "MEMORY"), "PROCESS");
}

fn row(page: &mut Page, pid: &str, held: Option<Bytes>, who: &str) {
    let held = held.map_or_else(|| "not reported".to_owned(), |held| held.to_string());
    page.command(&cells(pid, &held), &one_line(who));
}

fn signed_row(page: &mut Page, bytes: i64, what: &str) {
    let size = Bytes(bytes.unsigned_abs());
    let text = if bytes < 0 { format!("−{size}") } else { size.to_string() };
    let shared = if bytes < 0 { " (the driver counts shared memory for each process)" } else { "" };
    page.columns(&cells("-", &text), &format!("{what}{shared}"));
}

fn cells(pid: &str, memory: &str) -> String {
    format!("{pid:>10}  {memory:>16}  ")
}

// Another user's command line: no escape sequences for the terminal, and not all of it.
pub(super) fn one_line(text: &str) -> String {
    let text = printable(text);
    let mut line: String = text.chars().take(LONGEST_COMMAND).collect();
    if text.chars().nth(LONGEST_COMMAND).is_some() {
        line.push('…');
    }
    line
}

pub(super) fn name(identity: &Identity) -> String {
    match identity {
        Identity::Known { name, command } if command.is_empty() => format!("[{name}]"),
        Identity::Known { command, .. } => command.clone(),
        Identity::NotVisible => "unknown: ended, or outside this container".to_owned(),
        Identity::NoPermission => "unknown: no permission to read it".to_owned(),
        Identity::OtherNamespace => "unknown: a PID of another namespace".to_owned(),
        Identity::NoProc => "unknown: /proc cannot be read".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_of_a_stranger_stays_on_its_line() {
        assert_eq!(one_line("a\u{1b}[31m\nb"), r"a\u{1b}[31m\nb");
        assert_eq!(one_line(&"x".repeat(500)).chars().count(), 121);
    }

    #[test]
    fn processes_are_sorted_as_asked() {
        let process = |pid, command: &str, mib| {
            let identity = Identity::Known { name: "x".to_owned(), command: command.to_owned() };
            ProcessUsage { pid, identity, held: Some(Bytes::mib(mib)) }
        };
        let mut all = [process(9, "b", 3), process(7, "c", 2), process(8, "a", 1)];
        for (sort, order) in
            [(Sort::Memory, [9, 7, 8]), (Sort::Name, [8, 9, 7]), (Sort::Pid, [7, 8, 9])]
        {
            sort_by(&mut all, sort);
            assert_eq!(all.each_ref().map(|process| process.pid), order, "{sort:?}");
        }
    }

    #[test]
    fn an_interval_is_a_number_of_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "inf", "soon", "3601"] {
            assert!(seconds(wrong).unwrap_err().contains("0.1 to 3600"), "{wrong}");
        }
    }
}
