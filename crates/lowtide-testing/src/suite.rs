//! Running a suite for a target: one case after another, with results as lines and as JSON.
#![allow(unsafe_code, reason = "sets environment variables before any thread is started")]

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use libtest_mimic::{Arguments, Failed, Trial};
use lowtide_device::cuda::Driver;
use lowtide_device::nvml::Nvml;
use lowtide_device::{Bytes, Device, HostOptions, Result};
use serde::Serialize;

use crate::double::Double;

/// What a suite runs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Pages of this machine.
    Host,
    /// The driver double.
    Double,
    /// A real GPU.
    Cuda,
}

/// One case of a suite.
pub struct Case {
    name: &'static str,
    run: Box<dyn Fn(Target) + Send>,
}

impl Case {
    /// What it asserts, as a sentence with underscores, and the assertion.
    pub fn new(name: &'static str, run: impl Fn(Target) + Send + 'static) -> Case {
        Case { name, run: Box::new(run) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::Host => "host",
            Target::Double => "double",
            Target::Cuda => "cuda",
        })
    }
}

impl Target {
    /// A device of this kind.
    ///
    /// # Errors
    /// Where there is none.
    pub fn device(self) -> Result<Device> {
        match self {
            Target::Host => {
                Device::host(HostOptions { budget: Some(Bytes::gib(1)), ..HostOptions::default() })
            }
            Target::Double | Target::Cuda => Device::cuda(0),
        }
    }

    // Before any thread is started: the driver is looked up in the environment.
    fn prepare(self) {
        if self == Target::Double {
            let path = Double::path();
            let small = "total=1GiB,context=64MiB,reserved=32MiB";
            for (name, value) in [
                ("LOWTIDE_CUDA_LIBRARY", path.as_os_str()),
                ("LOWTIDE_NVML_LIBRARY", path.as_os_str()),
                ("LOWTIDE_DOUBLE", small.as_ref()),
            ] {
                // SAFETY: the suite's main has started no thread yet.
                unsafe { std::env::set_var(name, value) };
            }
        }
    }

    /// Why the suite cannot run here, if it cannot.
    fn missing(self) -> Option<String> {
        let shown = || Driver::load()?.device_count();
        match (self, shown()) {
            (Target::Cuda, Err(error)) => Some(error.to_string()),
            (Target::Cuda, Ok(0)) => Some("the driver shows no GPU".to_owned()),
            _ => None,
        }
    }
}

#[derive(Serialize)]
struct CaseOutcome {
    name: String,
    passed: bool,
    message: Option<String>,
    ms: u128,
}

#[derive(Serialize)]
struct Results<'a> {
    suite: &'a str,
    target: String,
    device: Option<String>,
    driver: Option<String>,
    unix_time_s: u64,
    passed: usize,
    failed: usize,
    skipped: Option<String>,
    cases: &'a [CaseOutcome],
}

/// Runs a suite as a test program.
///
/// Where the target is missing the cases are skipped and the reason is said; with
/// `LOWTIDE_REQUIRE_GPU=1` that is a failure. `LOWTIDE_RESULTS=DIR` leaves the results as JSON.
///
/// # Panics
/// If the results cannot be written.
pub fn main(suite: &'static str, target: Target, cases: Vec<Case>) -> ExitCode {
    target.prepare();
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let missing = target.missing();
    if let Some(why) = &missing {
        println!("{suite} on {target}: skipped, because {why}");
        if std::env::var_os("LOWTIDE_REQUIRE_GPU").is_some_and(|value| value == "1") {
            println!("LOWTIDE_REQUIRE_GPU=1: a missing GPU is a failure");
            return ExitCode::FAILURE;
        }
    }
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let trials = cases.into_iter().map(|case| trial(case, target, &outcomes));
    let trials = trials.map(|trial| trial.with_ignored_flag(missing.is_some())).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let outcomes = outcomes.lock().expect("no case holds the lock when it fails");
    if let Some(folder) = std::env::var_os("LOWTIDE_RESULTS") {
        let file = std::path::Path::new(&folder).join(format!("{suite}-{target}.json"));
        std::fs::write(&file, results(suite, target, missing, &outcomes))
            .expect("the results can be written");
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

fn results(suite: &str, target: Target, skipped: Option<String>, cases: &[CaseOutcome]) -> String {
    let device = target.device().ok().map(|device| device.info().name.clone());
    let driver = if target == Target::Host {
        None
    } else {
        Nvml::load().and_then(|nvml| nvml.driver_version()).ok()
    };
    let passed = cases.iter().filter(|case| case.passed).count();
    let results = Results {
        suite,
        target: target.to_string(),
        device,
        driver,
        unix_time_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        passed,
        failed: cases.len() - passed,
        skipped,
        cases,
    };
    serde_json::to_string_pretty(&results).expect("plain data")
}
