//! The commands, each in a file of its own, each flag defined once.

mod agents;
mod answers;
mod cluster;
mod demo;
mod doctor;
mod floor;
mod helper;
mod known;
mod look;
mod metrics;
mod ps;
mod queue;
mod replay;
mod report;
mod run;
mod started;
mod suspend;
mod suspend_trial;
mod top;
mod why;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lowtide_device::DeviceId;

use crate::program::ending::{EXIT_CODES, Ending};
use crate::program::{self, VARIABLES, generate};

/// Frees GPU memory in running programs and verifies the result with the driver's own numbers.
#[derive(Debug, Parser)]
#[command(
    name = "lowtide",
    version,
    after_help = EXIT_CODES,
    after_long_help = format!("{EXIT_CODES}\n\n{VARIABLES}")
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Runs the `lowtide` program.
pub fn main() -> ExitCode {
    program::run(|arguments: &Arguments| arguments.command.run())
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what this machine can do: its devices, their memory, the driver, what works, and what to
    /// do about the rest.
    Doctor(doctor::Options),
    /// Show which processes use device memory. The rows add up to the driver's own number.
    Ps(ps::Options),
    /// Start a program that sleeps: its device memory leaves while it is idle and comes back at its next
    /// use of the device.
    Run(run::Options),
    /// Show what programs started with `run` have on their devices, and what keeps them from sleeping.
    Status(agents::StatusOptions),
    /// Put a program to sleep that was started with `run`. Prints a receipt.
    Sleep(agents::Options),
    /// Wake a program that sleeps.
    Wake(agents::Options),
    /// Free memory of a program that was started with `run`, as far as needed. Prints a receipt.
    Release(agents::ReleaseOptions),
    /// Show what keeps device memory in use in another process, and what frees it.
    Why(why::Options),
    /// Take a process off the device: it lives on with no device memory at all. Prints a receipt.
    Suspend(suspend::SuspendOptions),
    /// Bring a suspended process back to the device, if there is room for it.
    Resume(suspend::ResumeOptions),
    /// Show device memory over time and the programs that use it, live.
    Top(top::Options),
    /// Give the numbers of this machine and its programs to Prometheus.
    Metrics(metrics::Options),
    /// Run five scenarios with real allocations, first the usual way, then with lowtide.
    Demo(demo::Options),
    /// Replay an allocation trace and show how much memory the pool needs for it.
    Replay(replay::Options),
    /// Write one HTML file that shows a program, what lowtide printed, or an allocation trace.
    Report(report::Options),
    /// Write completions for bash, zsh and fish, and man pages, into a folder.
    Generate(generate::Options),
    /// Print the version of the agent that is preloaded here. `run` runs this.
    #[command(hide = true)]
    AgentVersion,
    /// Hold a bare context so that its cost can be measured. `doctor` runs this.
    #[command(hide = true)]
    FloorChild {
        /// The device to open.
        device: DeviceId,
        /// The process that started this one, with which it ends.
        #[arg(long)]
        parent: Option<u32>,
    },
}

impl Command {
    /// Runs the command to its end.
    fn run(&self) -> anyhow::Result<Ending> {
        match self {
            Command::Doctor(options) => doctor::run(options),
            Command::Ps(options) => ps::run(options),
            Command::Run(options) => run::run(options),
            Command::Status(options) => agents::status(options),
            Command::Sleep(options) => agents::sleep(options),
            Command::Wake(options) => agents::wake(options),
            Command::Release(options) => agents::release(options),
            Command::Why(options) => why::run(options),
            Command::Suspend(options) => suspend::suspend(options),
            Command::Resume(options) => suspend::resume(options),
            Command::Top(options) => top::run(options),
            Command::Metrics(options) => metrics::run(options),
            Command::Demo(options) => demo::run(options),
            Command::Replay(options) => replay::run(options),
            Command::Report(options) => report::run(options),
            Command::Generate(options) => generate::run::<Arguments>(options),
            Command::AgentVersion => Ok(run::print_agent_version()),
            Command::FloorChild { device, parent } => floor::run_child(*device, *parent),
        }
    }
}
