//! The options of the idle policy, as people write them: a word or a time, in one environment
//! variable.

use std::str::FromStr;
use std::time::Duration;

/// The environment variable that switches the policy on.
const VARIABLE: &str = "LOWTIDE_FREE_ON_IDLE";

/// Whether and when an idle program frees its memory.
///
/// ```
/// use std::time::Duration;
/// use lowtide_release::IdleOptions;
///
/// let options: IdleOptions = "30s".parse()?;
/// assert!(options.enabled && options.after == Duration::from_secs(30));
/// let options = IdleOptions::from_env(|_name| None)?;
/// assert!(!options.enabled, "the variable is not set");
/// # Ok::<(), lowtide_release::ParseIdleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleOptions {
    /// Whether the policy is switched on. If it is off, nothing ever happens.
    pub enabled: bool,
    /// The quiet time: how long no task may have run.
    pub after: Duration,
    /// Whether who ends a task releases at once. There is no quiet time then.
    pub at_end: bool,
}

impl Default for IdleOptions {
    fn default() -> IdleOptions {
        IdleOptions { enabled: false, after: Duration::from_secs(5 * 60), at_end: false }
    }
}

impl IdleOptions {
    /// Reads `LOWTIDE_FREE_ON_IDLE`, in the words of [`IdleOptions::from_str`]. The policy is off if
    /// the variable is not set.
    ///
    /// # Errors
    /// If the variable has another value.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<IdleOptions, ParseIdleError> {
        get(VARIABLE).map_or_else(|| Ok(IdleOptions::default()), |value| value.parse())
    }
}

impl FromStr for IdleOptions {
    type Err = ParseIdleError;

    /// Reads the options from text. Empty text, `0`, `false`, `off` and `no` switch the policy off;
    /// `1`, `true`, `on` and `yes` switch it on; a time such as `250ms`, `30s`, `5m` or `1h` switches
    /// it on with that quiet time; `task` releases at the end of each task.
    fn from_str(text: &str) -> Result<IdleOptions, ParseIdleError> {
        let options = IdleOptions::default();
        match text.trim().to_ascii_lowercase().as_str() {
            "" | "0" | "false" | "off" | "no" => Ok(options),
            "1" | "true" | "on" | "yes" => Ok(IdleOptions { enabled: true, ..options }),
            "task" => Ok(IdleOptions { enabled: true, after: Duration::ZERO, at_end: true }),
            word => match parse_time(word) {
                Some(after) => Ok(IdleOptions { enabled: true, after, ..options }),
                None => Err(ParseIdleError { value: text.to_owned() }),
            },
        }
    }
}

/// Reads a time such as `250ms`, `30s`, `5m` or `1h`; `None` if the text is none.
pub fn parse_time(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ms).map(Duration::from_millis)
}

/// Text that is not a value of [`IdleOptions`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} does not say when to free on idle; write 1, true, on or yes, 0, false, off or no, \
     a time such as 250ms, 30s, 5m or 1h, or task for the end of each task"
)]
pub struct ParseIdleError {
    /// The text.
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn r25_one_variable_switches_it_on() {
        let of = |value: Option<&str>| {
            IdleOptions::from_env(|name| {
                assert_eq!(name, "LOWTIDE_FREE_ON_IDLE");
                value.map(str::to_owned)
            })
        };
        let off = IdleOptions::default();
        assert_eq!((off.enabled, off.after), (false, 300 * SECOND));
        for value in [None, Some(""), Some(" "), Some("0"), Some("false"), Some("OFF"), Some("no")]
        {
            assert_eq!(of(value), Ok(off), "{value:?}");
        }
        for value in ["1", "true", "on", "Yes", " 1 "] {
            assert_eq!(of(Some(value)), Ok(IdleOptions { enabled: true, ..off }), "{value:?}");
        }
        let at_end = of(Some("task")).unwrap();
        assert!(at_end.enabled && at_end.at_end && at_end.after.is_zero());
        let times =
            [("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("250ms", 250), ("0s", 0)];
        for (value, after_ms) in times {
            let after = Duration::from_millis(after_ms);
            assert_eq!(of(Some(value)), Ok(IdleOptions { enabled: true, after, ..off }), "{value}");
        }
        for value in ["2", "30", "s", "-5s", "+5s", "5 m", "5d", "1.5h", "maybe", "5m30s", "５s"] {
            assert_eq!(of(Some(value)), Err(ParseIdleError { value: value.to_owned() }));
        }
        // More than there is.
        for value in ["18446744073709551615h", "18446744073709551616ms"] {
            assert!(of(Some(value)).is_err(), "{value}");
        }
        let error = of(Some("soon")).unwrap_err().to_string();
        for allowed in ["\"soon\"", "1,", "yes", "off", "no", "250ms", "1h"] {
            assert!(error.contains(allowed), "{error}");
        }
    }
}
