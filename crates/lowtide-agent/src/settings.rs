//! The variables that `lowtide run` sets for the agent, as they were when the program initialised the driver.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lowtide::SystemClock;
use lowtide_proto::helper::Target;
use lowtide_proto::share::Priority;
use lowtide_proto::{MemoryCap, Obstacle};
use lowtide_release::{Idle, IdleOptions, parse_time};
use lowtide_types::{Bytes, variables};

use crate::say::say;

/// The time for which a touch tries to wake, unless `LOWTIDE_WAKE_TIMEOUT` says another.
const WAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which any call waits for room where programs take turns, unless `LOWTIDE_WAIT` says another.
const WAIT: Duration = Duration::from_secs(600);

/// Returns whether `LOWTIDE_AGENT=off` turns the agent off.
pub(crate) fn is_off() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    *OFF.get_or_init(|| variables::get("LOWTIDE_AGENT").is_some_and(|value| value == "off"))
}

/// Returns whether the program takes turns with others, as `LOWTIDE_SHARE` says.
pub(crate) fn shares() -> bool {
    static SHARES: OnceLock<bool> = OnceLock::new();
    *SHARES.get_or_init(|| {
        let value = variables::get("LOWTIDE_SHARE").unwrap_or_default();
        !value.is_empty() && value != "0" && value != "off"
    })
}

/// Returns the class of the program's needs, as `LOWTIDE_PRIORITY` says.
pub(crate) fn priority() -> Priority {
    let Some(text) = variables::text("LOWTIDE_PRIORITY") else { return Priority::default() };
    text.parse().unwrap_or_else(|error| {
        say!("LOWTIDE_PRIORITY: {error}");
        Priority::default()
    })
}

/// Returns the time for which a call waits for room, as `LOWTIDE_WAIT` says where the program shares, and
/// `LOWTIDE_WAKE_TIMEOUT` otherwise.
pub(crate) fn wait() -> Duration {
    let (name, default) =
        if shares() { ("LOWTIDE_WAIT", WAIT) } else { ("LOWTIDE_WAKE_TIMEOUT", WAKE_TIMEOUT) };
    let Some(text) = variables::text(name) else { return default };
    parse_time(&text).unwrap_or_else(|| {
        say!("{name}={text} is not a time such as 30s or 5m; the limit is {default:?}");
        default
    })
}

/// Returns the first process of the run, as `LOWTIDE_FAMILY` says: its processes are one program. `None` for one that is
/// apart.
pub(crate) fn family() -> Option<Target> {
    let text = variables::text("LOWTIDE_FAMILY").filter(|text| !text.is_empty())?;
    text.parse().inspect_err(|error| say!("LOWTIDE_FAMILY: {error}")).ok()
}

/// Returns the most memory that the program may have on a device, as `LOWTIDE_MEMORY` says.
pub(crate) fn memory() -> Option<MemoryCap> {
    let text = variables::text("LOWTIDE_MEMORY").filter(|text| !text.is_empty())?;
    text.parse::<MemoryCap>().inspect_err(|error| say!("LOWTIDE_MEMORY: {error}")).ok()
}

/// Returns what is kept back of a device where the program is told what there is for it, as `LOWTIDE_RESERVE` says.
pub(crate) fn reserve() -> Option<Bytes> {
    let text = variables::text("LOWTIDE_RESERVE").filter(|text| !text.is_empty())?;
    text.parse::<Bytes>().inspect_err(|error| say!("LOWTIDE_RESERVE: {error}")).ok()
}

/// Returns whether an idle program is to be suspended, as `LOWTIDE_IDLE_TO` says.
pub(crate) fn suspends_when_idle() -> bool {
    static SUSPENDS: OnceLock<bool> = OnceLock::new();
    *SUSPENDS.get_or_init(|| match variables::text("LOWTIDE_IDLE_TO").as_deref() {
        Some("suspend") => true,
        Some("sleep" | "") | None => false,
        Some(word) => {
            say!("LOWTIDE_IDLE_TO={word}: it is `sleep` or `suspend`");
            false
        }
    })
}

/// Returns the idle policy that `LOWTIDE_FREE_ON_IDLE` asks for, if any.
pub(crate) fn idle_policy() -> Option<Idle> {
    match IdleOptions::from_env(variables::text) {
        Ok(options) if options.at_end => {
            say!("LOWTIDE_FREE_ON_IDLE=task: the agent does not see tasks; give a time such as 5m");
            None
        }
        Ok(options) => {
            options.enabled.then(|| Idle::new(options, Arc::new(SystemClock::default())))
        }
        Err(error) => {
            say!("the program does not sleep by itself (LOWTIDE_FREE_ON_IDLE): {error}");
            None
        }
    }
}

/// Returns whether `LOWTIDE_DESPITE` says that an obstacle is none.
pub(crate) fn is_ignored(obstacle: Obstacle) -> bool {
    static IGNORED: OnceLock<Vec<Obstacle>> = OnceLock::new();
    let ignored = IGNORED.get_or_init(|| {
        let text = variables::text("LOWTIDE_DESPITE").unwrap_or_default();
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let of = |word: &str| {
            let obstacle = word.parse();
            obstacle.inspect_err(|error| say!("LOWTIDE_DESPITE: {error}")).ok()
        };
        words.filter_map(of).collect()
    });
    ignored.contains(&obstacle)
}
