//! Tries what was made, as its users will: the wheel in an empty environment, the archive in an empty folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::{HELPER, PROGRAM, TO};
use crate::steps::{emptied, pip, run};

/// What is run in the environment of the wheel, and a text that must be in its output.
const PROGRAMS: [(&[&str], &str); 4] = [
    (&["bin/lowtide", "doctor"], "host"),
    (&["bin/python", "-m", "lowtide", "--version"], concat!("lowtide ", env!("CARGO_PKG_VERSION"))),
    (&["bin/python", "-c", "import lowtide; print(lowtide.why())"], "why on"),
    (&["bin/lowtide", "run", "--", "bin/python", "-c", ECHO], "liblowtide_agent.so"),
];
/// Prints which of the libraries in a process is the agent's.
const ECHO: &str = "print([line for line in open('/proc/self/maps') if 'lowtide_agent' in line])";

/// Installs the wheel into an empty environment and runs it there.
pub(super) fn wheel(wheel: &Path) -> anyhow::Result<()> {
    let environment = emptied(&Path::new(TO).join("environment"))?;
    let began = Instant::now();
    run("an empty environment", Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    // Without an index: it must need nothing else.
    let mut install = pip(&environment.join("bin/python"), &["install", "--no-index"]);
    run("the wheel", install.arg("--no-cache-dir").arg(wheel))?;
    for (words, expected) in PROGRAMS {
        let text = said(&environment, words)?;
        ensure!(text.contains(expected), "{words:?} printed no {expected:?}:\n{text}");
        if text.contains("why on") {
            println!("from nothing to the first why: {:.1} s", began.elapsed().as_secs_f64());
        }
    }
    has_helper(&environment)?;
    has_no_path_file(&environment)?;
    fs::remove_dir_all(environment)?;
    Ok(())
}

/// Unpacks the archive into an empty folder and runs the program there.
pub(super) fn archive(archive: &Path) -> anyhow::Result<()> {
    let folder = emptied(&Path::new(TO).join("unpacked"))?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(&folder);
    run("the archive, unpacked", &mut unpack)?;
    said(&folder, &["bin/lowtide", "doctor"])?;
    said(&folder, &["bin/lowtide", "run", "--", "true"])?;
    said(&folder, &["bin/lowtide-bench", "alloc", "--blocks", "100", "--no-growth"])?;
    has_helper(&folder)?;
    for path in [
        "share/man/man1/lowtide-run.1",
        "share/man/man1/lowtide-bench-sleep.1",
        "share/bash-completion/completions/lowtide",
        "share/zsh/site-functions/_lowtide",
        "share/fish/vendor_completions.d/lowtide.fish",
        "lib/lowtide/python/lowtide/_outside/answer.py",
        "lib/lowtide/python/lowtide/_native.abi3.so",
    ] {
        ensure!(folder.join(path).is_file(), "the archive has no {path}");
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}

/// Fails if the helper is not where the command and the agent look for it, or may not be executed.
fn has_helper(folder: &Path) -> anyhow::Result<()> {
    let helper = folder.join("lib/lowtide").join(HELPER);
    let mode = fs::metadata(&helper).with_context(|| helper.display().to_string())?.permissions();
    ensure!(mode.mode() & 0o111 == 0o111, "{} cannot be executed", helper.display());
    Ok(())
}

/// Fails if the wheel has put a `.pth` file there, which every Python of the environment would run.
fn has_no_path_file(environment: &Path) -> anyhow::Result<()> {
    let site =
        said(environment, &["bin/python", "-c", "import lowtide; print(lowtide.__path__[0])"])?;
    let packages = Path::new(site.trim()).parent().context("a package is in a folder")?;
    for entry in fs::read_dir(packages)? {
        let path = entry?.path();
        let is_pips = path.file_stem() == Some("distutils-precedence".as_ref());
        let is_run = path.extension() == Some("pth".as_ref()) && !is_pips;
        ensure!(!is_run, "the wheel installs {}", path.display());
    }
    Ok(())
}

/// Runs a program of a folder, from that folder. Returns what it printed. Fails if it fails.
fn said(folder: &Path, words: &[&str]) -> anyhow::Result<String> {
    println!("── {}", words.join(" "));
    let mut command = Command::new(folder.join(words[0]));
    // The repository's own package must not be found instead.
    command.args(&words[1..]).current_dir(folder).env_remove("PYTHONPATH");
    let output = command.output().with_context(|| format!("starting {PROGRAM}"))?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{words:?} ended with {}\n{out}{err}", output.status);
    Ok(out.into_owned())
}
