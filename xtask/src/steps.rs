//! What several commands do: they start cargo, Python and any other program, and look after folders.

use std::fs;
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

/// A pip command of a Python.
pub(crate) fn pip(python: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(arguments);
    command
}

/// Empties a folder, or makes it. Returns its absolute path.
pub(crate) fn emptied(folder: &Path) -> anyhow::Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("emptying {}", folder.display()))?;
    }
    fs::create_dir_all(folder)?;
    Ok(std::path::absolute(folder)?)
}

/// Returns the bytes of the files in a folder.
pub(crate) fn size_of(folder: &Path) -> std::io::Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        size += if kind.is_dir() { size_of(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(size)
}
