//! What a test can ask for: settings, injected faults, and the tally of calls.
//!
//! Settings are one text, `name=value` separated by commas, the same from the
//! environment (`LOWTIDE_DOUBLE`) and from [`configure`]:
//!
//! | name | value | of the |
//! |---|---|---|
//! | `total`, `reserved`, `context`, `unattributed` | bytes (`64MiB`) | machine |
//! | `devices` | 1 to 8 | machine |
//! | `foreign` | `PID:BYTES` (repeat for more) or `off`: another process on device 0 | machine |
//! | `late_us` | how long an operation waits before it starts by itself | process |
//! | `copy_us` | how much longer each copy takes | process |
//! | `oom_at` | bytes or `off`: creates and allocations this large are out of memory | process |
//! | `accounting` | `on`, `off`: whether NVML knows what each process uses | process |
//! | `pid_offset` | added to every PID that NVML reports, as from another namespace | process |
//! | `fail` | `NAME@N:CODE` the Nth call from now, once; `NAME:CODE` every call | process |
//! | `defaults` | (no value) every setting but `fail` as it was at the start | both |
//!
//! What is of the machine is shared by all processes with the same state file; each
//! applies its own environment's text when it starts, and the last to speak is heard.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::entry::Outcome;
use super::machine::{self, MAX_DEVICES, Size};

const DEFAULTS: &str = "total=4GiB,reserved=32MiB,context=64MiB,unattributed=0,devices=1,foreign=off,\
     late_us=200,copy_us=0,oom_at=off,accounting=on,pid_offset=0";

#[derive(Debug, Clone, PartialEq)]
enum Setting {
    Machine(Size),
    LateUs(u64),
    CopyUs(u64),
    OomAt(u64),
    Accounting(bool),
    PidOffset(i64),
    Fail(Fault),
    Defaults,
}

#[derive(Debug, Clone, PartialEq)]
struct Fault {
    name: String,
    /// Calls still to come up to and with the failing one; none: every call fails.
    countdown: Option<u64>,
    code: i32,
}

/// The settings of this process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Settings {
    pub(super) late_us: u64,
    pub(super) copy_us: u64,
    pub(super) oom_at: u64,
    pub(super) accounting: bool,
    pub(super) pid_offset: i64,
}

#[derive(Default)]
struct Desk {
    settings: Settings,
    faults: Vec<Fault>,
    calls: Vec<(&'static str, u64)>,
}

static DESK: LazyLock<Mutex<Desk>> = LazyLock::new(Mutex::default);

fn desk() -> MutexGuard<'static, Desk> {
    DESK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The settings as they stand.
pub(super) fn settings() -> Settings {
    desk().settings
}

/// Counts a call; answers the code of a fault that is armed for it.
pub(super) fn on_call(name: &'static str) -> Outcome {
    let mut desk = desk();
    match desk.calls.iter_mut().find(|(seen, _)| *seen == name) {
        Some((_, count)) => *count += 1,
        None => desk.calls.push((name, 1)),
    }
    let mut hit = None;
    desk.faults.retain_mut(|fault| {
        if fault.name != name {
            return true;
        }
        fault.countdown = fault.countdown.map(|left| left - 1);
        if fault.countdown.is_none_or(|left| left == 0) {
            hit = Some(fault.code);
        }
        fault.countdown != Some(0)
    });
    hit.map_or(Ok(()), Err)
}

/// Calls by name since the last reset, in order of first use.
pub(super) fn calls() -> Vec<(&'static str, u64)> {
    desk().calls.clone()
}

/// Starts the tally anew.
pub(super) fn reset_calls() {
    desk().calls.clear();
}

/// Disarms every injected fault.
pub(super) fn clear_faults() {
    desk().faults.clear();
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

/// The sizes of a machine when nobody has set any.
pub(super) fn default_sizes() -> impl Iterator<Item = Size> {
    let defaults = parse(DEFAULTS).expect("the defaults parse").into_iter();
    defaults.filter_map(|setting| match setting {
        Setting::Machine(size) => Some(size),
        _ => None,
    })
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
        Setting::LateUs(us) => desk().settings.late_us = us,
        Setting::CopyUs(us) => desk().settings.copy_us = us,
        Setting::OomAt(bytes) => desk().settings.oom_at = bytes,
        Setting::Accounting(on) => desk().settings.accounting = on,
        Setting::PidOffset(offset) => desk().settings.pid_offset = offset,
        Setting::Fail(fault) => desk().faults.push(fault),
        Setting::Defaults => {
            for text in [DEFAULTS, &environment()] {
                let again = parse(text).unwrap_or_default();
                again.into_iter().filter(|s| !matches!(s, Setting::Fail(_))).for_each(apply);
            }
        }
    }
}

fn parse(text: &str) -> Result<Vec<Setting>, String> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(parse_one).collect()
}

