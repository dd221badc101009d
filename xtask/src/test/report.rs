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

use super::counts::Counts;
use crate::steps::emptied;

/// The output of every part is kept here.
const LOGS: &str = "target/test-logs";
/// What Python has compiled is kept here, also where the caller's environment says that nothing is to be
/// kept: otherwise each interpreter compiles torch again, which is half of the time of its import.
const BYTECODE: &str = "target/python-bytecode";
/// How long a part may take, three times what the longest takes on two idle cores: machines are shared.
/// A part that hangs ends here, with its output.
const LIMIT: Duration = Duration::from_secs(50 * 60);
/// How long a part of the long tests may take.
const LONG_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Runs parts and reports them. Several threads may run parts at the same time.
pub(crate) struct Report {
    /// Whether every seed of the random tests is played.
    long: bool,
    /// Whether the output of parts that pass is shown.
    verbose: bool,
    began: Instant,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    counts: Counts,
    failed: Vec<String>,
    not_run: Vec<(String, String)>,
    /// Processor time, in seconds.
    cpu_s: f64,
}

impl Report {
    /// Starts a report, with the logs of an earlier one removed.
    pub(crate) fn new(long: bool, verbose: bool) -> anyhow::Result<Report> {
        emptied(Path::new(LOGS))?;
        println!("{:<34} {:<8} {:>7} {:>7}  tests", "part", "result", "seconds", "of cpu");
        Ok(Report { long, verbose, began: Instant::now(), told: Mutex::default() })
    }

    /// Runs a part to its end, with its output in a log. Returns the output, or `None` if it failed.
    pub(crate) fn run(&self, part: &str, command: &mut Command) -> Option<String> {
        let began = Instant::now();
        let mut limit = LIMIT;
        if self.long {
            command.env("LOWTIDE_LONG", "1");
            limit = LONG_LIMIT;
        }
        let Ended { output, passed, cpu_s } = match logged(part, command, limit) {
            Ok(ended) => ended,
            Err(error) => Ended { output: format!("{error:#}\n"), passed: false, cpu_s: 0.0 },
        };
        let mut counts = Counts::read(&output);
        if !passed {
            counts.failed = counts.failed.max(1);
        }
        let mut told = self.told();
        line(part, passed, [began.elapsed().as_secs_f64(), cpu_s], &counts);
        told.cpu_s += cpu_s;
        if !passed || self.verbose {
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
        let Told { counts, failed, not_run, cpu_s } = &*self.told();
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
        println!(
            "\n{seconds:.0} s, {cpu_s:.0} s of processor time; the output of each part is in {LOGS}"
        );
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

fn line(part: &str, passed: bool, [seconds, cpu_s]: [f64; 2], counts: &Counts) {
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
    println!("{part:<34} {result:<8} {seconds:>7.1} {cpu_s:>7.1}  {}", tests.join(", "));
}

/// How a command ended.
struct Ended {
    output: String,
    passed: bool,
    cpu_s: f64,
}

/// Runs a command with its output in a log.
///
/// Nothing can be read from its standard input, whatever is at this program's own.
fn logged(part: &str, command: &mut Command, limit: Duration) -> anyhow::Result<Ended> {
    let name: String = part.chars().map(|it| if it.is_alphanumeric() { it } else { '-' }).collect();
    let path = Path::new(LOGS).join(format!("{name}.txt"));
    command.env_remove("PYTHONDONTWRITEBYTECODE");
    command.env("PYTHONPYCACHEPREFIX", std::path::absolute(BYTECODE)?);
    let log = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let (status, cpu_s) = wait(child, limit)?;
    let mut output = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    let passed = status.is_some_and(|status| status.success());
    match status {
        Some(_) if passed => {}
        Some(status) => writeln!(output, "ended with {status}")?,
        None => writeln!(output, "had not ended after {} s and was killed", limit.as_secs())?,
    }
    Ok(Ended { output, passed, cpu_s })
}

/// Waits for the end of a process. Kills it at the limit and returns no status. Returns its processor time
/// as well, in seconds, with that of its children.
fn wait(mut child: Child, limit: Duration) -> anyhow::Result<(Option<ExitStatus>, f64)> {
    let began = Instant::now();
    let mut cpu_s = 0.0;
    while began.elapsed() < limit {
        // Read before the process is waited for: then it is gone.
        cpu_s = processor_time(child.id()).unwrap_or(cpu_s);
        if let Some(status) = child.try_wait()? {
            return Ok((Some(status), cpu_s));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok((None, cpu_s))
}

/// Returns the processor time of a process and of the children that it has waited for, in seconds, as the
/// kernel says. `None` where the kernel does not say so.
fn processor_time(process: u32) -> Option<f64> {
    /// Linux counts so many in a second for programs, on every machine.
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may have spaces: the state, ten other fields, and four times.
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let times: Vec<f64> = fields.skip(11).take(4).filter_map(|ticks| ticks.parse().ok()).collect();
    (times.len() == 4).then(|| times.iter().sum::<f64>() / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_hangs_is_killed_at_its_limit() {
        let hangs = Command::new("sleep").arg("600").spawn().expect("sleep is everywhere");
        let ended = wait(hangs, Duration::from_millis(50)).expect("it can be killed");
        assert_eq!(ended.0, None);
    }

    #[test]
    fn processor_time_is_that_of_the_children_too() {
        let work = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; true";
        let works = Command::new("sh").args(["-c", work]).spawn().expect("sh is everywhere");
        let (status, cpu_s) = wait(works, Duration::from_mins(1)).expect("it can be waited for");
        assert!(status.is_some_and(|status| status.success()));
        assert!(cpu_s > 0.0, "200,000 rounds take longer than a tick: {cpu_s}");
    }
}
