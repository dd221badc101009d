//! `cargo xtask dist`: what people install.
//!
//! Five files are linked: the Python module, the programs and the helper by zig, which has the C library of every
//! glibc, and the agent by the ordinary linker, because its build script binds it to an old one. Each is
//! read afterwards: none may need a newer glibc than the wheel promises.

mod check;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::steps::{cargo, emptied, pip, python, run};

const TO: &str = "target/dist";
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The newest glibc that may be needed, as its minor version: that of manylinux 2.28.
const GLIBC: u32 = 28;
const PROGRAM: &str = "lowtide";
/// The benchmarks: in the archive, not in the wheel.
const BENCH: &str = "lowtide-bench";
const AGENT: &str = "liblowtide_agent.so";
const HELPER: &str = "lowtide-helper";
/// What builds and links the wheel.
const TOOLS: [&str; 3] = ["maturin>=1.9,<2", "cargo-zigbuild", "ziglang"];

/// Makes the wheel, the archive and their checksums, and tries them in empty folders.
pub(crate) fn make() -> anyhow::Result<()> {
    let to = Path::new(TO);
    emptied(to)?;
    let prefix = to.join("prefix");
    let tools = tools()?;
    let wheel = module(&tools, to)?;
    let [program, bench, agent, helper] = programs(&tools, &prefix)?;
    let mut add = Command::new(tools.join("python"));
    add.arg("packaging/wheel_file.py").args([&wheel, &program, &agent, &helper]);
    run("the programs into the wheel", &mut add)?;
    let module = unpacked_module(&tools, &wheel)?;
    let archive = archive(&prefix, [&program, &bench])?;
    checksums(to, &[&wheel, &archive])?;
    for file in [&program, &bench, &agent, &helper, &module] {
        needs_no_newer_glibc(file)?;
    }
    check::wheel(&wheel)?;
    check::archive(&archive)?;
    fs::remove_dir_all(prefix)?;
    for made in [wheel, archive, to.join("SHA256SUMS")] {
        println!("{}: {:.1} MiB", made.display(), mib(&made)?);
    }
    Ok(())
}

/// Installs the tools. Returns the folder of their programs.
fn tools() -> anyhow::Result<PathBuf> {
    let python = python(Path::new("target/dist-environment"))?;
    run("tools", pip(&python, &["install"]).args(TOOLS))?;
    let folder = python.parent().context("a Python is in a folder")?;
    Ok(std::path::absolute(folder)?)
}

/// Starts a tool, which finds the others on its search path.
fn tool(tools: &Path, name: &str) -> anyhow::Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path);
    let path = std::env::join_paths(std::iter::once(tools.to_owned()).chain(all))?;
    let mut command = Command::new(tools.join(name));
    command.env("PATH", path);
    Ok(command)
}

/// Builds the Python package as a wheel without programs. Returns the wheel.
fn module(tools: &Path, to: &Path) -> anyhow::Result<PathBuf> {
    let mut build = tool(tools, "maturin")?;
    build.args(["build", "--profile", "pack", "--locked", "--zig", "--target", TARGET]);
    build.args(["--compatibility", &format!("manylinux_2_{GLIBC}"), "--out"]).arg(to);
    run("module", &mut build)?;
    let mut entries = fs::read_dir(to)?.filter_map(|entry| Some(entry.ok()?.path()));
    entries
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .context("maturin made no wheel")
}

/// Builds the program, the benchmarks, the agent and the helper into a prefix. Returns their files.
fn programs(tools: &Path, prefix: &Path) -> anyhow::Result<[PathBuf; 4]> {
    let profile = ["--profile", "pack", "--locked"];
    let mut build = tool(tools, "cargo-zigbuild")?;
    build.args(["build", "-p", "lowtide-cli", "-p", "lowtide-bench", "-p", "lowtide-helper"]);
    build.args(profile);
    run("program", build.args(["--target", &format!("{TARGET}.2.{GLIBC}")]))?;
    run("agent", cargo(&["build", "--package", "lowtide-agent", "--lib"]).args(profile))?;
    let (bin, lib) = (prefix.join("bin"), prefix.join("lib/lowtide"));
    for folder in [&bin, &lib] {
        fs::create_dir_all(folder)?;
    }
    let files = [bin.join(PROGRAM), bin.join(BENCH), lib.join(AGENT), lib.join(HELPER)];
    let [program, bench, agent, helper] = &files;
    let linked = Path::new("target").join(TARGET).join("pack");
    fs::copy(linked.join(PROGRAM), program)?;
    fs::copy(linked.join(BENCH), bench)?;
    fs::copy(linked.join(HELPER), helper)?;
    fs::copy(Path::new("target/pack").join(AGENT), agent)?;
    Ok(files)
}

