//! The parts of the Python package: it is built and installed into an environment of its own with a
//! real torch, and tested there.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Report;

const ENVIRONMENT: &str = "target/python-environment";
const PACKAGE: &str = "crates/lowtide-python";
/// Torch, the tools that `why` is compared with, checkers, pytest, and the builder of the package.
const NEEDED: [&str; 8] =
    ["torch", "numpy", "objgraph", "pytest", "pytest-xdist", "mypy", "ruff", "maturin>=1.9,<2"];

/// Makes the environment, which is mostly a download. Returns its Python, or `None` on failure.
///
/// An environment that was made for the same requirements is kept.
pub(super) fn environment(report: &Report) -> Option<PathBuf> {
    let python = Path::new(ENVIRONMENT).join("bin/python");
    let stamp = Path::new(ENVIRONMENT).join("made-for.txt");
    let wanted = wanted();
    if fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == wanted) {
        return Some(python);
    }
    let mut make = Command::new("python3");
    report.run("python environment", make.args(["-m", "venv", "--clear", ENVIRONMENT]))?;
    report.run("torch and tools", pip_install(&python).args(NEEDED))?;
    // Last, so that an environment that was not finished is made anew.
    fs::write(stamp, wanted).ok()?;
    Some(python)
}

/// What an environment is made for: the machine's Python, and what is installed.
fn wanted() -> String {
    let version = Command::new("python3").arg("--version").output();
    let version = version.map_or_else(|error| error.to_string().into(), |output| output.stdout);
    format!("{}{}\n", String::from_utf8_lossy(&version), NEEDED.join("\n"))
}

/// Builds, checks and tests the package.
pub(super) fn test(report: &Report) {
    let Some(python) = environment(report) else {
        return report.not_run("python package", "its environment could not be made");
    };
    let module = |name: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", name]);
        command
    };
    report.run("python lints", module("ruff").args(["check", "--no-cache", PACKAGE]));
    let format = ["format", "--check", "--no-cache", PACKAGE];
    report.run("python format", module("ruff").args(format));
    // In the profile of the tests, so that cargo has most of it already.
    let mut package = pip_install(&python);
    package.args(["--no-deps", "--no-build-isolation", "--force-reinstall", "."]);
    package.env("MATURIN_PEP517_ARGS", "--profile dev --locked").env("PATH", path(&python));
    if report.run("python package", &mut package).is_none() {
        return report.not_run("python tests", "the package could not be built");
    }
    let types = ["--cache-dir", "target/mypy-cache", "--package", "lowtide"];
    report.run("python types", module("mypy").args(types));
    // By file: what a file's tests share is made once.
    let arguments = ["-q", "-rs", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"];
    report.run("python tests", module("pytest").args(arguments).arg(PACKAGE));
}

fn pip_install(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    command
}

/// The search path with the environment's programs first: pip looks for maturin there.
fn path(python: &Path) -> OsString {
    let first = std::path::absolute(python).ok().and_then(|path| Some(path.parent()?.to_owned()));
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = first.into_iter().chain(std::env::split_paths(&others));
    std::env::join_paths(all).unwrap_or(others.clone())
}
