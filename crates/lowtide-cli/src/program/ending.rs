//! How the program ends, and its exit codes.

use std::process::ExitCode;

/// The exit codes, as `--help` shows them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done, and the device's own numbers confirm it
  1  done, but not confirmed: partial, pinned, no effect, busy, unverified
  2  wrong usage
  3  could not run, for example because the device is missing";

/// The exit code of a command that could not run.
pub const COULD_NOT_RUN: u8 = 3;

/// The end of a command.
#[derive(Debug)]
pub enum Ending {
    /// The command did its work, and the device confirms the result.
    Proved,
    /// The command did its work, and the device does not confirm all of it.
    NotProved {
        /// The results that are not confirmed.
        what: String,
    },
    /// The command line is wrong; clap has said so.
    WrongUsage {
        /// How it is wrong.
        how: String,
    },
    /// The command could not run.
    CouldNotRun(anyhow::Error),
}

impl Ending {
    /// Returns the exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Ending::Proved => 0,
            Ending::NotProved { .. } => 1,
            Ending::WrongUsage { .. } => 2,
            Ending::CouldNotRun(_) => COULD_NOT_RUN,
        })
    }

    /// Returns why the result is not the one that was asked for.
    pub fn message(&self) -> Option<String> {
        match self {
            Ending::Proved => None,
            Ending::WrongUsage { how } => Some(how.trim_end().to_owned()),
            Ending::NotProved { what } => Some(format!("not proved: {what}")),
            Ending::CouldNotRun(error) => Some(causes(error)),
        }
    }
}

// The error and its causes, each said once: many an error has its cause in its own text.
fn causes(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let os = std::io::Error::other("no room");
        let error = lowtide_device::Error::Os { operation: "starting a thread", source: os };
        let error = anyhow::Error::from(error).context("replaying");
        let message = Ending::CouldNotRun(error).message().unwrap();
        assert_eq!(message, "replaying: starting a thread failed: no room");
    }
}
