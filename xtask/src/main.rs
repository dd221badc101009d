//! The developer's commands: `cargo xtask --help`.

mod adopters;
mod artifacts;
mod browser;
mod dist;
mod gpu_pack;
mod peers;
mod ptx;
mod soak;
mod steps;
mod storm;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The developer's commands.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every check and test: format, lints, tests, docs, the Python package. Installs what it
    /// needs. Prints one line for each part, and the output of those that fail.
    Test(test::Options),
    /// Build and test the Python package only.
    Python(test::Options),
    /// Test the Python package on every Python from 3.10 to 3.14 that is on the search path.
    Pythons(test::Options),
    /// Test `lowtide.ray` with real Ray: clusters of three nodes on this machine. Takes Ray from the Python registry,
    /// and ten minutes. With --long also ten thousand tasks and fifty turns.
    Fleet(test::Options),
    /// Write the folder that carries the tests and benchmarks to a machine with a GPU and no Rust.
    GpuPack {
        /// Where to.
        #[arg(long, default_value = "target/gpu-pack")]
        to: PathBuf,
        /// Pack also the peers that lowtide is measured beside. Takes them from the Python registry.
        #[arg(long)]
        peers: bool,
    },
    /// Try the adapters of the Python package with the real projects, each in an environment of its own
    /// that is deleted afterwards. Takes the projects from the Python registry: gigabytes.
    Adopters(adopters::Options),
    /// Install Debian's Chromium, in which the tests of the report open it; without it they are skipped.
    Browser,
    /// Make what people install, in target/dist: the wheel for Linux with everything in it, the program as
    /// a tar.gz with completions and man pages, and checksums. Installs and tries both. Takes maturin and
    /// the zig linker from the Python registry.
    Dist,
    /// Run pools, the gate, idle and releases in many threads, with faults, forks, panics and kill -9,
    /// and check every byte. Exits with 1, and prints the seed, if anything is wrong.
    Storm(storm::Options),
    /// Run programs under the agent that share memory, sleep and are suspended, while programs and the helper are
    /// killed, the disk is full, clocks jump and the driver fails. Checks every byte and prints the seed.
    Soak(soak::Options),
    /// Compile kernels/digest.cu to PTX anew. Takes NVIDIA's runtime compiler from the Python registry.
    Ptx,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    // Wherever it is called from, paths are the workspace's.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    std::env::set_current_dir(root.expect("xtask is a folder of the workspace"))?;
    match Arguments::parse().command {
        Command::Test(options) => test::run(options, test::Parts::All),
        Command::Python(options) => test::run(options, test::Parts::Python),
        Command::Pythons(options) => test::run(options, test::Parts::Pythons),
        Command::Fleet(options) => test::run(options, test::Parts::Fleet),
        Command::GpuPack { to, peers } => gpu_pack::write(&to, peers),
        Command::Adopters(options) => adopters::run_all(&options),
        Command::Browser => browser::install(),
        Command::Dist => dist::make(),
        Command::Ptx => ptx::compile(),
        Command::Soak(options) => return soak::run(&options),
        Command::Storm(options) => return storm::run(&options),
    }?;
    Ok(ExitCode::SUCCESS)
}
