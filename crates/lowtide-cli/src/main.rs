//! The `lowtide` program: one file per command under `commands/`.

mod commands;
mod devices;
mod ending;
mod files;
mod floor;
mod measure;
mod numbers;
mod out_of_memory;
mod page;
mod progress;
mod terminal;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::commands::Command;
use crate::ending::{EXIT_CODES, Ending};

/// Frees GPU memory in running programs and verifies the result with the driver's own numbers.
#[derive(Debug, Parser)]
#[command(
    name = "lowtide",
    version,
    after_help = EXIT_CODES,
    after_long_help = format!(
        "{EXIT_CODES}\n\n\
         Variables:\n  \
         LOWTIDE_CUDA_LIBRARY  the CUDA driver library to load\n  \
         LOWTIDE_NVML_LIBRARY  the NVML library to load\n  \
         LOWTIDE_ADOPT         projects that the Python package adopts, as in `run --adopt`\n  \
         LOWTIDE_LOG           what is logged on standard error, for example debug\n  \
         COLUMNS               the width of text where the output is no terminal"
    )
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    out_of_memory::end_without_memory_for_threads();
    let filter = EnvFilter::try_from_env("LOWTIDE_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
    // A log that cannot be written is no reason to end: by default the subscriber panics then.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.log_internal_errors(false).init();
    let ending = match Arguments::try_parse() {
        Ok(arguments) => arguments.command.run().unwrap_or_else(Ending::CouldNotRun),
        Err(said) => {
            // Help and the version go to standard output, complaints to standard error.
            let printed = said.print();
            match printed {
                _ if said.use_stderr() => Ending::WrongUsage,
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    Ending::CouldNotRun(anyhow::Error::new(error).context(page::TO_STANDARD_OUTPUT))
                }
                _ => Ending::Proved,
            }
        }
    };
    if let Some(message) = ending.message() {
        page::complain(&message);
    }
    ending.code()
}
