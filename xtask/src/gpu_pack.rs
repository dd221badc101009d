//! The pack for GPU machines: the `lowtide` program, the tests, the benchmarks, in one folder.
//!
//! Built here, run there: that machine needs no Rust and no network, only a glibc at least as new
//! as the one here.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::artifacts::{self, Program};
use crate::peers;
use crate::steps::{self, cargo};

const MOST_MIB: u64 = 60;
const TEST_PROGRAMS: [&str; 4] = ["device_suites", "pool_suites", "requirements", "storm"];
/// The driver double, which the storm loads.
const DOUBLE: &str = "liblowtide_testing.so";
/// Says what a pack is of; also tells a pack from another folder.
const COMMIT: &str = "commit.txt";
/// The agent, for `agent.sh`.
const AGENT: &str = "liblowtide_agent.so";
/// The program that suspends others; `lowtide` finds it beside itself.
const HELPER: &str = "lowtide-helper";
const SCRIPTS: [&str; 13] = [
    "run.sh",
    "python.sh",
    "storm.sh",
    "agent.sh",
    "plain_copy.py",
    "agent.py",
    "loops.py",
    "backends.py",
    "frameworks.py",
    "quiet.py",
    "every_quiet.py",
    "suspend.py",
    "tag.py",
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
        fs::remove_dir_all(to).with_context(|| format!("emptying {}", to.display()))?;
    }
    fs::create_dir_all(to)?;
    let mut size = 0;
    let mut programs =
        built(&["build", "-p", "lowtide-cli", "-p", "lowtide-bench", "-p", "lowtide-helper"])?;
    programs.extend(built(&[
        "test",
        "--package",
        "lowtide-testing",
        "--package",
        "lowtide-pool",
        "--package",
        "lowtide-release",
        "--test",
        "device_suites",
        "--test",
        "pool_suites",
        "--test",
        "requirements",
        "--test",
        "storm",
        "--no-run",
    ])?);
    for wanted in TEST_PROGRAMS.iter().chain(&["lowtide", "lowtide-bench", HELPER]) {
        let found = programs.iter().find(|program| program.target == *wanted);
        let from = &found.with_context(|| format!("cargo built no {wanted}"))?.executable;
        size += fs::copy(from, to.join(wanted))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    built(&["build", "--package", "lowtide-testing", "--lib"])?;
    size += fs::copy(Path::new("target/pack").join(DOUBLE), to.join(DOUBLE))?;
    built(&["build", "--package", "lowtide-agent", "--lib"])?;
    size += fs::copy(Path::new("target/pack").join(AGENT), to.join(AGENT))?;
    size += launches(&to.join("cost"))?;
    for file in TABLE {
        size += fs::copy(Path::new("crates/lowtide-agent/table").join(file), to.join(file))?;
    }
    for script in SCRIPTS {
        size += fs::copy(Path::new("xtask/gpu-pack").join(script), to.join(script))?;
    }
    size += bench_scripts(&to.join("bench"))?;
    size += python_package(&to.join("python"))?;
    for peer in if with_peers { peers::fetched()? } else { Vec::new() } {
        size += copy_folder(&peer, &to.join("peers"))?;
    }
    for script in ["run.sh", "python.sh", "storm.sh", "agent.sh"] {
        fs::set_permissions(to.join(script), fs::Permissions::from_mode(0o755))?;
    }
    fs::write(to.join(COMMIT), commit()?)?;
    ensure!(size < MOST_MIB << 20, "the pack is {} MiB, more than {MOST_MIB}", size >> 20);
    println!(
        "{}: {} MiB. There: ./run.sh RESULTS, ./python.sh RESULTS, ./storm.sh RESULTS, ./agent.sh RESULTS, python3 bench/side_by_side.py RESULTS",
        to.display(),
        size.div_ceil(1 << 20)
    );
    Ok(())
}

/// Compiles the C program that launches. Returns how many bytes it has.
fn launches(to: &Path) -> anyhow::Result<u64> {
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-w", "-pthread", "-o"]).arg(to);
    compile.args(["crates/lowtide-agent/examples/cost.c", "-ldl"]);
    steps::run("the program that launches", &mut compile)?;
    Ok(fs::metadata(to)?.len())
}

/// The wheel, what its tests need, and the tests. Returns how many bytes that is.
fn python_package(to: &Path) -> anyhow::Result<u64> {
    let python = steps::python(Path::new("target/pack-environment"))?;
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--disable-pip-version-check"]).args(arguments);
        command.arg("--quiet");
        command
    };
    let mut wheel = pip(&["wheel", "--no-deps", "."]);
    // The program and the agent are in the pack already.
    steps::run("wheel", wheel.arg("--wheel-dir").arg(to).env("LOWTIDE_WHEEL_PROGRAMS", "no"))?;
    let mut needs = pip(&["download", "--only-binary=:all:", "--python-version", peers::PYTHON]);
    steps::run("what its tests need", needs.args(PYTHON_NEEDS).arg("--dest").arg(to))?;
    let mut size = 0;
    for entry in fs::read_dir(to)? {
        size += entry?.metadata()?.len();
    }
    // The tests hold receipts against their schema.
    size += copy_folder(Path::new("docs/schemas"), &to.join("docs/schemas"))?;
    for folder in ["tests", "bench", "examples", "adopt"] {
        let from = Path::new("crates/lowtide-python").join(folder);
        size += copy_folder(&from, &to.join(folder))?;
    }
    Ok(size)
}

/// Copies the peers' side of the benchmarks. Returns how many bytes that is.
fn bench_scripts(to: &Path) -> anyhow::Result<u64> {
    fs::create_dir_all(to)?;
    let mut size = 0;
    for entry in fs::read_dir("bench")? {
        let path = entry?.path();
        if let (Some("py" | "cpp"), Some(name)) =
            (path.extension().and_then(|it| it.to_str()), path.file_name())
        {
            size += fs::copy(&path, to.join(name))?;
        }
    }
    Ok(size)
}

// Returns how many bytes it copied.
fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<u64> {
    fs::create_dir_all(to)?;
    let mut size = 0;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if !path.is_dir() {
            size += fs::copy(&path, copy)?;
        } else if entry.file_name() != "__pycache__" {
            size += copy_folder(&path, &copy)?;
        }
    }
    Ok(size)
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
