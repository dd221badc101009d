//! The report of `cargo xtask test`: one line for each part, the output of those that failed, and at
//! the end what was skipped and why.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Options;
use super::counts::Counts;

/// The output of every part is kept here.
const LOGS: &str = "target/test-logs";
/// How long a part may take, four times what the longest takes on two cores. A part that hangs ends
/// here, with its output.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// How long a part of the long tests may take.
const LONG_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Runs parts and reports them. Several threads may run parts at the same time.
pub(crate) struct Report {
    options: Options,
    began: Instant,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    counts: Counts,
    failed: Vec<String>,
    not_run: Vec<(String, String)>,
}

impl Report {
    /// Starts a report, with the logs of an earlier one removed.
    pub(crate) fn new(options: Options) -> anyhow::Result<Report> {
        if Path::new(LOGS).exists() {
            fs::remove_dir_all(LOGS).with_context(|| format!("emptying {LOGS}"))?;
        }
        fs::create_dir_all(LOGS)?;
        println!("{:<34} {:<8} {:>7}  tests", "part", "result", "seconds");
        Ok(Report { options, began: Instant::now(), told: Mutex::default() })
    }

    /// Runs a part to its end, with its output in a log. Returns the output, or `None` if it failed.
    pub(crate) fn run(&self, part: &str, command: &mut Command) -> Option<String> {
        let began = Instant::now();
        let mut limit = LIMIT;
        if self.options.long {
            command.env("LOWTIDE_LONG", "1");
            limit = LONG_LIMIT;
        }
        let (output, passed) = match logged(part, command, limit) {
            Ok(ended) => ended,
            Err(error) => (format!("{error:#}\n"), false),
        };
        let mut counts = Counts::read(&output);
        if !passed {
            counts.failed = counts.failed.max(1);
        }
        let mut told = self.told();
        line(part, passed, began.elapsed(), &counts);
        if !passed || self.options.verbose {
            println!("{}\n{command:?}", output.trim_end());
        }
        told.counts += &counts;
        if !passed {
            told.failed.push(part.to_owned());
        }
        passed.then_some(output)
    }

    /// Notes that a part was not run.
    pub(crate) fn not_run(&self, part: &str, why: &str) {
        println!("{part:<34} not run");
        self.told().not_run.push((part.to_owned(), why.to_owned()));
    }

    /// Notes tests that cannot run here, and why.
    pub(crate) fn skip(&self, why: &str) {
        *self.told().counts.skipped.entry(why.to_owned()).or_default() += 1;
    }

    /// Prints what was skipped and why, and the closing line. Fails if a part failed or was not run.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        let seconds = self.began.elapsed().as_secs_f64();
        let Told { counts, failed, not_run } = &*self.told();
        if !counts.skipped.is_empty() {
            println!("\nskipped tests, and why");
        }
        for (why, tests) in &counts.skipped {
            println!("{tests:>6}  {why}");
        }
        for (part, why) in not_run {
            println!("\nnot run: {part}, because {why}");
        }
        if !failed.is_empty() {
            println!("\nfailed: {}", failed.join(", "));
        }
        println!("\n{seconds:.0} s; the output of each part is in {LOGS}");
        let skipped = counts.skipped_in_all();
        println!("{} passed, {} failed, {skipped} skipped", counts.passed, counts.failed);
        if !failed.is_empty() || !not_run.is_empty() {
            bail!("not everything passed");
        }
        Ok(())
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no part panics")
    }
}

fn line(part: &str, passed: bool, took: Duration, counts: &Counts) {
    let result = if passed { "ok" } else { "FAILED" };
    let mut tests = Vec::new();
    for (count, word) in [(counts.passed, "passed"), (counts.skipped_in_all(), "skipped")] {
        if count > 0 {
            tests.push(format!("{count} {word}"));
        }
    }
    if !passed {
        tests.push(format!("{} failed", counts.failed));
    }
    println!("{part:<34} {result:<8} {:>7.1}  {}", took.as_secs_f64(), tests.join(", "));
}

/// Runs a command with its output in a log. Returns the output and whether the command succeeded.
///
/// Nothing can be read from its standard input, whatever is at this program's own.
fn logged(part: &str, command: &mut Command, limit: Duration) -> anyhow::Result<(String, bool)> {
    let name: String = part.chars().map(|it| if it.is_alphanumeric() { it } else { '-' }).collect();
    let path = Path::new(LOGS).join(format!("{name}.txt"));
    let log = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let status = wait(child, limit)?;
    let mut output = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    match status {
        Some(status) if status.success() => return Ok((output, true)),
        Some(status) => writeln!(output, "ended with {status}")?,
        None => writeln!(output, "had not ended after {} s and was killed", limit.as_secs())?,
    }
    Ok((output, false))
}

/// Waits for the end of a process. Kills it at the limit and returns `None`.
fn wait(mut child: Child, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_hangs_is_killed_at_its_limit() {
        let hangs = Command::new("sleep").arg("600").spawn().expect("sleep is everywhere");
        let ended = wait(hangs, Duration::from_millis(50)).expect("it can be killed");
        assert_eq!(ended, None);
    }
}