/// Adds completions, man pages and licences to the prefix, and packs it. Returns the archive.
fn archive(prefix: &Path, programs: [&PathBuf; 2]) -> anyhow::Result<PathBuf> {
    for program in programs {
        run("completions and man pages", Command::new(program).arg("generate").arg(prefix))?;
    }
    let adopt = prefix.join("lib/lowtide/adopt");
    fs::create_dir_all(&adopt)?;
    fs::copy("crates/lowtide-python/adopt/sitecustomize.py", adopt.join("sitecustomize.py"))?;
    let doc = prefix.join("share/doc/lowtide");
    fs::create_dir_all(&doc)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(file, doc.join(file))?;
    }
    let name = format!("lowtide-{}-{TARGET}", env!("CARGO_PKG_VERSION"));
    let archive = Path::new(TO).join(format!("{name}.tar.gz"));
    // The same files make the same archive.
    let mut pack = Command::new("tar");
    pack.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    pack.arg(format!("--transform=s,^\\.,{name},"))
        .args(["--use-compress-program=gzip -n9", "-cf"]);
    run("archive", pack.arg(&archive).arg("-C").arg(prefix).arg("."))?;
    Ok(archive)
}

/// Writes `SHA256SUMS`, which `sha256sum --check` reads.
fn checksums(to: &Path, files: &[&PathBuf]) -> anyhow::Result<()> {
    let names = files.iter().filter_map(|file| file.file_name());
    let output = Command::new("sha256sum").args(names).current_dir(to).output()?;
    ensure!(output.status.success(), "sha256sum ended with {}", output.status);
    fs::write(to.join("SHA256SUMS"), output.stdout)?;
    Ok(())
}

/// Takes the Python package out of the wheel into the prefix: `lowtide why PID` has processes load it. Returns the file
/// of its native module.
fn unpacked_module(tools: &Path, wheel: &Path) -> anyhow::Result<PathBuf> {
    let folder = Path::new(TO).join("unpacked-wheel");
    let mut unpack = Command::new(tools.join("python"));
    run("module, unpacked", unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder))?;
    let package = Path::new(TO).join("prefix/lib/lowtide/python");
    fs::create_dir_all(&package)?;
    fs::rename(folder.join("lowtide"), package.join("lowtide"))?;
    fs::remove_dir_all(folder)?;
    Ok(package.join("lowtide/_native.abi3.so"))
}

/// Fails if a linked file needs a function of a glibc that is newer than the wheel promises.
fn needs_no_newer_glibc(file: &Path) -> anyhow::Result<()> {
    let output = Command::new("objdump").arg("-T").arg(file).output().context("objdump")?;
    ensure!(output.status.success(), "objdump of {} failed", file.display());
    let symbols = String::from_utf8_lossy(&output.stdout);
    let newest = newest_glibc(&symbols).context("it needs no function of the C library")?;
    ensure!(newest <= GLIBC, "{} needs glibc 2.{newest}", file.display());
    println!("{}: needs glibc 2.{newest}; 2.{GLIBC} is allowed", file.display());
    Ok(())
}

/// Returns the minor version of the newest glibc that a list of symbols by `objdump -T` needs.
fn newest_glibc(symbols: &str) -> Option<u32> {
    let needed = symbols.lines().filter(|line| line.contains("*UND*"));
    let minor = |line: &str| -> Option<u32> {
        let version = line.split("GLIBC_2.").nth(1)?;
        version.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    needed.filter_map(minor).max()
}

#[allow(clippy::cast_precision_loss, reason = "a size for people")]
fn mib(file: &Path) -> anyhow::Result<f64> {
    Ok(fs::metadata(file)?.len() as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_of_what_is_needed_not_of_what_is_there() {
        let symbols = "\
            0 DF *UND* 0 (GLIBC_2.2.5) free\n\
            0 DF *UND* 0 (GLIBC_2.28) fcntl64\n\
            0  w D  *UND* 0 gettid\n\
            1f DF .text 9 (GLIBC_2.34) dlsym\n";
        assert_eq!(newest_glibc(symbols), Some(28));
        assert_eq!(newest_glibc(""), None);
    }
}
