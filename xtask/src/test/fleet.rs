//! The tests of `lowtide.ray` with real Ray, in an environment of their own: Ray is large, and its clusters take all of
//! a small machine.

use std::path::Path;

use super::Report;
use super::python::Environment;
use super::pythons::programs;

const NEEDED: [&str; 4] = ["ray[serve]", "torch", "numpy", "pytest"];
/// One cluster after another.
const PYTEST: [&str; 5] =
    ["-q", "-rs", "-p", "no:cacheprovider", "crates/lowtide-python/tests/fleet"];
/// How long one test may take: ten thousand tasks, on a busy machine.
const LIMIT: [(&str, &str); 1] = [("LOWTIDE_TEST_LIMIT_S", "3600")];

/// Runs the tests.
pub(super) fn test(report: &Report, wheel: Option<&Path>) {
    let environment = Environment {
        name: "fleet".to_owned(),
        folder: "target/fleet-environment".into(),
        interpreter: "python3".to_owned(),
        needed: &NEEDED,
        variables: &LIMIT,
    };
    let made = programs(report).zip(environment.make(report)).zip(wheel);
    let tested =
        made.and_then(|((_, python), wheel)| environment.run(report, &python, wheel, &PYTEST));
    if tested.is_none() {
        let why = "programs, package or environment could not be made, or tests failed";
        report.not_run("all fleet tests", why);
    }
}
