//! The soak: programs under the agent for minutes or hours, in `lowtide-agent/tests/agent/soak.rs`.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};

use crate::artifacts;
use crate::steps::{self, cargo};

const TEST: &str = "soak::programs_that_share_memory_keep_their_bytes_whatever_dies_or_fails";

/// The arguments of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long it lasts.
    #[arg(long, default_value = "5")]
    minutes: f64,
    /// The seed. Without it, another one each time; it is in the log.
    #[arg(long)]
    seed: Option<u32>,
    /// Return at once and leave it running.
    #[arg(long)]
    detached: bool,
}

/// Builds the soak and runs it on copies of what was built, with its output in a log. Returns its exit code.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    steps::run("helper", &mut cargo(&["build", "--package", "lowtide-helper", "--locked"]))?;
    let mut build =
        cargo(&["test", "--package", "lowtide-agent", "--test", "agent", "--no-run", "--locked"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{build:?} ended with {}", output.status);
    }
    let programs = artifacts::programs(&String::from_utf8(output.stdout)?);
    let tests = programs.into_iter().find(|program| program.kind == artifacts::Kind::Tests);
    let tests = tests.context("cargo built no tests of the agent")?.executable;

    let folder = steps::emptied(Path::new("target/soak"))?;
    let beside = tests.parent().context("it is in a folder")?;
    for name in ["liblowtide_agent.so", "liblowtide_testing.so", "../lowtide-helper"] {
        let to = folder.join(Path::new(name).file_name().context("a name")?);
        fs::copy(beside.join(name), to).with_context(|| name.to_owned())?;
    }
    let (program, log) = (folder.join("agent"), folder.join("log"));
    fs::copy(tests, &program)?;

    // In a mount namespace of its own it can have a full disk.
    let can_mount =
        Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success());
    let mut command = Command::new("nice");
    command.args(["-n", "19"]);
    if can_mount {
        command.args(["unshare", "-rm"]).env("SOAK_INSIDE", "1");
    }
    command.arg(&program).args([TEST, "--exact", "--nocapture"]);
    command.env("SOAK_MINUTES", options.minutes.to_string());
    command.envs(options.seed.map(|seed| ("SOAK_SEED", seed.to_string())));
    let output = File::create(&log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    println!("process {}, log: {}", child.id(), log.display());
    if options.detached {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    print!("{}", fs::read_to_string(&log)?);
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
