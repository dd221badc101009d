//! The options of the idle policy, as people write them: a word or a time, in one environment
//! variable.

use std::str::FromStr;
use std::time::Duration;

/// The environment variable that switches the policy on.
const VARIABLE: &str = "LOWTIDE_FREE_ON_IDLE";

/// The environment variable that says for whom an idle program waits.
const GIVE_WAY: &str = "LOWTIDE_GIVE_WAY";

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
    /// The age below which another process on the device puts a release off: while it starts, it may compute
    /// what it uses from the fall of the free number. Zero if none does.
    pub give_way: Duration,
}

impl Default for IdleOptions {
    fn default() -> IdleOptions {
        let (after, give_way) = (Duration::from_secs(5 * 60), Duration::from_secs(2 * 60));
        IdleOptions { enabled: false, after, at_end: false, give_way }
    }
}

impl IdleOptions {
    /// Reads `LOWTIDE_FREE_ON_IDLE`, in the words of [`IdleOptions::from_str`]. The policy is off if
    /// the variable is not set.
    ///
    /// # Errors
    /// If the variable has another value.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<IdleOptions, ParseIdleError> {
        let options =
            get(VARIABLE).map_or_else(|| Ok(IdleOptions::default()), |value| value.parse());
        options?.giving_way(get)
    }

    /// Reads `LOWTIDE_GIVE_WAY`: a time such as `30s` or `2m`, or `0` for never. These options stay as they
    /// are if the variable is not set.
    ///
    /// # Errors
    /// If the variable has another value.
    pub fn giving_way(
        self,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<IdleOptions, ParseIdleError> {
        let Some(text) = get(GIVE_WAY).filter(|text| !text.trim().is_empty()) else {
            return Ok(self);
        };
        let word = text.trim();
        let time = if word == "0" { Some(Duration::ZERO) } else { parse_time(word) };
        let give_way = time.ok_or(ParseIdleError::GiveWay { value: text })?;
        Ok(IdleOptions { give_way, ..self })
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
            "task" => {
                Ok(IdleOptions { enabled: true, after: Duration::ZERO, at_end: true, ..options })
            }
            word => match parse_time(word) {
                Some(after) => Ok(IdleOptions { enabled: true, after, ..options }),
                None => Err(ParseIdleError::When { value: text.to_owned() }),
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
#[non_exhaustive]
pub enum ParseIdleError {
    /// It does not say when.
    #[error(
        "{value:?} does not say when to free on idle; write 1, true, on or yes, 0, false, off or no, \
         a time such as 250ms, 30s, 5m or 1h, or task for the end of each task"
    )]
    When {
        /// The text.
        value: String,
    },
    /// It does not say to whom to give way.
    #[error(
        "LOWTIDE_GIVE_WAY={value:?} is no age of a process that starts; write a time such as 30s or 2m, or 0"
    )]
    GiveWay {
        /// The text.
        value: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn r25_one_variable_switches_it_on() {
        let of = |value: Option<&str>| {
            IdleOptions::from_env(|name| {
                value.filter(|_| name == "LOWTIDE_FREE_ON_IDLE").map(str::to_owned)
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
            assert_eq!(of(Some(value)), Err(ParseIdleError::When { value: value.to_owned() }));
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

    #[test]
    fn one_variable_says_to_whom_it_gives_way() {
        let of = |value: &str| {
            let get = |name: &str| (name == "LOWTIDE_GIVE_WAY").then(|| value.to_owned());
            IdleOptions::from_env(get).map(|options| options.give_way)
        };
        for (value, seconds) in
            [("", 120), (" ", 120), ("0", 0), ("0s", 0), ("30s", 30), (" 5m ", 300)]
        {
            assert_eq!(of(value), Ok(seconds * SECOND), "{value:?}");
        }
        for value in ["30", "off", "-1s", "soon", "1d"] {
            assert_eq!(of(value), Err(ParseIdleError::GiveWay { value: value.to_owned() }));
        }
    }
}
