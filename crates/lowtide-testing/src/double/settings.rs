//! The settings of the double, as text.
//!
//! Settings are one text, `name=value` separated by commas, the same from the environment
//! (`LOWTIDE_DOUBLE`) and from a test:
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
//! | `mps`, `mig` | `on`, `off`: whether NVML says that every process is a client of the multi-process service, that GPUs are partitioned | process |
//! | `breathing` | bytes: another process has this much at every second reading of NVML's memory | process |
//! | `pid_offset` | added to every PID that NVML reports, as from another namespace | process |
//! | `checkpoint_us` | how long a checkpoint or a restore that this process asks for takes | process |
//! | `die` | `NAME@N`: this process is killed as it makes the Nth call from now | process |
//! | `fail` | `NAME@N:CODE` the Nth call from now, once; `NAME:CODE` every call | process |
//! | `defaults` | (no value) every setting but `fail` as it was at the start | both |
//!
//! Settings of the machine are shared by all processes with the same state file. Each process
//! applies its own environment's text when it starts, and the last setting counts.

/// The most devices that a machine can have.
pub(super) const MAX_DEVICES: usize = 8;

/// The settings of a new machine and of a new process.
pub(super) const DEFAULTS: &str = "total=4GiB,reserved=32MiB,context=64MiB,unattributed=0,devices=1,foreign=off,\
     late_us=200,copy_us=0,oom_at=off,accounting=on,mps=off,mig=off,breathing=0,pid_offset=0,checkpoint_us=0";

/// The code of a fault that ends the process.
pub(super) const DEATH: i32 = i32::MIN;

/// A setting of the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Setting {
    Machine(MachineSetting),
    LateUs(u64),
    CopyUs(u64),
    OomAt(u64),
    Accounting(bool),
    Mps(bool),
    Mig(bool),
    Breathing(u64),
    PidOffset(i64),
    CheckpointUs(u64),
    Fail(Fault),
    Defaults,
}

/// A setting that all processes of a machine share. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum MachineSetting {
    Total(u64),
    Reserved(u64),
    Context(u64),
    Unattributed(u64),
    Devices(u64),
    Foreign { pid: u64, bytes: u64 },
    NoForeign,
}

/// A call that is made to fail.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) name: String,
    /// Calls still to come up to and including the failing one; `None`: every call fails.
    pub(super) countdown: Option<u64>,
    pub(super) code: i32,
}

/// Reads a text of settings.
pub(super) fn parse(text: &str) -> Result<Vec<Setting>, String> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(parse_one).collect()
}

fn parse_one(word: &str) -> Result<Setting, String> {
    if word == "defaults" {
        return Ok(Setting::Defaults);
    }
    let wrong = || format!("`{word}` is not a setting of the driver double");
    let (name, value) = word.split_once('=').ok_or_else(wrong)?;
    let machine = |setting: fn(u64) -> MachineSetting| {
        parse_bytes(value).map(|bytes| Setting::Machine(setting(bytes)))
    };
    let setting = match name {
        "total" => machine(MachineSetting::Total),
        "reserved" => machine(MachineSetting::Reserved),
        "context" => machine(MachineSetting::Context),
        "unattributed" => machine(MachineSetting::Unattributed),
        "devices" => value
            .parse()
            .ok()
            .filter(|count| (1..=MAX_DEVICES as u64).contains(count))
            .map(|count| Setting::Machine(MachineSetting::Devices(count))),
        "foreign" if value == "off" => Some(Setting::Machine(MachineSetting::NoForeign)),
        "foreign" => parse_foreign(value).map(Setting::Machine),
        "late_us" => value.parse().ok().map(Setting::LateUs),
        "copy_us" => value.parse().ok().map(Setting::CopyUs),
        "oom_at" if value == "off" => Some(Setting::OomAt(u64::MAX)),
        "oom_at" => parse_bytes(value).map(Setting::OomAt),
        "accounting" => parse_switch(value).map(Setting::Accounting),
        "mps" => parse_switch(value).map(Setting::Mps),
        "mig" => parse_switch(value).map(Setting::Mig),
        "breathing" => parse_bytes(value).map(Setting::Breathing),
        "pid_offset" => value.parse().ok().map(Setting::PidOffset),
        "checkpoint_us" => value.parse().ok().map(Setting::CheckpointUs),
        // A code that no driver has stands for the end of the process.
        "die" => parse_fault(&format!("{value}:{DEATH}")).map(Setting::Fail),
        "fail" => parse_fault(value).map(Setting::Fail),
        _ => None,
    };
    setting.ok_or_else(wrong)
}

fn parse_switch(text: &str) -> Option<bool> {
    (text == "on" || text == "off").then_some(text == "on")
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

fn parse_foreign(text: &str) -> Option<MachineSetting> {
    let (pid, bytes) = text.split_once(':')?;
    Some(MachineSetting::Foreign { pid: pid.parse().ok()?, bytes: parse_bytes(bytes)? })
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
                Setting::Machine(MachineSetting::Total(3 << 30)),
                Setting::Machine(MachineSetting::Foreign { pid: 77, bytes: 5 << 20 }),
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
