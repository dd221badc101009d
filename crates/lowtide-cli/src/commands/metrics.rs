//! `lowtide metrics`: the numbers of this machine for Prometheus, over HTTP, in a file or on standard output.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lowtide_device::private_files::PrivateFolder;
use lowtide_device::tallies;
use lowtide_types::{Act, BOUNDS_S, Moved, Tally, Times, Verdict};

use crate::commands::look::{Look, Looker, ProgramState};
use crate::program::ending::Ending;
use crate::text::page;

/// The time that a client has to ask and to take its answer, the most bytes of a question, and the most clients at
/// a time.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);
const ASK_MOST: usize = 1 << 13;
const CLIENTS_MOST: usize = 16;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without options, prints the text once. Counters and histograms are those of this user's programs: \
                  under `lowtide run`, Python programs that release, and the helper. Each counts in a small file \
                  of its own, so nothing is lost while nobody reads, and programs that have ended count on. No \
                  label has a command line.\n\n\
                  Example:\n  lowtide metrics --listen 127.0.0.1:9835"
)]
pub(crate) struct Options {
    /// Serve `/metrics` by HTTP at an address of this machine alone, until Ctrl-C.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "textfile")]
    listen: Option<SocketAddr>,
    /// Let --listen take an address that other machines reach. Whoever reaches it reads the numbers.
    #[arg(long, requires = "listen")]
    public: bool,
    /// Write the text once, in the place of this file: for `node_exporter`'s textfile collector.
    #[arg(long, value_name = "PATH")]
    textfile: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    match (options.listen, &options.textfile) {
        (Some(address), _) if !address.ip().is_loopback() && !options.public => {
            bail!(
                "{address} is not this machine alone; --public lets other machines read the numbers"
            )
        }
        (Some(address), _) => serve(address),
        (None, Some(path)) => replace(path, &now()?).map(|()| Ending::Proved),
        (None, None) => page::print_text(&now()?).map(|_| Ending::Proved),
    }
}

fn now() -> anyhow::Result<String> {
    let tally = tallies::sum(&PrivateFolder::of_user()?)?;
    Ok(text(&Looker::default().look(), &tally))
}

/// Writes a file that everybody can read. Nobody reads half of it. What is no file, such as /dev/stdout, stays.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    ensure!(
        fs::symlink_metadata(path).map_or(true, |found| found.is_file()),
        "{} is no ordinary file; without --textfile the text is printed",
        path.display()
    );
    let name = path.file_name().context("--textfile needs the name of a file")?.to_string_lossy();
    // A collector reads names that end with .prom only.
    let aside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&aside)?;
        file.write_all(text.as_bytes()).and_then(|()| fs::rename(&aside, path))
    };
    write()
        .inspect_err(|_| drop(fs::remove_file(&aside)))
        .with_context(|| format!("writing {}", path.display()))
}

