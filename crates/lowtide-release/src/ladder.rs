//! A ladder: rungs in order, each with a time limit, climbed until the target is met.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::rung::Rung;
use crate::rungs;

/// How long a rung may take before it is left behind.
const LIMIT: Duration = Duration::from_secs(60);
/// A sleep copies as much as the device has; it is not a hang.
const SLEEP_LIMIT: Duration = Duration::from_secs(600);

/// Rungs in order. Standard steps first, stronger ones only while the target is missed.
#[derive(Clone)]
pub struct Ladder {
    rungs: Vec<Placed>,
    attempts: u32,
}

#[derive(Clone)]
pub(crate) struct Placed {
    pub(crate) rung: Arc<dyn Rung>,
    pub(crate) limit: Duration,
}

impl Ladder {
    /// Every rung there is, up to sleep and the last resorts.
    pub fn whole() -> Ladder {
        Ladder::of(rungs::all())
    }

    /// What can be given back while everything goes on: collect, then trim.
    pub fn cache() -> Ladder {
        Ladder::named(&["collect", "trim"])
    }

    /// What a shutdown does: wait, drop wrappers first, end what libraries hold, clear, collect, trim.
    pub fn shutdown() -> Ladder {
        Ladder::named(&["quiesce", "drop", "libraries", "caches", "collect", "trim"])
    }

    /// What an idle process does: the eight steps of R27, and sleep before the last two.
    pub fn idle() -> Ladder {
        Ladder::named(&[
            "quiesce",
            "to_host",
            "sessions",
            "caches",
            "collect",
            "trim",
            "fraction",
            "sleep",
            "context_reset",
            "fallback",
        ])
    }

    /// These rungs.
    pub fn of(rungs: Vec<Arc<dyn Rung>>) -> Ladder {
        let limit = |rung: &dyn Rung| match rung.name() {
            "sleep" | "fallback" => SLEEP_LIMIT,
            _ => LIMIT,
        };
        let placed = rungs.into_iter().map(|rung| Placed { limit: limit(&*rung), rung });
        Ladder { rungs: placed.collect(), attempts: 1 }
    }

    /// Of the rungs there are, these, in this order; `None` where there is none of some name.
    ///
    /// ```
    /// use lowtide_release::Ladder;
    /// assert_eq!(Ladder::by_names(&["collect", "trim"]).unwrap().names(), ["collect", "trim"]);
    /// assert!(Ladder::by_names(&["polish"]).is_none());
    /// ```
    pub fn by_names(names: &[&str]) -> Option<Ladder> {
        let all = rungs::all();
        let named = |name: &&str| all.iter().find(|rung| rung.name() == *name).cloned();
        Some(Ladder::of(names.iter().map(named).collect::<Option<_>>()?))
    }

    fn named(names: &[&str]) -> Ladder {
        Ladder::by_names(names).expect("rungs of these names")
    }

    /// Climbed so often at most, while the target is missed and something still comes back.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Ladder {
        self.attempts = attempts.max(1);
        self
    }

    /// With another limit for the rung of this name.
    #[must_use]
    pub fn limit(mut self, name: &str, limit: Duration) -> Ladder {
        for placed in self.rungs.iter_mut().filter(|placed| placed.rung.name() == name) {
            placed.limit = limit;
        }
        self
    }

    /// With another rung in the place of the one of this name.
    #[must_use]
    pub fn replace(mut self, name: &str, rung: &Arc<dyn Rung>) -> Ladder {
        for placed in self.rungs.iter_mut().filter(|placed| placed.rung.name() == name) {
            placed.rung = Arc::clone(rung);
        }
        self
    }

    /// With one more rung at its end.
    #[must_use]
    pub fn then(mut self, rung: Arc<dyn Rung>) -> Ladder {
        self.rungs.push(Placed { rung, limit: LIMIT });
        self
    }

    /// The names of its rungs, in order.
    pub fn names(&self) -> Vec<&str> {
        self.rungs.iter().map(|placed| placed.rung.name()).collect()
    }

    pub(crate) fn rungs(&self) -> &[Placed] {
        &self.rungs
    }

    pub(crate) fn most_attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether work may go on while it is climbed.
    pub(crate) fn lets_work_go_on(&self) -> bool {
        self.rungs.iter().all(|placed| placed.rung.lets_work_go_on())
    }
}

impl fmt::Debug for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ladder({} × {:?})", self.attempts, self.names())
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn r27_the_eight_steps_exist_in_their_order() {
        let eight = [
            "to_host",
            "sessions",
            "caches",
            "collect",
            "trim",
            "fraction",
            "context_reset",
            "fallback",
        ];
        for ladder in [Ladder::idle(), Ladder::whole()] {
            let names = ladder.names();
            let at: Vec<_> =
                eight.iter().map(|step| names.iter().position(|name| name == step)).collect();
            assert!(at.iter().all(Option::is_some), "{names:?}");
            assert!(at.is_sorted(), "{names:?}");
        }
    }

    #[test]
    fn r24_r11_collect_comes_before_trim_everywhere() {
        for ladder in [Ladder::cache(), Ladder::shutdown(), Ladder::idle(), Ladder::whole()] {
            let names = ladder.names();
            let at = |wanted| names.iter().position(|name| *name == wanted).unwrap();
            assert!(at("collect") < at("trim"), "{names:?}");
        }
        let names = Ladder::shutdown();
        assert_eq!(names.names()[..2], ["quiesce", "drop"], "R16: it synchronises first");
    }
}