fn parse_one(word: &str) -> Result<Setting, String> {
    if word == "defaults" {
        return Ok(Setting::Defaults);
    }
    let wrong = || format!("`{word}` is not a setting of the driver double");
    let (name, value) = word.split_once('=').ok_or_else(wrong)?;
    let setting = match name {
        "total" => parse_bytes(value).map(|bytes| Setting::Machine(Size::Total(bytes))),
        "reserved" => parse_bytes(value).map(|bytes| Setting::Machine(Size::Reserved(bytes))),
        "context" => parse_bytes(value).map(|bytes| Setting::Machine(Size::Context(bytes))),
        "unattributed" => {
            parse_bytes(value).map(|bytes| Setting::Machine(Size::Unattributed(bytes)))
        }
        "devices" => value
            .parse()
            .ok()
            .filter(|count| (1..=MAX_DEVICES as u64).contains(count))
            .map(|count| Setting::Machine(Size::Devices(count))),
        "foreign" if value == "off" => Some(Setting::Machine(Size::NoForeign)),
        "foreign" => parse_foreign(value).map(Setting::Machine),
        "late_us" => value.parse().ok().map(Setting::LateUs),
        "copy_us" => value.parse().ok().map(Setting::CopyUs),
        "oom_at" if value == "off" => Some(Setting::OomAt(u64::MAX)),
        "oom_at" => parse_bytes(value).map(Setting::OomAt),
        "accounting" if value == "on" || value == "off" => Some(Setting::Accounting(value == "on")),
        "pid_offset" => value.parse().ok().map(Setting::PidOffset),
        "fail" => parse_fault(value).map(Setting::Fail),
        _ => None,
    };
    setting.ok_or_else(wrong)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn parse_foreign(text: &str) -> Option<Size> {
    let (pid, bytes) = text.split_once(':')?;
    Some(Size::Foreign { pid: pid.parse().ok()?, bytes: parse_bytes(bytes)? })
}

fn parse_fault(text: &str) -> Option<Fault> {
    let (call, code) = text.split_once(':')?;
    let (name, countdown) = match call.split_once('@') {
        Some((name, nth)) => (name, Some(nth.parse().ok().filter(|nth| *nth > 0)?)),
        None => (call, None),
    };
    Some(Fault { name: name.to_owned(), countdown, code: code.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_documented() {
        let fault = |countdown| Fault { name: "cuMemCreate".to_owned(), countdown, code: 2 };
        assert_eq!(
            parse("total=3GiB, foreign=77:5MiB,fail=cuMemCreate@3:2,fail=cuMemCreate:2,oom_at=off"),
            Ok(vec![
                Setting::Machine(Size::Total(3 << 30)),
                Setting::Machine(Size::Foreign { pid: 77, bytes: 5 << 20 }),
                Setting::Fail(fault(Some(3))),
                Setting::Fail(fault(None)),
                Setting::OomAt(u64::MAX),
            ])
        );
    }

    #[test]
    fn a_wrong_setting_is_named() {
        for wrong in ["totl=1", "total", "total=1GB", "devices=0", "fail=x@0:2", "foreign=a:1"] {
            let why = parse(wrong).expect_err(wrong);
            assert!(why.contains(wrong), "{why}");
        }
    }
}
