//! Running suites for targets: one case after another, with results as lines and as JSON.

mod results;
mod side_by_side;
mod target;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};
use results::CaseOutcome;

pub use target::Target;

/// A case of a suite.
pub struct Case {
    name: &'static str,
    run: Box<dyn Fn(Target) + Send>,
}

impl Case {
    /// Creates a case: its assertion as a sentence with underscores, and the code that asserts it.
    pub fn new(name: &'static str, run: impl Fn(Target) + Send + 'static) -> Case {
        Case { name, run: Box::new(run) }
    }
}

/// Cases that run for one target or for several.
pub struct Suite {
    name: &'static str,
    targets: &'static [Target],
    cases: fn(Target) -> Vec<Case>,
}

impl Suite {
    /// Creates a suite of this name, with the cases that `cases` returns for each of `targets`.
    pub fn new(
        name: &'static str,
        targets: &'static [Target],
        cases: fn(Target) -> Vec<Case>,
    ) -> Suite {
        Suite { name, targets, cases }
    }
}

/// Runs suites as a test program.
///
/// `--suite NAME` and `--on host|double|cuda` choose; without them every suite runs on each of its
/// targets, in a process of its own. The other arguments are those of a test program.
///
/// Where a target is missing its cases are skipped and the reason is printed; with
/// `LOWTIDE_REQUIRE_GPU=1` that is a failure. `LOWTIDE_RESULTS=DIR` leaves the results as JSON.
///
/// # Panics
/// If the results cannot be written, or the program cannot be started again.
pub fn main(suites: &[Suite]) -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().collect();
    let (suite, target) = (taken(&mut arguments, "--suite"), taken(&mut arguments, "--on"));
    let mut runs = Vec::new();
    for Suite { name, targets, .. } in suites {
        let wanted = targets.iter().filter(|known| {
            target.as_ref().is_none_or(|target| *target == known.to_string())
                && suite.as_ref().is_none_or(|suite| suite == name)
        });
        runs.extend(wanted.map(|target| (*name, *target)));
    }
    match runs[..] {
        [] => {
            eprintln!("no suite {suite:?} on {target:?} is in this program");
            ExitCode::from(2)
        }
        [(name, target)] => {
            let suite = suites.iter().find(|suite| suite.name == name).expect("it was just there");
            run(suite, target, Arguments::from_iter(arguments))
        }
        _ => {
            let threads = Arguments::from_iter(&arguments).test_threads;
            let cores = || std::thread::available_parallelism().map_or(1, usize::from);
            side_by_side::run(&runs, &arguments[1..], threads.unwrap_or_else(cores))
        }
    }
}

/// Takes an option and its value out of the arguments.
fn taken(arguments: &mut Vec<String>, option: &str) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == option)?;
    let value = arguments.drain(at..(at + 2).min(arguments.len())).nth(1);
    Some(value.unwrap_or_default())
}

fn run(suite: &Suite, target: Target, mut arguments: Arguments) -> ExitCode {
    target.prepare();
    // Cases take turns with the driver.
    arguments.test_threads = Some(1);
    let (name, missing) = (suite.name, target.missing());
    match &missing {
        None => println!("{name} on {target}"),
        Some(why) => println!("{name} on {target}: skipped, because {why}"),
    }
    if missing.is_some() && std::env::var_os("LOWTIDE_REQUIRE_GPU").is_some_and(|it| it == "1") {
        println!("LOWTIDE_REQUIRE_GPU=1: a missing GPU is a failure");
        return ExitCode::FAILURE;
    }
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let trials = (suite.cases)(target).into_iter().map(|case| trial(case, target, &outcomes));
    let trials = trials.map(|trial| trial.with_ignored_flag(missing.is_some())).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let outcomes = outcomes.lock().expect("no case holds the lock when it fails");
    if let Some(folder) = std::env::var_os("LOWTIDE_RESULTS") {
        results::write(folder.as_ref(), (name, target), missing.as_deref(), &outcomes);
    }
    conclusion.exit_code()
}

fn trial(case: Case, target: Target, outcomes: &Arc<Mutex<Vec<CaseOutcome>>>) -> Trial {
    let (name, outcomes) = (format!("{target}::{}", case.name), Arc::clone(outcomes));
    Trial::test(name.clone(), move || {
        let began = Instant::now();
        let result = panic::catch_unwind(AssertUnwindSafe(|| (case.run)(target)));
        let message = result.err().map(|panic| said(panic.as_ref()));
        let ms = began.elapsed().as_millis();
        let outcome = CaseOutcome { name, passed: message.is_none(), message: message.clone(), ms };
        outcomes.lock().expect("no case holds the lock when it fails").push(outcome);
        message.map_or(Ok(()), |message| Err(Failed::from(message)))
    })
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}
