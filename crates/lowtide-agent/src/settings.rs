//! The variables that `lowtide run` sets for the agent. Each is read once: the program may change them later.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lowtide::SystemClock;
use lowtide_proto::Obstacle;
use lowtide_release::{Idle, IdleOptions, parse_time};

use crate::say::say;

/// The time for which a touch tries to wake, unless `LOWTIDE_WAKE_TIMEOUT` says another.
const WAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns whether `LOWTIDE_AGENT=off` turns the agent off.
pub(crate) fn is_off() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    *OFF.get_or_init(|| std::env::var_os("LOWTIDE_AGENT").is_some_and(|value| value == "off"))
}

/// Returns the time for which a touch tries to wake, as `LOWTIDE_WAKE_TIMEOUT` says.
pub(crate) fn wake_timeout() -> Duration {
    let Ok(text) = std::env::var("LOWTIDE_WAKE_TIMEOUT") else { return WAKE_TIMEOUT };
    parse_time(&text).unwrap_or_else(|| {
        say!("LOWTIDE_WAKE_TIMEOUT={text} is not a time such as 30s or 5m; the limit is {WAKE_TIMEOUT:?}");
        WAKE_TIMEOUT
    })
}

/// Returns whether an idle program is to be suspended, as `LOWTIDE_IDLE_TO` says.
pub(crate) fn suspends_when_idle() -> bool {
    static SUSPENDS: OnceLock<bool> = OnceLock::new();
    *SUSPENDS.get_or_init(|| match std::env::var("LOWTIDE_IDLE_TO").as_deref() {
        Ok("suspend") => true,
        Ok("sleep" | "") | Err(_) => false,
        Ok(word) => {
            say!("LOWTIDE_IDLE_TO={word}: it is `sleep` or `suspend`");
            false
        }
    })
}

/// Returns the idle policy that `LOWTIDE_FREE_ON_IDLE` asks for, if any.
pub(crate) fn idle_policy() -> Option<Idle> {
    match IdleOptions::from_env(|name| std::env::var(name).ok()) {
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
        let text = std::env::var("LOWTIDE_DESPITE").unwrap_or_default();
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let of = |word: &str| {
            let obstacle = word.parse();
            obstacle.inspect_err(|error| say!("LOWTIDE_DESPITE: {error}")).ok()
        };
        words.filter_map(of).collect()
    });
    ignored.contains(&obstacle)
}
