//! The parts of the Python package: it is built and installed into an environment of its own with a
//! real torch, and tested there.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use super::Report;

pub(super) const PACKAGE: &str = "crates/lowtide-python";
/// By file: what a file's tests share is made once. `tests/limits.py` ends a test that hangs.
pub(super) const PYTEST: [&str; 8] =
    ["-q", "-rs", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"];
/// Torch, the tool that `why` is compared with, small packages whose ways to keep memory it knows,
/// checkers and pytest.
const NEEDED: [&str; 9] =
    ["torch", "numpy", "objgraph", "greenlet", "ipython", "pytest", "pytest-xdist", "mypy", "ruff"];
/// The builder of the package, which is installed first: the wheel is built while torch is installed.
const BUILDER: &str = "maturin>=1.9,<2";

/// How the package is built: in the profile of the tests, so that cargo has most of it already; without
/// the programs, which the Rust tests build; with its output in the log only.
const BUILD: [(&str, &str); 3] = [
    ("MATURIN_PEP517_ARGS", "--profile dev --locked"),
    ("LOWTIDE_WHEEL_PROGRAMS", "no"),
    ("CARGO_TERM_QUIET", "true"),
];

/// A virtual environment.
pub(super) struct Environment<'a> {
    /// The name of the part that makes it.
    pub(super) name: String,
    pub(super) folder: PathBuf,
    /// The Python that makes it.
    pub(super) interpreter: String,
    pub(super) needed: &'a [&'a str],
}

impl Environment<'_> {
    /// Makes the environment and fills it. Returns its Python, or `None` on failure.
    pub(super) fn make(&self, report: &Report) -> Option<PathBuf> {
        let python = self.begin(report)?;
        self.fill(report, &python)?;
        Some(python)
    }

    /// Makes an environment without packages. Returns its Python, or `None` on failure.
    ///
    /// An environment that was made and filled for the same requirements is kept.
    fn begin(&self, report: &Report) -> Option<PathBuf> {
        if !self.is_filled() {
            let mut make = Command::new(&self.interpreter);
            report.run(&self.name, make.args(["-m", "venv", "--clear"]).arg(&self.folder))?;
        }
        Some(self.folder.join("bin/python"))
    }

    /// Installs what is needed, which is mostly a download. Returns `None` on failure.
    fn fill(&self, report: &Report, python: &Path) -> Option<()> {
        if self.is_filled() {
            return Some(());
        }
        let tools = format!("{}: torch and tools", self.name);
        // A file is compiled when it is imported, and few of them are.
        report.run(&tools, pip_install(python).arg("--no-compile").args(self.needed))?;
        // Last, so that an environment that was not finished is made anew.
        fs::write(self.stamp(), self.wanted()).ok()
    }

    fn is_filled(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|made_for| made_for == self.wanted())
    }

    fn stamp(&self) -> PathBuf {
        self.folder.join("made-for.txt")
    }

    /// What the environment is made for: the version of its Python, and what is installed.
    fn wanted(&self) -> String {
        let version = version(&self.interpreter).unwrap_or_default();
        format!("{version}{}\n", self.needed.join("\n"))
    }
}

/// Returns what a Python says of its version, or `None` if there is no such Python.
pub(super) fn version(interpreter: &str) -> Option<String> {
    let output = Command::new(interpreter).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The environment of the machine's own Python.
fn environment() -> Environment<'static> {
    let (name, interpreter) = ("python environment".to_owned(), "python3".to_owned());
    let folder = "target/python-environment".into();
    Environment { name, folder, interpreter, needed: &NEEDED }
}

/// Builds, checks and tests the package. Drops `wheel` once that is built, or cannot be.
pub(super) fn test(report: &Report, wheel: Sender<()>, has_agent: &Receiver<()>) {
    let environment = environment();
    let Some(python) = environment.begin(report) else {
        return report.not_run("python package", "its environment could not be made");
    };
    let has_builder = install_builder(report, &python).is_some();
    let (wheel, filled) = thread::scope(|scope| {
        let wheel = scope.spawn(|| {
            let _told_at_the_end = wheel;
            has_builder.then(|| build(report, &python)).flatten()
        });
        let filled = environment.fill(report, &python);
        (wheel.join().expect("no part panics"), filled)
    });
    let (Some(wheel), Some(())) = (wheel, filled) else {
        return report.not_run("python tests", "the package or its environment could not be made");
    };
    let module = |name: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", name]);
        command
    };
    report.run("python lints", module("ruff").args(["check", "--no-cache", PACKAGE]));
    let format = ["format", "--check", "--no-cache", PACKAGE];
    report.run("python format", module("ruff").args(format));
    let mut package = pip_install(&python);
    package.args(["--no-deps", "--force-reinstall"]).arg(wheel);
    if report.run("python package", &mut package).is_none() {
        return report.not_run("python tests", "the package could not be installed");
    }
    let types = ["--cache-dir", "target/mypy-cache", "--package", "lowtide"];
    report.run("python types", module("mypy").args(types));
    let _is_built = has_agent.recv();
    let mut tests = module("pytest");
    tests.args(PYTEST).arg(PACKAGE);
    report.run("python tests", &mut tests);
}

/// Builds the wheel, as the tests have it. Returns where it is, or `None` on failure.
pub(super) fn wheel(report: &Report) -> Option<PathBuf> {
    let python = environment().begin(report)?;
    install_builder(report, &python)?;
    build(report, &python)
}

fn install_builder(report: &Report, python: &Path) -> Option<String> {
    report.run("python builder", pip_install(python).arg(BUILDER))
}

fn build(report: &Report, python: &Path) -> Option<PathBuf> {
    // Only one: an older one may have another version.
    let folder = Path::new("target/wheels");
    let _none_yet = fs::remove_dir_all(folder);
    let mut build = Command::new(python);
    build.args(["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    build.args(["--no-build-isolation", "."]).arg("--wheel-dir").arg(folder);
    build.envs(BUILD).env("PATH", path(python));
    report.run("python wheel", &mut build)?;
    let entry = fs::read_dir(folder).ok()?.next()?.ok()?;
    Some(entry.path())
}

pub(super) fn pip_install(python: &Path) -> Command {
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
