//! What a process has asked for: its settings, the faults it armed, and the tally of its calls.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::machine;
use super::pointers::CallResult;
use super::settings::{DEATH, DEFAULTS, Fault, Setting, parse};

/// The settings of this process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Settings {
    pub(super) late_us: u64,
    pub(super) copy_us: u64,
    pub(super) oom_at: u64,
    pub(super) accounting: bool,
    pub(super) mps: bool,
    pub(super) mig: bool,
    pub(super) breathing: u64,
    pub(super) pid_offset: i64,
    pub(super) checkpoint_us: u64,
}

#[derive(Default)]
struct Requests {
    settings: Settings,
    faults: Vec<Fault>,
    calls: Vec<(&'static str, u64)>,
    /// Calls that failed because of a fault.
    struck: u64,
}

static REQUESTS: LazyLock<Mutex<Requests>> = LazyLock::new(Mutex::default);

fn requests() -> MutexGuard<'static, Requests> {
    REQUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the settings in force.
pub(super) fn settings() -> Settings {
    requests().settings
}

/// Counts a call; fails with the code of a fault that is armed for it.
pub(super) fn on_call(name: &'static str) -> CallResult {
    let mut requests = requests();
    match requests.calls.iter_mut().find(|(seen, _)| *seen == name) {
        Some((_, count)) => *count += 1,
        None => requests.calls.push((name, 1)),
    }
    let mut hit = None;
    requests.faults.retain_mut(|fault| {
        if fault.name != name {
            return true;
        }
        fault.countdown = fault.countdown.map(|left| left - 1);
        if fault.countdown.is_none_or(|left| left == 0) {
            hit = Some(fault.code);
        }
        fault.countdown != Some(0)
    });
    requests.struck += u64::from(hit.is_some());
    if hit == Some(DEATH) {
        die();
    }
    hit.map_or(Ok(()), Err)
}

/// Ends this process as `kill -9` does.
#[allow(unsafe_code, reason = "sends a signal to this process")]
fn die() -> ! {
    // SAFETY: takes numbers; the process ends here.
    unsafe { libc::raise(libc::SIGKILL) };
    std::process::abort()
}

/// Returns calls by name since the last reset, in order of first use.
pub(super) fn calls() -> Vec<(&'static str, u64)> {
    requests().calls.clone()
}

/// Returns how many calls have failed because of a fault, since the process began.
pub(super) fn struck() -> u64 {
    requests().struck
}

/// Starts the tally anew.
pub(super) fn reset_calls() {
    requests().calls.clear();
}

/// Disarms every injected fault.
pub(super) fn clear_faults() {
    requests().faults.clear();
}

/// Applies the defaults of this process, then the environment's text.
///
/// # Panics
/// If the text does not parse: a test that asked for something it does not get
/// must not go on.
pub(super) fn configure_from_environment() {
    let defaults = parse(DEFAULTS).expect("the defaults parse");
    defaults.into_iter().filter(|s| !matches!(s, Setting::Machine(_))).for_each(apply);
    let text = environment();
    configure(&text).unwrap_or_else(|why| panic!("LOWTIDE_DOUBLE={text}: {why}"));
}

/// Applies a text of settings: all of it, or nothing if it does not parse.
pub(super) fn configure(text: &str) -> Result<(), String> {
    parse(text)?.into_iter().for_each(apply);
    Ok(())
}

fn environment() -> String {
    std::env::var("LOWTIDE_DOUBLE").unwrap_or_default()
}

fn apply(setting: Setting) {
    match setting {
        Setting::Machine(size) => machine::get().locked().set(size),
        Setting::LateUs(us) => requests().settings.late_us = us,
        Setting::CopyUs(us) => requests().settings.copy_us = us,
        Setting::OomAt(bytes) => requests().settings.oom_at = bytes,
        Setting::Accounting(on) => requests().settings.accounting = on,
        Setting::Mps(on) => requests().settings.mps = on,
        Setting::Mig(on) => requests().settings.mig = on,
        Setting::Breathing(bytes) => requests().settings.breathing = bytes,
        Setting::PidOffset(offset) => requests().settings.pid_offset = offset,
        Setting::CheckpointUs(us) => requests().settings.checkpoint_us = us,
        Setting::Fail(fault) => requests().faults.push(fault),
        Setting::Defaults => {
            for text in [DEFAULTS, &environment()] {
                let again = parse(text).unwrap_or_default();
                again.into_iter().filter(|s| !matches!(s, Setting::Fail(_))).for_each(apply);
            }
        }
    }
}
