//! `lowtide run`: starts a program with the agent in it, in this program's own place.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::builder::{EnumValueParser, TypedValueParser as _};
use lowtide_proto::Obstacle;
use lowtide_proto::helper::Helper;
use lowtide_release::parse_time;

use crate::program::ending::Ending;

/// The file of the agent.
const AGENT: &str = "liblowtide_agent.so";
/// The folder beside the agent whose `sitecustomize.py` adopts projects in Python programs.
const ADOPT: &str = "adopt";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The program is not changed. Its CUDA memory of 2 MiB or more per allocation leaves the device while \
                  the program sleeps, and comes back before the program's next use of the device. `lowtide status` \
                  shows what stays on the device and what keeps a program from sleeping.\n\n\
                  Programs that the loader gives no preload library (static ones, set-user-id ones) run as without \
                  lowtide.\n\n\
                  Examples:\n  lowtide run --idle 5m -- python serve.py\n  lowtide run --idle 5m --to suspend -- \
                  python serve.py"
)]
pub(crate) struct Options {
    /// Put the program to sleep when it has not used the device for so long: 30s, 5m, 1h. Without it, the
    /// program sleeps only when `lowtide sleep` says so.
    #[arg(long, value_name = "TIME", value_parser = time)]
    idle: Option<String>,
    /// What idleness leads to: `sleep` takes the program's memory off the device and leaves its context, some
    /// hundred MiB; `suspend` leaves nothing, and takes a few tenths of a second longer each way.
    #[arg(long, value_name = "STATE", default_value = "sleep", requires = "idle")]
    to: To,
    /// How long a use of the device waits for room when the program wakes; then it fails with the driver's
    /// out-of-memory error, and the program stays asleep. Without it: 60s.
    #[arg(long, value_name = "TIME", value_parser = time)]
    wake_timeout: Option<String>,
    /// Let the program sleep although something is in the way that `lowtide status` names: rdma, gdrcopy,
    /// cufile, ucx, nvshmem, mps, sync-memops. Only if nothing but the program itself uses its memory.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = obstacle)]
    despite: Vec<Obstacle>,
    /// Have the Python package in the program adopt a project that loads models: its clean-up becomes
    /// releases with receipts. The package must be installed in the program's environment.
    #[arg(
        long,
        value_name = "PROJECT",
        value_delimiter = ',',
        value_parser = EnumValueParser::<Project>::new().try_map(adoptable)
    )]
    adopt: Vec<Project>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What idleness leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum To {
    Sleep,
    Suspend,
}

/// A project that the Python package can adopt.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Project {
    Autorag,
    DoclingServe,
    LmmsEval,
    Sglang,
    /// Refused with what to do instead.
    #[value(hide = true)]
    Vllm,
}

/// Executes the command; returns only if that fails.
pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let agent = find_agent()?;
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]).env("LD_PRELOAD", preloaded(&agent));
    if let Some(idle) = &options.idle {
        command.env("LOWTIDE_FREE_ON_IDLE", idle);
    }
    if options.to == To::Suspend {
        // Before the program starts, so that a missing part is said here and not when it is idle.
        Helper::find_program(&agent)?;
        command.env("LOWTIDE_IDLE_TO", "suspend");
    }
    if let Some(limit) = &options.wake_timeout {
        command.env("LOWTIDE_WAKE_TIMEOUT", limit);
    }
    if !options.despite.is_empty() {
        let words: Vec<&str> = options.despite.iter().map(|obstacle| obstacle.word()).collect();
        command.env("LOWTIDE_DESPITE", words.join(","));
    }
    if !options.adopt.is_empty() {
        let names = options.adopt.iter().filter_map(clap::ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|name| name.get_name().to_owned()).collect();
        command.env("LOWTIDE_ADOPT", names.join(","));
        command.env("PYTHONPATH", python_path(&agent)?);
    }
    let error = command.exec();
    Err(error).with_context(|| format!("running {}", options.command[0].display()))
}

/// Puts the agent before the libraries that are preloaded already.
fn preloaded(agent: &Path) -> OsString {
    let mut all = OsString::from(agent);
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(others);
    }
    all
}

/// Puts the folder that adopts before the folders that Python searches already.
fn python_path(agent: &Path) -> anyhow::Result<OsString> {
    let folder = agent.with_file_name(ADOPT);
    if !folder.join("sitecustomize.py").is_file() {
        bail!(
            "--adopt is not installed: {} is missing; the wheel and the archive of `cargo xtask dist` have it",
            folder.join("sitecustomize.py").display()
        );
    }
    let mut all = OsString::from(folder);
    if let Some(others) = env::var_os("PYTHONPATH").filter(|others| !others.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(others);
    }
    Ok(all)
}

/// Finds the agent's library: where `LOWTIDE_AGENT_LIBRARY` says, or beside this program.
fn find_agent() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("LOWTIDE_AGENT_LIBRARY").map(PathBuf::from) {
        if path.is_file() {
            return Ok(path.canonicalize()?);
        }
        bail!("LOWTIDE_AGENT_LIBRARY is {}, which is no file", path.display());
    }
    let program = env::current_exe().context("finding this program")?;
    let folder = program.parent().unwrap_or(&program);
    let places = [folder.join(AGENT), folder.join("../lib/lowtide").join(AGENT)];
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Ok(place.canonicalize()?),
        None => bail!(
            "the agent is missing: {AGENT} is neither beside {} nor in ../lib/lowtide; build it with \
             `cargo build --release -p lowtide-agent`, or set LOWTIDE_AGENT_LIBRARY to its path",
            program.display()
        ),
    }
}

fn adoptable(project: Project) -> Result<Project, &'static str> {
    match project {
        Project::Vllm => Err(
            "vLLM need not be adopted: start it with `--enable-sleep-mode --sleep-mode-backend \
                              lowtide`, in an environment that has lowtide",
        ),
        other => Ok(other),
    }
}

fn obstacle(text: &str) -> Result<Obstacle, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn time(text: &str) -> Result<String, String> {
    match parse_time(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("{text:?} is not a time; write 500ms, 30s or 5m")),
    }
}
