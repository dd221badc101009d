//! The pack for GPU machines: the `lowtide` program, the tests, the benchmarks, in one folder.
//!
//! Built here, run there: that machine needs no Rust and no network, only a glibc at least as new
//! as the one here.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::artifacts::{self, Program};
use crate::peers;
use crate::steps::{cargo, emptied, pip, python, run, size_of};

const MOST_MIB: u64 = 60;
const TEST_PROGRAMS: [&str; 4] = ["device_suites", "pool_suites", "requirements", "storm"];
/// The driver double, which the storm loads.
const DOUBLE: &str = "liblowtide_testing.so";
/// Says what a pack is of; also tells a pack from another folder.
const COMMIT: &str = "commit.txt";
/// The agent, for `agent.sh`.
const AGENT: &str = "liblowtide_agent.so";
/// `lowtide` finds the helper, which suspends others, beside itself.
const PROGRAMS: [&str; 3] = ["lowtide", "lowtide-bench", "lowtide-helper"];
const SCRIPTS: &[&str] = &[
    "run.sh",
    "python.sh",
    "storm.sh",
    "agent.sh",
    "plain_copy.py",
    "agent.py",
    "look.py",
    "loops.py",
    "backends.py",
    "command_line.py",
    "driver.py",
    "frameworks.py",
    "every_quiet.py",
    "misuse.py",
    "sharing.py",
    "share.py",
    "rl.py",
    "rl_memory.py",
    "programs.py",
    "suspend.py",
    "tag.py",
    "why.py",
];
/// The table of the driver's functions, and how it is read, for `every_quiet.py`.
const TABLE: [&str; 2] = ["driver.tsv", "from_header.py"];
/// What GPU machines do not have, and the tests of the Python package need.
const PYTHON_NEEDS: [&str; 2] = ["pytest", "objgraph"];

/// Writes the pack, with the peers that the benchmarks compare with or without.
pub(crate) fn write(to: &Path, with_peers: bool) -> anyhow::Result<()> {
    if to.exists() {
        // A pack whose build failed has its scripts and no commit.
        let ours = [COMMIT, SCRIPTS[0]].iter().any(|file| to.join(file).exists())
            || fs::read_dir(to)?.next().is_none();
        ensure!(ours, "{} is not empty and not a pack; name another folder", to.display());
    }
    emptied(to)?;
    let mut programs =
        built(&["build", "-p", "lowtide-cli", "-p", "lowtide-bench", "-p", "lowtide-helper"])?;
    let mut tests =
        vec!["test", "-p", "lowtide-testing", "-p", "lowtide-pool", "-p", "lowtide-release"];
    tests.extend(TEST_PROGRAMS.iter().flat_map(|test| ["--test", test]));
    tests.push("--no-run");
    programs.extend(built(&tests)?);
    for wanted in TEST_PROGRAMS.iter().chain(&PROGRAMS) {
        let found = programs.iter().find(|program| program.target == *wanted);
        let from = &found.with_context(|| format!("cargo built no {wanted}"))?.executable;
        copy(from, &to.join(wanted))?;
    }
    for (package, library) in [("lowtide-testing", DOUBLE), ("lowtide-agent", AGENT)] {
        built(&["build", "-p", package, "--lib"])?;
        copy(&Path::new("target/pack").join(library), &to.join(library))?;
    }
    // It is optimised more than in the tests, which has shown what they did not.
    let mut agent = cargo(&["test", "--profile", "pack", "--locked", "-p", "lowtide-agent"]);
    run("the agent on the double", agent.args(["--test", "agent", "threads_that_work"]))?;
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-w", "-pthread", "-o"]).arg(to.join("cost"));
    compile.args(["crates/lowtide-agent/examples/cost.c", "-ldl"]);
    run("the program that launches", &mut compile)?;
    for file in TABLE {
        copy(&Path::new("crates/lowtide-agent/table").join(file), &to.join(file))?;
    }
    for script in SCRIPTS {
        // With their permissions: the shell's can be executed.
        copy(&Path::new("xtask/gpu-pack").join(script), &to.join(script))?;
    }
    copy_folder(Path::new("bench"), &to.join("bench"))?;
    python_package(&to.join("python"))?;
    for peer in if with_peers { peers::fetched()? } else { Vec::new() } {
        copy_folder(&peer, &to.join("peers"))?;
    }
    fs::write(to.join(COMMIT), commit()?)?;
    let size = size_of(to)?;
    ensure!(size < MOST_MIB << 20, "the pack is {} MiB, more than {MOST_MIB}", size >> 20);
    println!(
        "{}: {} MiB. There: ./run.sh RESULTS, ./python.sh RESULTS, ./storm.sh RESULTS, ./agent.sh RESULTS, python3 bench/side_by_side.py RESULTS",
        to.display(),
        size.div_ceil(1 << 20)
    );
    Ok(())
}

/// Writes the wheel, what its tests need, and the tests.
fn python_package(to: &Path) -> anyhow::Result<()> {
    let python = python(Path::new("target/pack-environment"))?;
    let mut wheel = pip(&python, &["wheel", "--no-deps", "."]);
    // The program and the agent are in the pack already.
    run("wheel", wheel.arg("--wheel-dir").arg(to).env("LOWTIDE_WHEEL_PROGRAMS", "no"))?;
    let only = ["download", "--only-binary=:all:", "--python-version", peers::PYTHON];
    run("what its tests need", pip(&python, &only).args(PYTHON_NEEDS).arg("--dest").arg(to))?;
    // The tests hold receipts against their schema.
    copy_folder(Path::new("docs/schemas"), &to.join("docs/schemas"))?;
    for folder in ["tests", "bench", "examples", "adopt"] {
        copy_folder(&Path::new("crates/lowtide-python").join(folder), &to.join(folder))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).map(drop).with_context(|| format!("copying {}", from.display()))
}

/// Copies a folder without what Python has compiled, and without Rust: that machine has none.
fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if !path.is_dir() {
            copy(&path, &to.join(name))?;
        } else if name != "__pycache__" && !from.join("Cargo.toml").exists() {
            copy_folder(&path, &to.join(name))?;
        }
    }
    Ok(())
}

// Builds and returns the programs.
fn built(arguments: &[&str]) -> anyhow::Result<Vec<Program>> {
    let mut command = cargo(arguments);
    command.args(["--profile", "pack", "--locked", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    Ok(artifacts::programs(&String::from_utf8(output.stdout)?))
}

// Results are worth something only beside the commit they are of.
fn commit() -> anyhow::Result<String> {
    let git = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").args(arguments).output().context("asking git")?;
        ensure!(output.status.success(), "git {arguments:?} ended with {}", output.status);
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let dirty = if git(&["status", "--porcelain"])?.is_empty() { "" } else { " with changes" };
    Ok(format!("{}{dirty}\n", git(&["rev-parse", "--short=12", "HEAD"])?))
}
