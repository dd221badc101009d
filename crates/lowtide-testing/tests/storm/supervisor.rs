//! The supervisor: starts children, kills some of them, and looks for what they leave behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_testing::Dice;
use lowtide_testing::double::Double;
use lowtide_testing::suite::Target;

use crate::arguments::Arguments;
use crate::figures::Figures;
use crate::sabotage::Sabotage;
use crate::world::GONE_WITHIN;

/// A child plays at least this long, if the storm lasts.
const CHILD_LEAST: Duration = Duration::from_millis(500);
/// A child has this long to end after its time: more than a thread that hangs is given.
const PATIENCE: Duration = Duration::from_secs(360);
/// In the environment of every child, and of everything that a child starts or forks.
const MARK: &str = "LOWTIDE_STORM";

/// Runs children until the time is over. Returns the figures, also of a storm that failed.
pub(crate) fn run(arguments: &Arguments) -> (Figures, Result<(), String>) {
    let began = Instant::now();
    let mut figures = Figures { seed: arguments.seed, ..Figures::default() };
    let outcome = Ground::new(arguments.sabotage).and_then(|mut ground| {
        let mut dice = Dice::new(arguments.seed);
        for target in arguments.on.iter().cycle() {
            let left = arguments.time.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            ground.round(*target, left, &mut dice, &mut figures)?;
        }
        Ok(())
    });
    figures.seconds = began.elapsed().as_secs_f64();
    (figures, outcome)
}

/// The folders of all children. What is in them after a child ended by itself was left behind.
struct Ground {
    folder: tempfile::TempDir,
    program: PathBuf,
    sabotage: Option<Sabotage>,
    /// Records of host memory that the last child left.
    records: Vec<PathBuf>,
}

impl Ground {
    fn new(sabotage: Option<Sabotage>) -> Result<Ground, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("no folder: {error}"))?;
        let program = std::env::current_exe().map_err(|error| format!("no program: {error}"))?;
        let ground = Ground { folder, program, sabotage, records: Vec::new() };
        fs::create_dir(ground.home()).map_err(|error| format!("no folder: {error}"))?;
        Ok(ground)
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The value of [`MARK`], which no other process has.
    fn mark(&self) -> &str {
        self.folder.path().to_str().unwrap_or("storm")
    }

    /// Runs one child to its end, or kills it on the way.
    fn round(
        &mut self,
        target: Target,
        left: Duration,
        dice: &mut Dice,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let seed = dice.roll(1 << 40);
        let time = (CHILD_LEAST + Duration::from_millis(dice.roll(4000))).min(left);
        let is_killed = dice.one_in(3);
        let lives = time * dice.roll(1000) as u32 / 1000;
        let who = format!("the child on {target} with seed {seed} for {:.3} s", time.as_secs_f64());
        let mut child = self.start(target, seed, time)?;
        let stdout = child.stdout.take().expect("it was asked for");
        let reader = thread::spawn(move || last_report(BufReader::new(stdout)));
        let mut stderr = child.stderr.take().expect("it was asked for");
        let listener = thread::spawn(move || {
            let mut text = Vec::new();
            // A child that is killed has said what it could.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        figures.children += 1;
        let limit = if is_killed { lives } else { time + PATIENCE };
        let ended = wait(&mut child, limit)?;
        let killed = ended.is_none();
        if killed {
            child.kill().map_err(|error| format!("kill: {error}"))?;
            child.wait().map_err(|error| format!("wait: {error}"))?;
        }
        let gone = self.wait_until_gone();
        let report = reader.join().unwrap_or_default();
        figures.add(&report.unwrap_or_default());
        gone.map_err(|left| format!("{who} has ended, and its process {left} has not"))?;
        let said = listener.join().unwrap_or_default();
        match ended {
            None if !is_killed => Err(format!("{who} did not end\n{said}")),
            None => {
                figures.kills += 1;
                Ok(())
            }
            Some(status) if !status.success() => Err(format!("{who} ended with {status}\n{said}")),
            Some(_) => self
                .check_files()
                .map_err(|file| format!("{who} has ended and left {}", file.display())),
        }
    }

    fn start(&self, target: Target, seed: u64, time: Duration) -> Result<Child, String> {
        let mut command = Command::new(&self.program);
        command.args(["--child", "--on", &target.to_string(), "--seed", &seed.to_string()]);
        command.args(["--seconds", &time.as_secs_f64().to_string()]);
        command.env(MARK, self.mark()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(sabotage) = self.sabotage {
            command.args(["--sabotage", &sabotage.name()]);
        }
        for folder in [
            "HOME",
            "TMPDIR",
            "XDG_RUNTIME_DIR",
            "XDG_CACHE_HOME",
            "XDG_STATE_HOME",
            "XDG_DATA_HOME",
        ] {
            command.env(folder, self.home());
        }
        if target == Target::Double {
            let library = Double::path();
            command.env("LOWTIDE_CUDA_LIBRARY", &library).env("LOWTIDE_NVML_LIBRARY", &library);
            // All children are on one machine, so that memory of a dead one would be seen.
            command.env("LOWTIDE_DOUBLE_STATE", self.folder.path().join("machine"));
            // As a child leaves it that is killed while a neighbour is on the device.
            command.env("LOWTIDE_DOUBLE", "foreign=4242:32MiB");
        }
        command.spawn().map_err(|error| format!("no child: {error}"))
    }

    /// Waits until no process has the mark. Returns the one that stays.
    fn wait_until_gone(&self) -> Result<(), u32> {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            let Some(pid) = marked(self.mark()) else { return Ok(()) };
            if Instant::now() > until {
                return Err(pid);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks the folders after a child has ended by itself. Fails with a file that it left.
    ///
    /// The record of granted host memory of a process that has ended stays until another process reads
    /// the records. So those that are there now must be gone when the next child has ended.
    fn check_files(&mut self) -> Result<(), PathBuf> {
        let name =
            |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut records = Vec::new();
        for file in files(&self.home()) {
            match name(&file).as_str() {
                "meminfo" | "host-memory.lock" => {}
                record if record.starts_with("host-memory-") => records.push(file),
                _ => return Err(file),
            }
        }
        if let Some(stale) = records.iter().find(|record| self.records.contains(record)) {
            return Err(stale.clone());
        }
        self.records = records;
        Ok(())
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Returns a process with this mark in its environment.
fn marked(mark: &str) -> Option<u32> {
    let wanted = format!("{MARK}={mark}\0");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids = pids.filter(|pid| *pid != std::process::id());
    pids.find(|pid| {
        // A process that is gone, or another user's, has no environment that can be read.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(wanted.len()).any(|window| window == wanted.as_bytes())
    })
}

/// Waits for a child, up to a limit.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>, String> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("wait: {error}"))? {
            return Ok(Some(status));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        thread::sleep(left.min(Duration::from_millis(5)));
    }
}

/// Reads the reports of a child to their end. Returns the last whole one.
fn last_report(lines: impl BufRead) -> Option<Figures> {
    let lines = lines.lines().map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_str(&line).ok()).last()
}
