//! The parts that cargo does: format, test programs, lints, doc tests, docs.

use std::process::Command;

use super::Report;
use crate::artifacts::{self, Kind, Program};
use crate::steps::cargo;

/// `--workspace` is in every command, so that cargo chooses the same features of all dependencies each
/// time and compiles them once.
fn workspace(subcommand: &str) -> Command {
    cargo(&[subcommand, "--workspace", "--locked"])
}

/// Checks the format, after it has installed what is missing of the toolchain.
pub(super) fn format(report: &Report) {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let version = cargo(&[subcommand, "--version"]).output();
        if !version.is_ok_and(|output| output.status.success()) {
            let mut install = Command::new("rustup");
            report.run(component, install.args(["component", "add", component]));
        }
    }
    report.run("format", &mut cargo(&["fmt", "--all", "--check"]));
}

/// Builds the test programs, and the libraries that the Python tests load. Returns `None` on failure.
pub(super) fn build(report: &Report) -> Option<Vec<Program>> {
    let json = ["--tests", "--no-run", "--message-format", "json-render-diagnostics"];
    report.run("build", workspace("test").args(json)).map(|output| artifacts::programs(&output))
}

/// Runs the test programs, one after another: each has threads of its own.
pub(super) fn test(report: &Report, programs: Option<Vec<Program>>) {
    let Some(programs) = programs else { return report.not_run("tests", "the build failed") };
    for program in programs.iter().filter(|program| program.kind != Kind::Program) {
        let target = match program.kind {
            Kind::UnitTests => "unit tests",
            _ => &program.target,
        };
        let mut command = Command::new(&program.executable);
        // As cargo would run it: in the folder of its package.
        command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
        report.run(&format!("{}: {target}", program.package_name()), &mut command);
    }
}

/// Runs lints and doc tests, and builds the docs.
pub(super) fn check(report: &Report) {
    report.run("lints", workspace("clippy").args(["--all-targets", "--", "-D", "warnings"]));
    report.run("doc tests", workspace("test").arg("--doc"));
    let mut docs = workspace("doc");
    docs.args(["--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", "-D warnings");
    report.run("docs", &mut docs);
}
