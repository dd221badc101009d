//! The storm: pools, the gate, idle releases and every other kind of release in many threads, with
//! faults, forks, panics, too little memory and `kill -9`. Every byte is checked.
//!
//! ```text
//! cargo xtask storm --minutes 60 --seed 7 --on both
//! ```
//!
//! The program is a supervisor (`supervisor.rs`) that starts itself again, once for each round, as a
//! child with a seed and a duration (`child.rs`). It kills some of the children at a random moment and
//! checks that nothing of them stays and that the next child works. A child plays one world after
//! another (`world.rs`): a device, pools and a releaser, and threads that each do one random deed
//! after another (`player.rs`, `deeds/`). At the end of a world all threads stop, everything is
//! checked and freed, and the device must be where it began.
//!
//! The content of a block is a function of its number and its version (`content.rs`), so any byte can
//! be checked at any time. The same seed rolls the same dice; how the threads meet is up to the
//! machine. A failure prints the seed and the last operations of every thread, and the exit code is 1.
//!
//! Without arguments of its own this is a test program with short cases.

mod arguments;
mod budget;
mod child;
mod clock;
mod content;
mod deeds;
mod ending;
mod figures;
mod held;
mod player;
mod receipts;
mod sabotage;
mod supervisor;
mod trail;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use arguments::{Arguments, Role};
use libtest_mimic::{Failed, Trial};
use lowtide_testing::is_long_run;
use lowtide_testing::suite::Target;
use sabotage::Sabotage;

fn main() -> ExitCode {
    match arguments::parse(std::env::args().skip(1)) {
        Ok(Role::Test) => test(),
        Ok(Role::Supervisor(arguments)) => storm(&arguments),
        Ok(Role::Child(child)) => child::run(&child),
        Err(wrong) => {
            eprintln!("{wrong}\n\n{}", arguments::USAGE);
            ExitCode::from(2)
        }
    }
}

fn storm(arguments: &Arguments) -> ExitCode {
    // Said at once, so that a run that never ends can be repeated; the output is for the figures.
    eprintln!("storm: seed {}, {} s", arguments.seed, arguments.time.as_secs());
    let (figures, outcome) = supervisor::run(arguments);
    if arguments.json {
        println!("{}", figures.to_json());
    } else {
        println!("{figures}");
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("storm: {why}; seed {}", arguments.seed);
            ExitCode::FAILURE
        }
    }
}

/// Fails unless a storm with sabotage fails, for the right reason.
fn notices(sabotage: Sabotage, message: &str) -> Result<(), Failed> {
    // It ends with the first failure, and a busy machine does few deeds in a second.
    let (time, on) = (Duration::from_secs(600), vec![Target::Host]);
    let arguments = Arguments { seed: 2, time, on, json: false, sabotage: Some(sabotage) };
    match supervisor::run(&arguments).1 {
        Err(why) if why.contains(message) => Ok(()),
        Err(why) => Err(format!("it failed for another reason than {message:?}: {why}").into()),
        Ok(()) => Err(format!("nothing was noticed of {sabotage:?}").into()),
    }
}

/// A few seeds, in the form of a test program. A long run takes a minute for each device.
fn test() -> ExitCode {
    let time = Duration::from_secs(if is_long_run() { 60 } else { 5 });
    let case = |target: Target| {
        Trial::test(format!("{target}::nothing_is_lost_in_a_storm"), move || {
            let arguments =
                Arguments { seed: 1, time, on: vec![target], json: false, sabotage: None };
            println!("storm: seed {}", arguments.seed);
            let (figures, outcome) = supervisor::run(&arguments);
            println!("{figures}");
            outcome.map_err(Failed::from)
        })
    };
    let mut trials = vec![case(Target::Host), case(Target::Double)];
    for (sabotage, message) in Sabotage::ALL {
        // The supervisor waits long before it says that a process stays.
        if sabotage != Sabotage::Process || is_long_run() {
            let name = format!("host::a_storm_with_sabotage_fails::{}", sabotage.name());
            trials.push(Trial::test(name, move || notices(sabotage, message)));
        }
    }
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}
