//! The Python tests in other environments: on every Python that is found, and with the oldest torch.

use std::path::Path;
use std::process::Command;

use super::Report;
use super::python::{Environment, PACKAGE, PYTEST, pip_install, version, wheel};

/// The minor versions of Python 3 that the package is for.
const MINORS: std::ops::RangeInclusive<u32> = 10..=14;
/// Torch and what the tests import. The checkers run on one Python only.
const NEEDED: [&str; 8] =
    ["torch", "numpy", "objgraph", "pytest", "pytest-xdist", "mypy", "greenlet", "ipython"];
/// The oldest torch that the package works with. It was built for numpy 1 and Python 3.8 to 3.11.
const OLDEST: [&str; 6] = ["torch==2.1.*", "numpy<2", "objgraph", "pytest", "pytest-xdist", "mypy"];

/// Runs all tests on each Python that is found on the search path.
pub(super) fn on_each(report: &Report) {
    let found: Vec<(u32, String)> = MINORS
        .filter_map(|minor| {
            let interpreter = format!("python3.{minor}");
            let found = version(&interpreter).is_some();
            if !found {
                report.skip(&format!("tests on Python 3.{minor}: it is not on the search path"));
            }
            found.then_some((minor, interpreter))
        })
        .collect();
    let Some(wheel) = wheel(report) else {
        return report.not_run("python tests", "the package could not be built");
    };
    for (minor, interpreter) in found {
        let folder = format!("target/python-3.{minor}").into();
        let name = format!("python 3.{minor}");
        test(report, &Environment { name, folder, interpreter, needed: &NEEDED }, &wheel);
    }
}

/// Runs all tests with the oldest torch.
pub(super) fn with_oldest_torch(report: &Report) {
    let interpreter = ["python3.11", "python3.10"].map(str::to_owned);
    let Some(interpreter) = interpreter.into_iter().find(|python| version(python).is_some()) else {
        return report.skip("tests with torch 2.1: neither Python 3.10 nor 3.11 is here");
    };
    let Some(wheel) = wheel(report) else {
        return report.not_run("torch 2.1 tests", "the package could not be built");
    };
    let (name, folder) = ("torch 2.1".to_owned(), "target/python-torch-2.1".into());
    test(report, &Environment { name, folder, interpreter, needed: &OLDEST }, &wheel);
}

fn test(report: &Report, environment: &Environment<'_>, wheel: &Path) {
    let part = format!("{} tests", environment.name);
    let Some(python) = environment.make(report) else {
        return report.not_run(&part, "its environment could not be made");
    };
    let mut install = pip_install(&python);
    install.args(["--no-deps", "--force-reinstall"]).arg(wheel);
    if report.run(&format!("{} package", environment.name), &mut install).is_none() {
        return report.not_run(&part, "the package could not be installed");
    }
    let mut tests = Command::new(&python);
    report.run(&part, tests.args(["-m", "pytest"]).args(PYTEST).arg(PACKAGE));
}
