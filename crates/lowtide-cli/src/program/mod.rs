//! The life of a program: it reads its arguments, logs on standard error, and ends with a code.

pub mod ending;
pub mod generate;
mod out_of_memory;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::ending::Ending;
use crate::text::page;

/// The variables that every program reads, as `--help` shows them.
pub const VARIABLES: &str = "\
Variables:
  LOWTIDE_CUDA_LIBRARY  the CUDA driver library to load
  LOWTIDE_NVML_LIBRARY  the NVML library to load
  LOWTIDE_LOG           what is logged on standard error, for example debug
  COLUMNS               the width of text where the output is no terminal";

/// Runs a program to its end: reads its arguments, runs what they name, and tells how that ended.
pub fn run<Arguments: Parser>(
    command: impl FnOnce(&Arguments) -> anyhow::Result<Ending>,
) -> ExitCode {
    out_of_memory::end_without_memory_for_threads();
    log_what_is_asked_for();
    let ending = match Arguments::try_parse() {
        Ok(arguments) => command(&arguments).unwrap_or_else(Ending::CouldNotRun),
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
        page::complain_as(Arguments::command().get_name(), &message);
    }
    ending.code()
}

/// Logs on standard error what `LOWTIDE_LOG` names: a level, or several as in `lowtide_pool=trace,info`.
fn log_what_is_asked_for() {
    let asked = std::env::var("LOWTIDE_LOG").ok().and_then(|it| it.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR));
    // A log that cannot be written is no reason to end: by default the layer panics then.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines.log_internal_errors(false)).with(filter).init();
}
