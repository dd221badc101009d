//! The storm: a stress program for minutes or hours, in `lowtide-testing/tests/storm`.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};

use crate::artifacts;
use crate::steps::cargo;

/// The arguments of `cargo xtask storm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long it lasts.
    #[arg(long, default_value = "1")]
    minutes: f64,
    /// The seed. Without it, another one each time; it is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// The device: host, the driver double, or both in turn.
    #[arg(long, default_value = "both", value_parser = ["host", "double", "both"])]
    on: String,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// Builds the storm and runs it. Returns its exit code.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(program()?);
    command.args(["--minutes", &options.minutes.to_string(), "--on", &options.on]);
    if let Some(seed) = options.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if options.json {
        command.arg("--json");
    }
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    let code = status.code().with_context(|| format!("{command:?} ended with {status}"))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Builds the program and returns its file.
fn program() -> anyhow::Result<std::path::PathBuf> {
    let mut build = cargo(&["test", "--package", "lowtide-testing", "--test", "storm", "--no-run"]);
    build.args(["--locked", "--message-format", "json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{build:?} ended with {}", output.status);
    }
    let programs = artifacts::programs(&String::from_utf8(output.stdout)?);
    let storm = programs.into_iter().find(|program| program.target == "storm");
    Ok(storm.context("cargo built no storm")?.executable)
}
