//! The peers that lowtide is measured beside: what a GPU machine without a network needs of them.
//!
//! Taken from the Python registry for the Python of GPU machines, not of this one. Only what was
//! unpacked stays here: of a wheel of several hundred MiB the benchmarks need a few hundred KiB.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::steps::{emptied, pip, python, run};

/// The Python of GPU machines.
pub(crate) const PYTHON: &str = "3.12";
const PLATFORMS: [&str; 2] = ["manylinux_2_28_x86_64", "manylinux2014_x86_64"];

struct Peer {
    package: &'static str,
    /// The members that are needed; none named means all.
    members: &'static [&'static str],
}

const PEERS: [Peer; 2] = [
    Peer { package: "torch_memory_saver==0.0.10", members: &[] },
    Peer {
        package: "vllm==0.32.0",
        members: &["vllm/cumem_allocator.abi3.so", "vllm/device_allocator/"],
    },
];

/// A folder for each peer with what is needed of it.
pub(crate) fn fetched() -> anyhow::Result<Vec<PathBuf>> {
    PEERS.iter().map(fetch).collect()
}

fn fetch(peer: &Peer) -> anyhow::Result<PathBuf> {
    let cache = Path::new("target/peers");
    let done = cache.join(peer.package);
    if done.exists() {
        return Ok(done);
    }
    // What a broken-off run left is not mistaken for a peer.
    let (wheel, part) = (emptied(&cache.join("wheel"))?, emptied(&cache.join("part"))?);
    let python = python(Path::new("target/peers-environment"))?;
    let mut download = pip(&python, &["download", "--no-cache-dir", "--no-deps"]);
    download.args(["--only-binary=:all:", "--python-version", PYTHON]);
    download.args(PLATFORMS.iter().flat_map(|platform| ["--platform", platform]));
    run(peer.package, download.arg("--dest").arg(&wheel).arg(peer.package))?;
    let mut unpack = Command::new(&python);
    unpack.arg("xtask/peers/unpack.py").args([&wheel, &part]).args(peer.members);
    run("unpack", &mut unpack)?;
    fs::remove_dir_all(&wheel)?;
    fs::rename(&part, &done).with_context(|| format!("keeping {}", done.display()))?;
    Ok(done)
}
