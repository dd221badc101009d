//! The Python tests in other environments: on every Python that is found, and with the oldest torch.

use std::path::Path;

use super::Report;
use super::python::{Environment, version};
use crate::steps::cargo;

/// The minor versions of Python 3 that the package is for.
const MINORS: std::ops::RangeInclusive<u32> = 10..=14;
/// Torch and what the tests import. The checkers run on one Python only.
const NEEDED: [&str; 8] =
    ["torch", "numpy", "objgraph", "pytest", "pytest-xdist", "mypy", "greenlet", "ipython"];
/// The oldest torch that the package works with. It was built for numpy 1 and Python 3.8 to 3.11.
const OLDEST: [&str; 6] = ["torch==2.1.*", "numpy<2", "objgraph", "pytest", "pytest-xdist", "mypy"];

/// How many questions a busy server is asked by `lowtide why`, and the time that this may take.
const TRIALS: [(&str, &str); 2] = [("LOWTIDE_TRIALS", "1000"), ("LOWTIDE_TEST_LIMIT_S", "3000")];

/// Runs all tests on each Python that is found on the search path.
pub(super) fn on_each(report: &Report, wheel: Option<&Path>) {
    // For the trials of `why PID`.
    programs(report);
    for minor in MINORS {
        let interpreter = format!("python3.{minor}");
        if version(&interpreter).is_none() {
            report.skip(&format!("tests on Python 3.{minor}: it is not on the search path"));
            continue;
        }
        let (name, folder) = (format!("python 3.{minor}"), format!("target/python-3.{minor}"));
        let folder = folder.into();
        let (needed, variables) = (&NEEDED, &TRIALS);
        test(report, &Environment { name, folder, interpreter, needed, variables }, wheel);
    }
}

/// Builds the programs and libraries that Python tests start.
pub(super) fn programs(report: &Report) -> Option<String> {
    let mut build = cargo(&["build", "--locked", "-p", "lowtide-cli", "-p", "lowtide-agent"]);
    report.run("programs", build.args(["-p", "lowtide-helper", "-p", "lowtide-testing"]))
}

/// Runs all tests with the oldest torch.
pub(super) fn with_oldest_torch(report: &Report, wheel: Option<&Path>) {
    let interpreter = ["python3.11", "python3.10"].map(str::to_owned);
    let Some(interpreter) = interpreter.into_iter().find(|python| version(python).is_some()) else {
        return report.skip("tests with torch 2.1: neither Python 3.10 nor 3.11 is here");
    };
    let (name, folder) = ("torch 2.1".to_owned(), "target/python-torch-2.1".into());
    let (needed, variables) = (&OLDEST, &[]);
    test(report, &Environment { name, folder, interpreter, needed, variables }, wheel);
}

fn test(report: &Report, environment: &Environment<'_>, wheel: Option<&Path>) {
    let made = wheel.and_then(|wheel| Some((environment.make(report)?, wheel)));
    let tested = made.and_then(|(python, wheel)| environment.test(report, &python, wheel));
    if tested.is_none() {
        let why = "the package or its environment could not be made, or tests failed";
        report.not_run(&format!("all {} tests", environment.name), why);
    }
}
