//! The parts of the Python package: it is built and installed into an environment of its own with a
//! real torch, and tested there.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Report;
use crate::steps::pip;

pub(super) const PACKAGE: &str = "crates/lowtide-python";
/// By file: what a file's tests share is made once. `tests/limits.py` ends a test that hangs.
pub(super) const PYTEST: [&str; 8] =
    ["-q", "-rs", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"];
/// Torch, the tool that `why` is compared with, small packages whose ways to keep memory it knows,
/// a server, a driver of browsers, checkers and pytest.
const NEEDED: [&str; 11] = [
    "torch",
    "numpy",
    "objgraph",
    "greenlet",
    "ipython",
    "uvicorn",
    "playwright",
    "pytest",
    "pytest-xdist",
    "mypy",
    "ruff",
];

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
    /// Variables for the tests.
    pub(super) variables: &'a [(&'a str, &'a str)],
}

impl Environment<'_> {
    /// Makes the environment and fills it. Returns its Python, or `None` on failure.
    ///
    /// An environment that was made and filled for the same requirements is kept.
    pub(super) fn make(&self, report: &Report) -> Option<PathBuf> {
        let python = self.folder.join("bin/python");
        let (stamp, wanted) = (self.folder.join("made-for.txt"), self.wanted());
        if fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == wanted) {
            return Some(python);
        }
        let mut make = Command::new(&self.interpreter);
        report.run(&self.name, make.args(["-m", "venv", "--clear"]).arg(&self.folder))?;
        // A file is compiled when it is imported, and few of them are.
        let mut install = pip(&python, &["install", "--no-compile"]);
        report.run(&format!("{}: packages", self.name), install.args(self.needed))?;
        // Last, so that an environment that was not finished is made anew.
        fs::write(stamp, wanted).ok()?;
        Some(python)
    }

    /// What the environment is made for: the version of its Python, and what is installed.
    fn wanted(&self) -> String {
        let version = version(&self.interpreter).unwrap_or_default();
        format!("{version}{}\n", self.needed.join("\n"))
    }

    /// Installs the wheel in an environment that is made, and runs the tests there.
    pub(super) fn test(&self, report: &Report, python: &Path, wheel: &Path) -> Option<()> {
        self.run(report, python, wheel, &[&PYTEST[..], &[PACKAGE]].concat())
    }

    /// Installs the wheel in an environment that is made, and runs pytest there.
    pub(super) fn run(
        &self,
        report: &Report,
        python: &Path,
        wheel: &Path,
        words: &[&str],
    ) -> Option<()> {
        let mut package = pip(python, &["install", "--no-deps", "--force-reinstall"]);
        report.run(&format!("{} package", self.name), package.arg(wheel))?;
        let mut tests = Command::new(python);
        tests.args(["-m", "pytest"]).args(words).envs(self.variables.iter().copied());
        report.run(&format!("{} tests", self.name), &mut tests).map(drop)
    }
}

/// Returns what a Python says of its version, or `None` if there is no such Python.
pub(super) fn version(interpreter: &str) -> Option<String> {
    let output = Command::new(interpreter).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The environment of the machine's own Python.
pub(super) fn environment() -> Environment<'static> {
    let (name, interpreter) = ("python".to_owned(), "python3".to_owned());
    let folder = "target/python-environment".into();
    Environment { name, folder, interpreter, needed: &NEEDED, variables: &[] }
}

/// Checks and tests the package in its environment.
pub(super) fn test(report: &Report, python: Option<&Path>, wheel: Option<&Path>) {
    let (Some(python), Some(wheel)) = (python, wheel) else {
        return report.not_run("python tests", "the package or its environment could not be made");
    };
    let module = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(python);
        command.args(["-m", name]).args(arguments);
        command
    };
    report.run("python lints", &mut module("ruff", &["check", "--no-cache", PACKAGE]));
    let format = ["format", "--check", "--no-cache", PACKAGE];
    report.run("python format", &mut module("ruff", &format));
    let _told = environment().test(report, python, wheel);
    let types = ["--cache-dir", "target/mypy-cache", "--package", "lowtide"];
    report.run("python types", &mut module("mypy", &types));
}

/// Builds the wheel, as the tests have it. Returns where it is, or `None` on failure.
pub(super) fn wheel(report: &Report) -> Option<PathBuf> {
    let builder = Environment {
        name: "python builder".to_owned(),
        folder: "target/python-builder".into(),
        interpreter: "python3".to_owned(),
        needed: &["maturin>=1.9,<2"],
        variables: &[],
    };
    let python = builder.make(report)?;
    // Only one: an older one may have another version.
    let folder = Path::new("target/wheels");
    let _none_yet = fs::remove_dir_all(folder);
    let mut build = pip(&python, &["wheel", "--no-deps", "--no-build-isolation", "."]);
    build.arg("--wheel-dir").arg(folder).envs(BUILD).env("PATH", path(&python));
    report.run("python wheel", &mut build)?;
    Some(fs::read_dir(folder).ok()?.next()?.ok()?.path())
}

/// The search path with the environment's programs first: pip looks for maturin there.
fn path(python: &Path) -> OsString {
    let first = std::path::absolute(python).ok().and_then(|path| Some(path.parent()?.to_owned()));
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = first.into_iter().chain(std::env::split_paths(&others));
    std::env::join_paths(all).unwrap_or(others.clone())
}
