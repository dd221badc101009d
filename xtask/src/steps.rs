//! Running one program after another, saying which and for how long, stopping at the first failure.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::python;

/// A cargo command of the toolchain that runs this.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments);
    command
}

/// Runs a program to its end.
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

/// The Python of an environment in that folder, made where there is none: the machine's own Python
/// stays as it is.
pub(crate) fn python(environment: &Path) -> anyhow::Result<PathBuf> {
    let python = environment.join("bin/python");
    if !python.exists() {
        run("environment", Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    }
    Ok(python)
}

/// Every check and test there is.
pub(crate) fn test() -> anyhow::Result<()> {
    let began = Instant::now();
    need_component("fmt", "rustfmt")?;
    need_component("clippy", "clippy")?;
    run("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    let lints = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    run("lints", &mut cargo(&lints))?;
    run("tests", &mut cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]))?;
    // The gate, the idle policy, turns and copies under a model checker, which brings its own locks.
    let models = ["--features", "loom", "--test", "loom", "--release"];
    for package in ["lowtide-release", "lowtide-pool"] {
        let lints = ["clippy", "-p", package, "--locked", "--features", "loom", "--tests"];
        run("lints of models", cargo(&lints).args(["--", "-D", "warnings"]))?;
        run("models", cargo(&["test", "-p", package, "--locked"]).args(models))?;
    }
    let docs = ["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"];
    run("docs", cargo(&docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    python::test()?;
    println!("── everything passed in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn need_component(subcommand: &str, component: &str) -> anyhow::Result<()> {
    let there =
        cargo(&[subcommand, "--version"]).output().is_ok_and(|output| output.status.success());
    if there {
        return Ok(());
    }
    run("install", Command::new("rustup").args(["component", "add", component]))
}