fn serve(address: SocketAddr) -> anyhow::Result<Ending> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening at {address}"))?;
    page::complain(&format!("serving http://{}/metrics", listener.local_addr()?));
    let (clients, mut asking) = (Arc::new(()), Vec::<(Weak<()>, TcpStream)>::new());
    loop {
        // Too few file descriptors, for example: that may pass.
        let Ok((client, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        asking.retain(|(asks, _)| asks.strong_count() > 0);
        if Arc::strong_count(&clients) > CLIENTS_MOST {
            // The one that has been asking for longest makes room. Where none is asking, this client goes without.
            if asking.is_empty() {
                continue;
            }
            let _gone = asking.remove(0).1.shutdown(Shutdown::Both);
        }
        let (own, asks) = (Arc::clone(&clients), Arc::new(()));
        asking.extend(client.try_clone().map(|client| (Arc::downgrade(&asks), client)));
        let serve = move || {
            // A client that stopped has no use for its answer.
            let _answered = answer(&client, asks);
            // There is another handle of it above.
            let _gone = client.shutdown(Shutdown::Both);
            drop(own);
        };
        // Where no thread can be started, this client goes without, and the next may not.
        let _started = thread::Builder::new().spawn(serve);
    }
}

/// Answers a client, which is `asks` until its question is read.
fn answer(mut client: &TcpStream, asks: Arc<()>) -> std::io::Result<()> {
    let (deadline, mut asked) = (Instant::now() + CLIENT_LIMIT, Vec::new());
    client.set_write_timeout(Some(CLIENT_LIMIT))?;
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut part = [0; 1024];
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match client.read(&mut part)? {
            0 => return Ok(()),
            _ if left.is_zero() || asked.len() > ASK_MOST => return Ok(()),
            count => asked.extend_from_slice(&part[..count]),
        }
    }
    drop(asks);
    let line =
        String::from_utf8_lossy(asked.split(|byte| *byte == b'\r').next().unwrap_or_default());
    let (status, body) = match line.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/metrics", _] => match now() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("500 Internal Server Error", format!("{error:#}\n")),
        },
        ["GET", ..] => ("404 Not Found", "the numbers are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".to_owned()),
    };
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the text of Prometheus, version 0.0.4.
fn text(look: &Look, tally: &Tally) -> String {
    let mut text = Text::default();
    text.family(
        "device_memory_bytes",
        "gauge",
        "Memory in use on a device, as the driver reports it, by kind.",
    );
    for device in &look.devices {
        let id = device.id.as_ref().map_or_else(String::new, ToString::to_string);
        for (band, bytes) in &device.bands {
            text.sample(&[("device", &id), ("uuid", &device.uuid), ("kind", band.as_str())], bytes);
        }
    }
    for (name, help, of) in
        [("total", "All memory of a device.", 0), ("free", "Memory of a device that is free.", 1)]
    {
        text.family(&format!("device_memory_{name}_bytes"), "gauge", help);
        for device in &look.devices {
            let id = device.id.as_ref().map_or_else(String::new, ToString::to_string);
            let bytes = [device.total, device.free][of];
            text.sample(&[("device", &id), ("uuid", &device.uuid)], &bytes.0);
        }
    }
    text.family("program_state", "gauge", "Programs that use a device or have an agent, by state.");
    for state in ProgramState::ALL {
        let count = look.programs.iter().filter(|program| program.state == state).count();
        text.sample(&[("state", &state.as_str().replace(' ', "_"))], &count);
    }
    text.family(
        "problems",
        "gauge",
        "Things that could not be read now; `lowtide doctor` names them.",
    );
    text.sample(&[], &look.problems.len());
    text.family("releases_total", "counter", "Releases, by the verdict of their receipts.");
    for verdict in Verdict::ALL {
        text.sample(&[("verdict", verdict.as_str())], &tally.releases(verdict));
    }
    for what in Moved::ALL {
        let help = match what {
            Moved::Freed => "Device memory that releases freed, by the driver's numbers.",
            Moved::Woken => "Device memory that came back with wakes.",
        };
        text.family(&format!("{what}_bytes_total"), "counter", help);
        text.sample(&[], &tally.bytes(what).0);
    }
    for act in Act::ALL {
        let help = match act {
            Act::Release => "Duration of releases, by their receipts.",
            Act::Sleep => "Duration of sleeps, by the rung of their receipts.",
            Act::Wake => "Duration of wakes that brought memory back.",
            Act::Suspend => "Duration of the driver's steps of suspends.",
            Act::Resume => "Duration of the driver's steps of resumes.",
            Act::GiveWay => "Duration of making room for another program.",
            Act::Wait => "Time that calls waited for room which other programs had.",
        };
        text.family(&format!("{act}_duration_seconds"), "histogram", help);
        text.histogram(tally.times(act));
    }
    text.text
}

/// Text under construction.
#[derive(Default)]
struct Text {
    text: String,
    name: String,
}

// Writing to a `String` cannot fail. No label has a character that would have to be escaped: they are our own words, and
// UUIDs.
impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.name = format!("lowtide_{name}");
        let _ = writeln!(self.text, "# HELP {0} {help}\n# TYPE {0} {kind}", self.name);
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: &dyn std::fmt::Display) {
        self.write("", labels, value);
    }

    fn write(&mut self, suffix: &str, labels: &[(&str, &str)], value: &dyn std::fmt::Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{suffix}{labels} {value}", self.name);
    }

    fn histogram(&mut self, times: Times<'_>) {
        let mut count = 0;
        let bounds = BOUNDS_S.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, bucket) in bounds.zip(times.buckets) {
            count += bucket;
            self.write("_bucket", &[("le", &bound)], &count);
        }
        let (whole_s, rest_ns) = (times.sum_ns / 1_000_000_000, times.sum_ns % 1_000_000_000);
        self.write("_sum", &[], &format!("{whole_s}.{rest_ns:09}"));
        self.write("_count", &[], &count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_of_a_histogram_are_cumulative_and_its_sum_is_exact() {
        let mut tally = Tally::default();
        for took_s in [0.005, 0.02, 0.02, 400.25] {
            tally.took(Act::Wait, took_s);
        }
        let text = text(&Look::default(), &tally);
        let of_waits =
            text.lines().filter(|line| line.starts_with("lowtide_wait_")).collect::<Vec<_>>();
        assert_eq!(of_waits.len(), 13, "{text}");
        assert_eq!(
            of_waits[..2],
            [
                "lowtide_wait_duration_seconds_bucket{le=\"0.01\"} 1",
                "lowtide_wait_duration_seconds_bucket{le=\"0.03\"} 3",
            ]
        );
        assert_eq!(
            of_waits[9..],
            [
                "lowtide_wait_duration_seconds_bucket{le=\"300\"} 3",
                "lowtide_wait_duration_seconds_bucket{le=\"+Inf\"} 4",
                "lowtide_wait_duration_seconds_sum 400.295000000",
                "lowtide_wait_duration_seconds_count 4",
            ]
        );
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_everybody_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lowtide.prom");
        for text in ["one", "another"] {
            replace(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o444, 0o444);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
        let link = folder.path().join("link.prom");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let error = replace(&link, "x").unwrap_err();
        assert!(error.to_string().contains("no ordinary file"), "{error:#}");
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/null"), "it stays");
        let error = replace(&folder.path().join("no/such.prom"), "x").unwrap_err();
        assert!(format!("{error:#}").contains("such.prom"), "{error:#}");
    }
}
