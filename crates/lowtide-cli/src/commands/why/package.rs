//! The Python package that belongs to this program: what a process that is asked loads.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

/// The variable that names the folder of the package.
const VARIABLE: &str = "LOWTIDE_PACKAGE";
/// Files without which it cannot answer.
const NEEDED: [&str; 2] = ["_native.abi3.so", "_outside/answer.py"];

/// Finds the folder of the package: where `LOWTIDE_PACKAGE` says, or where the wheel, the archive or a checkout has it.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).map(PathBuf::from) {
        ensure!(is_whole(&path), "{VARIABLE} is {}, which is not the package", path.display());
        return Ok(path.canonicalize()?);
    }
    let program = env::current_exe().context("finding this program")?.canonicalize()?;
    let places = places(program.parent().unwrap_or(&program));
    match places.iter().find(|place| is_whole(place)) {
        Some(place) => Ok(place.canonicalize()?),
        None => bail!(
            "the Python package `lowtide` is missing, which the process would load: it is neither in ../lib/lowtide nor \
             in a site-packages folder beside {}; install the wheel or the archive, or set {VARIABLE} to its folder",
            program.display()
        ),
    }
}

fn is_whole(folder: &Path) -> bool {
    NEEDED.iter().all(|name| folder.join(name).is_file())
}

/// Returns the folders in which it may be, for a program in this one.
fn places(folder: &Path) -> Vec<PathBuf> {
    let mut places = vec![folder.join("../lib/lowtide/python/lowtide")];
    for lib in ["../lib", "../lib64", "../local/lib"] {
        let python = |minor| folder.join(format!("{lib}/python3.{minor}"));
        let packages = |minor| {
            ["site", "dist"].map(|kind| python(minor).join(format!("{kind}-packages/lowtide")))
        };
        places.extend((10..30).flat_map(packages));
        places.push(folder.join(lib).join("python3/dist-packages/lowtide"));
    }
    places.push(folder.join("../../crates/lowtide-python/python/lowtide"));
    places
}
