//! `lowtide report`: one HTML file that shows a program, what lowtide printed, or an allocation trace.
//!
//! history.rs reads a trace; the page itself is `lowtide_report::page`.

mod history;

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lowtide_pool::trace;
use lowtide_types::printable;
use serde_json::{Value, json};

use crate::arguments::files;
use crate::commands::{agents, ps, queue};
use crate::program::ending::Ending;
use crate::text::clock::since_1970;
use crate::text::page::Page;

/// The time between two looks at a process.
const LOOK: Duration = Duration::from_millis(250);
/// What the report of a process says of holders.
const NO_HOLDERS: &str = "Who holds the memory is another question: lowtide why PID --json, whose answer this command takes, too.";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file has JSON that lowtide printed (receipts, `status --json`, `why --json`, `ps --watch --json`, \
                  a stages report), or is a trace as `lowtide replay` reads it. What is seen of a process is what \
                  `lowtide status PID --json` tells; with --for, over time.\n\n\
                  The file holds names and sizes, loads nothing from elsewhere, and opens in any browser.\n\n\
                  Examples:\n  lowtide report 4711 --for 30 -o report.html\n  \
                  lowtide sleep 4711 --json | lowtide report - -o report.html\n  \
                  lowtide report trace.csv -o report.html"
)]
pub(crate) struct Options {
    /// The number of a process that was started with `lowtide run`, or a file; `-` reads standard input.
    #[arg(value_name = "PID | FILE")]
    subject: PathBuf,
    /// The file to write, in the place of one that exists.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Look at the process for so many seconds.
    #[arg(long = "for", value_name = "SECONDS", value_parser = ps::seconds)]
    watched: Option<Duration>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let subject = &options.subject;
    let pid = subject.to_str().and_then(|text| agents::process(text).ok());
    let (title, documents) = match pid {
        Some(pid) => (format!("process {pid}"), of_process(pid, options.watched)?),
        None if options.watched.is_some() => bail!("--for is about a process, not a file"),
        None => {
            let name = subject.file_name().unwrap_or(subject.as_os_str());
            (name.to_string_lossy().into_owned(), of_file(subject)?)
        }
    };
    let version = env!("CARGO_PKG_VERSION");
    let data =
        json!({ "title": title, "version": version, "at_s": since_1970(), "documents": documents });
    let html = lowtide_report::page(&data.to_string());
    files::write(&options.output, |mut out| {
        out.write_all(html.as_bytes())?;
        out.flush()
    })?;
    let mut page = Page::default();
    page.line(&format!("{}: open it in a browser", printable(&options.output.to_string_lossy())));
    page.print()?;
    Ok(Ending::Proved)
}

/// Returns what the agent of a process tells, once or over some time, and the turns that programs take.
fn of_process(pid: u32, watched: Option<Duration>) -> anyhow::Result<Vec<Value>> {
    let end = Instant::now() + watched.unwrap_or_default();
    let mut documents = Vec::new();
    loop {
        let begun = Instant::now();
        let status = serde_json::to_value(agents::program_of(pid)?)?;
        let at_s = since_1970();
        documents.push(json!({ "at_s": at_s, "status": status }));
        if Instant::now() >= end {
            break;
        }
        thread::sleep(LOOK.saturating_sub(begun.elapsed()));
    }
    documents.push(json!({ "notes": [NO_HOLDERS] }));
    documents.extend(queue::of_user().map(|queue| json!({ "queue": queue })));
    Ok(documents)
}

/// Reads a file: a trace, or JSON.
fn of_file(path: &Path) -> anyhow::Result<Vec<Value>> {
    let mut input: Box<dyn BufRead> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(files::open(path)?)),
    };
    let named = || format!("reading {}", path.display());
    let first =
        input.fill_buf().with_context(named)?.iter().find(|byte| !byte.is_ascii_whitespace());
    if !matches!(first, Some(b'{' | b'[')) {
        return Ok(vec![history::of(&trace::read(input).with_context(named)?)]);
    }
    let documents: Result<Vec<Value>, _> =
        serde_json::Deserializer::from_reader(input).into_iter().collect();
    documents.with_context(named)
}
