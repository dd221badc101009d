//! Programs that xtask starts: cargo, Python, and any other, run to its end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

/// A cargo command of the toolchain that built xtask.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments);
    command
}

/// Runs a program to its end, with its output on the terminal. Fails if the program fails.
pub(crate) fn run(name: &str, command: &mut Command) -> anyhow::Result<()> {
    println!("── {name}");
    let began = Instant::now();
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{name}: {command:?} ended with {status}");
    }
    println!("── {name}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Returns the Python of the virtual environment in `environment`. Makes the environment if there
/// is none, so that the machine's own Python stays as it is.
pub(crate) fn python(environment: &Path) -> anyhow::Result<PathBuf> {
    let python = environment.join("bin/python");
    if !python.exists() {
        run("environment", Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    }
    Ok(python)
}
