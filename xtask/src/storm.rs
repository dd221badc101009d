//! The storm: a stress program for minutes or hours, in `lowtide-testing/tests/storm`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};

use crate::artifacts;
use crate::steps::{self, cargo};

const TARGET: &str = "x86_64-unknown-linux-gnu";

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
    /// Build with a sanitizer of the compiler, in a target folder of its own.
    #[arg(long)]
    sanitizer: Option<Sanitizer>,
}

/// A sanitizer of the compiler.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Sanitizer {
    /// `AddressSanitizer`: memory that is used after its end, or beyond it.
    Address,
    /// `ThreadSanitizer`: data races. Needs the component rust-src.
    Thread,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }

    /// Has a build use it.
    fn build(self, command: &mut Command) {
        // Sanitizers are flags of a nightly compiler; this makes the stable one accept them.
        command.env("RUSTC_BOOTSTRAP", "1");
        command.env("RUSTFLAGS", format!("-Zsanitizer={}", self.name()));
        command.args([
            "--target",
            TARGET,
            "--target-dir",
            &format!("target/storm-{}", self.name()),
        ]);
        if let Sanitizer::Thread = self {
            command.arg("-Zbuild-std");
        }
    }

    /// Fails if the toolchain lacks what it needs.
    fn require(self) -> anyhow::Result<()> {
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output()?;
        let sysroot = String::from_utf8(sysroot.stdout)?;
        let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
        if matches!(self, Sanitizer::Thread) && !library.exists() {
            bail!(
                "ThreadSanitizer cannot be used: it needs a standard library that was built with it, or \
                 it reports std's own locks as races. Add the source of the library: \
                 `rustup component add rust-src`"
            );
        }
        Ok(())
    }

    /// Sets the options that its runtime reads.
    fn run(self, command: &mut Command) {
        match self {
            // Children are killed and end with threads that were left behind: what they still have is
            // not a leak. The storm itself looks for those, at the device.
            Sanitizer::Address => command.env("ASAN_OPTIONS", "detect_leaks=0"),
            Sanitizer::Thread => command.env("TSAN_OPTIONS", "die_after_fork=0"),
        };
    }
}

/// Builds the storm and runs it. Returns its exit code.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(program(options.sanitizer)?);
    command.args(["--minutes", &options.minutes.to_string(), "--on", &options.on]);
    if let Some(seed) = options.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if options.json {
        command.arg("--json");
    }
    if let Some(sanitizer) = options.sanitizer {
        sanitizer.run(&mut command);
        command.env("LOWTIDE_DOUBLE_LIBRARY", double()?);
    }
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    let code = status.code().with_context(|| format!("{command:?} ended with {status}"))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Optimises what the tests leave alone: in hours, more happens.
const OPTIMISED: [&str; 2] = ["--config", "profile.dev.package.lowtide-testing.opt-level=1"];

/// Builds the program and returns its file.
fn program(sanitizer: Option<Sanitizer>) -> anyhow::Result<PathBuf> {
    let mut build = cargo(&["test", "--package", "lowtide-testing", "--test", "storm", "--no-run"]);
    build.args(["--locked", "--message-format", "json-render-diagnostics"]).args(OPTIMISED);
    if let Some(sanitizer) = sanitizer {
        sanitizer.require()?;
        sanitizer.build(&mut build);
    }
    let output = build.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{build:?} ended with {}", output.status);
    }
    let programs = artifacts::programs(&String::from_utf8(output.stdout)?);
    let storm = programs.into_iter().find(|program| program.target == "storm");
    Ok(storm.context("cargo built no storm")?.executable)
}

/// Builds the driver double without a sanitizer: a shared object that has one cannot be loaded, because
/// its runtime is part of the program and exports nothing.
fn double() -> anyhow::Result<PathBuf> {
    let mut build = cargo(&["build", "--package", "lowtide-testing", "--lib", "--locked"]);
    steps::run("driver double", build.args(OPTIMISED))?;
    Ok(std::env::current_dir()?.join("target/debug/liblowtide_testing.so"))
}
