//! The `lowtide` program: one file per command under `commands/`.
//!
//! Exit codes: 0 done and proved, 1 done but not proved, 2 wrong usage, 3 could not.

mod commands;
mod floor;
mod measure;
mod page;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::commands::{Command, NotProved, bench, demo, doctor, floor_child, ps, replay};

/// Gives accelerator memory back, and proves it.
#[derive(Debug, Parser)]
#[command(
    name = "lowtide",
    version,
    after_help = "Exit codes: 0 done and proved, 1 done but not proved, 2 wrong usage, 3 could not.\n\
                  LOWTIDE_CUDA_LIBRARY and LOWTIDE_NVML_LIBRARY name other driver files; \
                  LOWTIDE_LOG=debug shows what happens."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("LOWTIDE_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let outcome = match Arguments::parse().command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Ps(options) => ps::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Bench(bench) => bench::run(&bench),
        Command::FloorChild { device } => floor_child::run(device),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("lowtide: {error:#}");
            exit_code(&error)
        }
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<NotProved>() {
        return ExitCode::from(1);
    }
    match error.downcast_ref::<lowtide_device::Error>() {
        Some(
            lowtide_device::Error::UnknownDevice { .. } | lowtide_device::Error::BadSize { .. },
        ) => ExitCode::from(2),
        _ => ExitCode::from(3),
    }
}
