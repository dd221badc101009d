//! `lowtide ps`: who holds device memory.

use anyhow::bail;
use lowtide_device::identity::Identity;
use lowtide_device::processes::{self, DeviceProcesses, ProcessUsage};
use lowtide_device::{Bytes, Error};
use serde::Serialize;

use crate::page::{self, Page};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The rows of a GPU add up to the driver's own number (total − free). `unattributed` is what is \
                  in use and was told for no process; `reserved` is what the driver keeps for itself. Makes no \
                  context, so asking costs no device memory."
)]
pub(crate) struct Options {
    /// Print JSON instead of text; the keys are in docs/json.md.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    devices: Vec<DeviceProcesses>,
    /// What went wrong with a GPU that is there, for each that is not listed.
    problems: Vec<String>,
    host: HostProcesses,
    /// Why no GPU is listed, where none is.
    reason: Option<String>,
}

#[derive(Serialize)]
struct HostProcesses {
    processes: Vec<ProcessUsage>,
    unreadable_processes: usize,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (devices, problems, reason) = match processes::gpus() {
        Ok((devices, problems)) if devices.is_empty() && problems.is_empty() => {
            (devices, problems, Some("NVML shows no GPU".to_owned()))
        }
        Ok((devices, problems)) => (devices, problems, None),
        Err(error @ Error::NoLibrary { .. }) => (Vec::new(), Vec::new(), Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let (processes, unreadable_processes) = processes::host();
    let host = HostProcesses { processes, unreadable_processes };
    let answer = Answer { devices, problems, host, reason };
    if options.json { page::print_json(&answer) } else { text(&answer).print() }?;
    match answer.problems.first() {
        None => Ok(()),
        Some(first) => bail!("not every GPU could be read: {first}"),
    }
}

fn text(answer: &Answer) -> Page {
    let mut page = Page::default();
    for device in &answer.devices {
        gpu(&mut page, device);
        page.blank();
    }
    if let Some(reason) = &answer.reason {
        page.row("no GPU", reason);
        page.blank();
    }
    host(&mut page, &answer.host);
    page
}

fn gpu(page: &mut Page, device: &DeviceProcesses) {
    let id = device
        .id
        .map_or_else(|| "a GPU that CUDA does not show here".to_owned(), |id| id.to_string());
    page.title(&id, device.uuid.as_deref().unwrap_or_default());
    heading(page);
    for holder in &device.processes {
        row(page, &holder.pid.to_string(), holder.held, &name(&holder.identity));
    }
    signed_row(page, device.unattributed, "unattributed");
    row(page, "-", Some(device.usage.reserved), "reserved by the driver");
    page.line(&format!("{:>10}  {:>18}", "", "—".repeat(18)));
    signed_row(page, device.sum(), "in use (total − free)");
    row(page, "-", Some(device.usage.free), "free");
    row(page, "-", Some(device.usage.total), "total");
}

fn host(page: &mut Page, host: &HostProcesses) {
    page.title("host", "devices made of this machine's pages");
    if host.processes.is_empty() {
        page.line("  nobody holds any");
    } else {
        heading(page);
        for holder in &host.processes {
            row(page, &holder.pid.to_string(), holder.held, &name(&holder.identity));
        }
    }
    if host.unreadable_processes > 0 {
        page.line(&format!(
            "  {} processes of other users could not be looked at; run as root to see them",
            host.unreadable_processes
        ));
    }
}

fn heading(page: &mut Page) {
    page.line(&format!("{:>10}  {:>18}  {}", "PID", "MEMORY", "PROCESS"));
}

fn row(page: &mut Page, pid: &str, held: Option<Bytes>, who: &str) {
    let held = held.map_or_else(|| "not told".to_owned(), |held| held.to_string());
    page.line(&format!("{pid:>10}  {held:>18}  {}", one_line(who)));
}

fn signed_row(page: &mut Page, bytes: i64, what: &str) {
    let size = Bytes(bytes.unsigned_abs());
    let text = if bytes < 0 { format!("−{size}") } else { size.to_string() };
    let shared = if bytes < 0 { " (memory that processes share is told for each)" } else { "" };
    page.line(&format!("{:>10}  {text:>18}  {what}{shared}", "-"));
}

// Somebody else's command line: no escape sequences to the terminal, and no more than fits.
fn one_line(text: &str) -> String {
    const MOST: usize = 120;
    let mut line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        line.push('…');
    }
    line
}

fn name(identity: &Identity) -> String {
    match identity {
        Identity::Known { name, command } if command.is_empty() => format!("[{name}]"),
        Identity::Known { command, .. } => command.clone(),
        Identity::NotVisible => "unknown: ended, or outside this container".to_owned(),
        Identity::NoPermission => "unknown: no permission to look at it".to_owned(),
        Identity::OtherNamespace => "unknown: a PID of another namespace".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn other_peoples_command_lines_stay_on_their_line() {
        assert_eq!(one_line("a\u{1b}[31m\nb"), "a [31m b");
        assert_eq!(one_line(&"x".repeat(500)).chars().count(), 121);
    }
}
