//! The parts that cargo does: lints, test programs, doc tests, docs.

use std::fs::{self, DirEntry};
use std::num::NonZero;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use super::Report;
use crate::artifacts::{self, Kind, Program};
use crate::steps::cargo;

/// What clippy is told after its own arguments.
const DENY: [&str; 3] = ["--", "-D", "warnings"];

/// Runs everything that needs no Python. `--workspace` is in every command, so that cargo chooses
/// the same features of all dependencies each time and compiles them once.
///
/// The test programs are built after the wheel, and the agent's first: the Python tests use it. `is_alone`
/// ends with the Python tests.
pub(super) fn test(
    report: &Report,
    has_wheel: &Receiver<()>,
    agent: Sender<()>,
    is_alone: Receiver<()>,
) {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !has(subcommand) {
            let mut install = Command::new("rustup");
            report.run(component, install.args(["component", "add", component]));
        }
    }
    report.run("format", &mut cargo(&["fmt", "--all", "--check"]));
    let _is_built = has_wheel.recv();
    let as_the_wheel = as_the_wheel();
    let workspace = |subcommand| {
        let mut command = cargo(&[subcommand, "--workspace", "--locked"]);
        command.envs(as_the_wheel.clone());
        command
    };
    report.run("build of the agent", workspace("test").args(["--test", "agent", "--no-run"]));
    drop(agent);
    let json = ["--message-format", "json-render-diagnostics"];
    let mut build = workspace("test");
    // `--tests` leaves out the examples, which the lints have compiled and nobody runs here.
    build.args(["--tests", "--no-run"]).args(json);
    let built = report.run("build", &mut build);
    thread::scope(|scope| {
        scope.spawn(move || match built {
            Some(output) => run_all(report, artifacts::programs(&output), &is_alone),
            None => report.not_run("tests", "the build failed"),
        });
        let lints = report.run("lints", workspace("clippy").arg("--all-targets").args(DENY));
        report.run("doc tests", workspace("test").arg("--doc"));
        let mut docs = workspace("doc");
        docs.args(["--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", "-D warnings");
        if lints.is_some() {
            use_metadata_of_lints(&mut docs);
        }
        report.run("docs", &mut docs);
    });
}

/// Returns the variables by which maturin tells pyo3 what it builds. With others, cargo compiles pyo3 and the walk
/// again, which takes 35 processor seconds. There are none if no wheel was built.
fn as_the_wheel() -> Vec<(&'static str, PathBuf)> {
    let files = fs::read_dir("target/maturin").into_iter().flatten().flatten();
    let is_config = |it: &DirEntry| it.file_name().to_string_lossy().starts_with("pyo3-config-");
    // Of several Pythons, that of the wheel that was just built.
    let newest =
        files.filter(is_config).max_by_key(|it| it.metadata().and_then(|it| it.modified()).ok());
    let Some(config) = newest.and_then(|it| absolute(it.path()).ok()) else {
        return Vec::new();
    };
    vec![("PYO3_CONFIG_FILE", config), ("PYO3_BUILD_EXTENSION_MODULE", "1".into())]
}

/// Makes cargo take the metadata of the workspace's crates from the lints. Otherwise it checks all of them
/// again for their docs, which takes 11 processor seconds: to cargo, a crate that clippy checked is another
/// one than a crate that rustc checked. The variables are those that `cargo clippy` sets.
fn use_metadata_of_lints(docs: &mut Command) {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map_or_else(|_| Vec::new(), |output| output.stdout);
    let driver = Path::new(String::from_utf8_lossy(&sysroot).trim_end()).join("bin/clippy-driver");
    if driver.is_file() {
        let arguments = DENY[1..].iter().map(|it| format!("{it}__CLIPPY_HACKERY__"));
        docs.env("RUSTC_WORKSPACE_WRAPPER", driver);
        docs.env("CLIPPY_ARGS", arguments.collect::<String>());
    }
}

fn has(subcommand: &str) -> bool {
    cargo(&[subcommand, "--version"]).output().is_ok_and(|output| output.status.success())
}

/// Runs test programs: half as many at once as there are cores while the Python tests run, then as many.
fn run_all(report: &Report, mut programs: Vec<Program>, is_alone: &Receiver<()>) {
    programs.retain(|program| program.kind != Kind::Program);
    // The long ones first, so that none of them runs alone at the end.
    programs.sort_by_key(|program| (program.kind, program.package.clone()));
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let at_first = cores.div_ceil(2);
    let next = AtomicUsize::new(0);
    let run_some = || {
        while let Some(program) = programs.get(next.fetch_add(1, SeqCst)) {
            report.run(&name(program), &mut command(program));
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_first {
            scope.spawn(run_some);
        }
        let _has_ended = is_alone.recv();
        for _ in at_first..cores {
            scope.spawn(run_some);
        }
    });
}

fn name(program: &Program) -> String {
    let target = if program.kind == Kind::UnitTests { "unit tests" } else { &program.target };
    format!("{}: {target}", program.package_name())
}

/// As cargo would run it: in the folder of its package.
fn command(program: &Program) -> Command {
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
    command
}
