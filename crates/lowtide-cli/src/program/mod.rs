//! The life of a program: it reads its arguments, logs on standard error, and ends with a code.

pub mod ending;
pub mod generate;
mod out_of_memory;

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::{Command, CommandFactory, Parser};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::ending::Ending;
use crate::text::page::{self, Refused};

/// The table of all variables, as `--help` shows it. A test of the docs reads the same file.
pub const VARIABLES: &str = include_str!("variables.txt");

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
                _ if said.use_stderr() => Ending::WrongUsage { how: said.render().to_string() },
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    Ending::CouldNotRun(anyhow::Error::new(error).context(page::TO_STANDARD_OUTPUT))
                }
                _ => Ending::Proved,
            }
        }
    };
    let message = ending.message();
    if let Some(message) = message.as_ref().filter(|_| !matches!(ending, Ending::WrongUsage { .. }))
    {
        page::complain_as(Arguments::command().get_name(), message);
    }
    if let Some(reason) = message.filter(|_| !page::has_printed_json() && wants_json::<Arguments>())
    {
        // Standard output that cannot be written was complained about, or nobody reads it.
        let _printed = page::print_json(&Refused::because(&reason));
    }
    ending.code()
}

/// Returns whether the command line asks for JSON. What `run` starts has options of its own.
fn wants_json<Arguments: CommandFactory>() -> bool {
    let words: Vec<OsString> = env::args_os().skip(1).take_while(|word| word != "--").collect();
    let program = Arguments::command();
    let command = words.first().and_then(|name| program.find_subcommand(name));
    let has_json =
        |command: &Command| command.get_arguments().any(|it| it.get_long() == Some("json"));
    command.is_none_or(has_json) && words.iter().any(|word| word == "--json")
}

/// Logs on standard error what `LOWTIDE_LOG` names: a level, or several as in `lowtide_pool=trace,info`. With
/// `LOWTIDE_LOG_FORMAT=json` each line is an object.
fn log_what_is_asked_for() {
    let asked = env::var("LOWTIDE_LOG").ok().and_then(|it| it.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR));
    // A log that cannot be written is no reason to end: by default the layer panics then.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = lines.log_internal_errors(false);
    let is_json = env::var("LOWTIDE_LOG_FORMAT").is_ok_and(|format| format == "json");
    let lines = if is_json { lines.json().boxed() } else { lines.boxed() };
    tracing_subscriber::registry().with(lines).with(filter).init();
}
