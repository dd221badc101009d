//! A ladder: rungs in order, each with a time limit, climbed until the target is met.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lowtide_types::{RungName, debug_as, words};

use super::collect::{COLLECT, YOUNG_COLLECT};
use super::drop::DropOwners;
use super::fraction::Fraction;
use super::hooked::{CACHES, CHEAP_CACHES, EXIT, LIBRARIES, SESSIONS, SUSPEND, TO_HOST};
use super::last_resort::{ContextReset, Fallback};
use super::quiesce::Quiesce;
use super::rung::Rung;
use super::sleep::Sleep;
use super::trim::Trim;

/// How often a ladder with a target is climbed while the target is missed and memory is still freed.
const ATTEMPTS: u32 = 3;
/// The rungs of a release to zero bytes. `suspend` is last: a process that is off the device frees nothing
/// more there.
const TO_ZERO: &[RungName] = &[
    RungName::Quiesce,
    RungName::Drop,
    RungName::Collect,
    RungName::Trim,
    RungName::Caches,
    RungName::Libraries,
    RungName::ToHost,
    RungName::Sessions,
    RungName::Fraction,
    RungName::Sleep,
    RungName::ContextReset,
    RungName::Fallback,
    RungName::Exit,
    RungName::Suspend,
];

words! {
    /// The name of a ladder that lowtide brings.
    ///
    /// ```
    /// use lowtide_release::{Ladder, LadderName};
    ///
    /// let name: LadderName = "cache".parse()?;
    /// assert_eq!(Ladder::named(name).names(), ["collect", "trim"]);
    /// assert!("polish".parse::<LadderName>().is_err());
    /// # Ok::<(), lowtide_release::ParseLadderError>(())
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum LadderName {
        /// Frees cached memory while work goes on: collect, trim.
        Cache = "cache",
        /// Cleans up between two tasks while work goes on: clears the caches that are cheap to fill again,
        /// collects, trims.
        Between = "between",
        /// Drops owners and returns what that freed to the driver: the ladder of a shutdown.
        Shutdown = "shutdown",
        /// Every rung, each only while the target is missed (R30): the ladder of a release with a target.
        /// The first one that frees memory shuts down all registered owners; [`LadderName::Idle`] keeps them.
        Gradual = "gradual",
        /// The rungs of [`LadderName::Gradual`], then exit and suspend: the ladder of a release to zero bytes. No
        /// other ladder takes whole processes off the device.
        Zero = "zero",
        /// The ladder of an idle process: the eight steps of R27, and sleep before the last two.
        Idle = "idle",
        /// Every rung that leaves processes on the device, in the order of the design.
        Whole = "whole",
    }
}

impl LadderName {
    /// Every ladder.
    pub const ALL: [LadderName; 7] = [
        LadderName::Cache,
        LadderName::Between,
        LadderName::Shutdown,
        LadderName::Gradual,
        LadderName::Zero,
        LadderName::Idle,
        LadderName::Whole,
    ];

    fn rungs(self) -> &'static [RungName] {
        use RungName::{
            Caches, Collect, ContextReset, Drop, Fallback, Fraction, Libraries, Quiesce, Sessions,
            Sleep, ToHost, Trim,
        };
        match self {
            LadderName::Cache => &[Collect, Trim],
            LadderName::Between => &[Caches, Collect, Trim],
            LadderName::Shutdown => &[Quiesce, Drop, Libraries, Caches, Collect, Trim],
            // All but those that take whole processes off the device.
            LadderName::Gradual => &TO_ZERO[..TO_ZERO.len() - 2],
            LadderName::Zero => TO_ZERO,
            LadderName::Idle => &[
                Quiesce,
                ToHost,
                Sessions,
                Caches,
                Collect,
                Trim,
                Fraction,
                Sleep,
                ContextReset,
                Fallback,
            ],
            LadderName::Whole => &[
                Quiesce,
                Drop,
                ToHost,
                Sessions,
                Libraries,
                Caches,
                Collect,
                Trim,
                Fraction,
                Sleep,
                ContextReset,
                Fallback,
            ],
        }
    }

    fn attempts(self) -> u32 {
        match self {
            LadderName::Gradual | LadderName::Zero | LadderName::Idle => ATTEMPTS,
            LadderName::Cache | LadderName::Between | LadderName::Shutdown | LadderName::Whole => 1,
        }
    }
}

impl FromStr for LadderName {
    type Err = ParseLadderError;

    fn from_str(text: &str) -> Result<LadderName, ParseLadderError> {
        let known = LadderName::ALL.into_iter().find(|name| name.as_str() == text);
        known.ok_or_else(|| ParseLadderError { value: text.to_owned() })
    }
}

/// Text that names no ladder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no ladder {value:?}; the ladders are cache, between, shutdown, gradual, zero, idle and whole"
)]
pub struct ParseLadderError {
    /// The text.
    pub value: String,
}

/// A name that none of lowtide's rungs has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no rung {name}; the rungs are {}", RungName::ALL.map(|name| name.to_string()).join(", "))]
pub struct NoSuchRung {
    /// The name.
    pub name: RungName,
}

/// Returns the rung of a name; `None` for a [custom](RungName::Custom) one.
pub fn of_name(name: &RungName) -> Option<Arc<dyn Rung>> {
    Some(match name {
        RungName::Quiesce => Arc::new(Quiesce),
        RungName::Drop => Arc::new(DropOwners),
        RungName::Libraries => Arc::new(LIBRARIES),
        RungName::Caches => Arc::new(CACHES),
        RungName::Collect => Arc::new(COLLECT),
        RungName::Trim => Arc::new(Trim),
        RungName::ToHost => Arc::new(TO_HOST),
        RungName::Sessions => Arc::new(SESSIONS),
        RungName::Fraction => Arc::new(Fraction),
        RungName::Sleep => Arc::new(Sleep),
        RungName::ContextReset => Arc::new(ContextReset),
        RungName::Fallback => Arc::new(Fallback),
        RungName::Suspend => Arc::new(SUSPEND),
        RungName::Exit => Arc::new(EXIT),
        _ => return None,
    })
}

/// Rungs in order. Standard rungs come first, stronger ones are climbed only while the target is
/// missed.
#[derive(Clone)]
pub struct Ladder {
    rungs: Vec<Placed>,
    attempts: u32,
    /// Whether its collections look at young objects alone.
    is_young: bool,
}

/// A rung in its place on a ladder.
#[derive(Clone)]
pub(crate) struct Placed {
    pub(crate) rung: Arc<dyn Rung>,
    pub(crate) limit: Duration,
}

impl Ladder {
    /// Returns the ladder of a name.
    pub fn named(name: LadderName) -> Ladder {
        // A named ladder has no custom rungs, so each name has its rung.
        let rungs = name.rungs().iter().filter_map(of_name);
        let ladder = Ladder::of(rungs.collect()).attempts(name.attempts());
        if name == LadderName::Between { ladder.with_cheap_caches() } else { ladder }
    }

    /// Returns [`LadderName::Cache`].
    pub fn cache() -> Ladder {
        Ladder::named(LadderName::Cache)
    }

    /// Returns a ladder that only returns cached memory to the driver.
    pub fn trim() -> Ladder {
        Ladder::of(of_name(&RungName::Trim).into_iter().collect())
    }

    /// Returns [`LadderName::Between`].
    pub fn between() -> Ladder {
        Ladder::named(LadderName::Between)
    }

    /// Clears only the caches that are cheap to fill again, and lets work go on meanwhile.
    #[must_use]
    pub fn with_cheap_caches(self) -> Ladder {
        let rung: Arc<dyn Rung> = Arc::new(CHEAP_CACHES);
        self.replace(&RungName::Caches, &rung)
    }

    /// Collects only young objects.
    #[must_use]
    pub fn with_young_collection(self) -> Ladder {
        let rung: Arc<dyn Rung> = Arc::new(YOUNG_COLLECT);
        Ladder { is_young: true, ..self.replace(&RungName::Collect, &rung) }
    }

    /// Returns [`LadderName::Shutdown`].
    pub fn shutdown() -> Ladder {
        Ladder::named(LadderName::Shutdown)
    }

    /// Returns [`LadderName::Gradual`].
    pub fn gradual() -> Ladder {
        Ladder::named(LadderName::Gradual)
    }

    /// Returns [`LadderName::Zero`].
    pub fn zero() -> Ladder {
        Ladder::named(LadderName::Zero)
    }

    /// Returns [`LadderName::Idle`].
    pub fn idle() -> Ladder {
        Ladder::named(LadderName::Idle)
    }

    /// Returns [`LadderName::Whole`].
    pub fn whole() -> Ladder {
        Ladder::named(LadderName::Whole)
    }

    /// Creates a ladder of these rungs.
    pub fn of(rungs: Vec<Arc<dyn Rung>>) -> Ladder {
        let placed = rungs.into_iter().map(|rung| Placed { limit: rung.limit(), rung });
        Ladder { rungs: placed.collect(), attempts: 1, is_young: false }
    }

    /// Creates a ladder of lowtide's rungs of these names.
    ///
    /// ```
    /// use lowtide_release::{Ladder, RungName};
    /// let ladder = Ladder::of_names(&[RungName::Collect, RungName::Trim])?;
    /// assert_eq!(ladder.names(), Ladder::cache().names());
    /// # Ok::<(), lowtide_release::NoSuchRung>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchRung`] for a custom name.
    pub fn of_names(names: &[RungName]) -> Result<Ladder, NoSuchRung> {
        let named =
            |name: &RungName| of_name(name).ok_or_else(|| NoSuchRung { name: name.clone() });
        Ok(Ladder::of(names.iter().map(named).collect::<Result<_, _>>()?))
    }

    /// Sets how often the ladder is climbed at most, while the target is missed and memory is still
    /// freed. Where the ladder has the rung `fallback`, only memory that was freed by it, or after it, counts:
    /// it climbs the others once more.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Ladder {
        self.attempts = attempts.max(1);
        self
    }

    /// Sets the time limit of the rung of this name.
    #[must_use]
    pub fn limit(mut self, name: &RungName, limit: Duration) -> Ladder {
        for placed in self.of_name(name) {
            placed.limit = limit;
        }
        self
    }

    /// Puts another rung in the place of the one of this name.
    #[must_use]
    pub fn replace(mut self, name: &RungName, rung: &Arc<dyn Rung>) -> Ladder {
        for placed in self.of_name(name) {
            placed.rung = Arc::clone(rung);
        }
        self
    }

    /// Adds a rung at the end.
    #[must_use]
    pub fn then(mut self, rung: Arc<dyn Rung>) -> Ladder {
        self.rungs.push(Placed { limit: rung.limit(), rung });
        self
    }

    /// Returns the names of the rungs, in order.
    pub fn names(&self) -> Vec<RungName> {
        self.rungs.iter().map(|placed| placed.rung.name()).collect()
    }

    fn of_name(&mut self, name: &RungName) -> impl Iterator<Item = &mut Placed> {
        self.rungs.iter_mut().filter(move |placed| placed.rung.name() == *name)
    }

    pub(crate) fn rungs(&self) -> &[Placed] {
        &self.rungs
    }

    pub(crate) fn most_attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether its collections look at all objects.
    pub(crate) fn collects_all(&self) -> bool {
        !self.is_young
    }

    /// Whether work may go on while the ladder is climbed.
    pub(crate) fn lets_work_go_on(&self) -> bool {
        self.rungs.iter().all(|placed| placed.rung.lets_work_go_on())
    }
}

debug_as!(Ladder, |it| "Ladder({} × {:?})", it.attempts, it.names());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r27_the_eight_steps_exist_in_their_order() {
        let eight = [
            RungName::ToHost,
            RungName::Sessions,
            RungName::Caches,
            RungName::Collect,
            RungName::Trim,
            RungName::Fraction,
            RungName::ContextReset,
            RungName::Fallback,
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
        for ladder in LadderName::ALL.map(Ladder::named) {
            let names = ladder.names();
            let at = |wanted| names.iter().position(|name| *name == wanted).unwrap();
            assert!(at(RungName::Collect) < at(RungName::Trim), "{names:?}");
        }
        let names = Ladder::shutdown().names();
        assert_eq!(names[..2], ["quiesce", "drop"], "R16: it synchronises first");
    }

    #[test]
    fn whole_and_gradual_have_every_rung_of_this_process_once() {
        for name in LadderName::ALL {
            assert_eq!(Ladder::named(name).names(), name.rungs(), "each name has its rung");
        }
        for ladder in [Ladder::whole(), Ladder::gradual()] {
            let names = ladder.names();
            // Only a release to zero bytes climbs the rungs of whole processes.
            let own = RungName::ALL.into_iter();
            let own = own.filter(|name| ![RungName::Suspend, RungName::Exit].contains(name));
            assert_eq!(names.len(), own.clone().count(), "{names:?}");
            assert!(own.into_iter().all(|name| names.contains(&name)), "{names:?}");
        }
    }

    #[test]
    fn zero_is_gradual_and_then_whole_processes_with_this_one_last() {
        let (zero, gradual) = (Ladder::zero().names(), Ladder::gradual().names());
        assert_eq!(zero[..gradual.len()], gradual);
        assert_eq!(zero[gradual.len()..], [RungName::Exit, RungName::Suspend]);
        for name in LadderName::ALL.into_iter().filter(|name| *name != LadderName::Zero) {
            let names = Ladder::named(name).names();
            assert!(!names.contains(&RungName::Suspend) && !names.contains(&RungName::Exit));
        }
    }

    #[test]
    fn names_are_read_back_and_others_are_refused_with_what_there_is() {
        for name in LadderName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let error = "polish".parse::<LadderName>().unwrap_err().to_string();
        assert!(LadderName::ALL.iter().all(|name| error.contains(name.as_str())), "{error}");
        let error = Ladder::of_names(&[RungName::Trim, "polish".into()]).unwrap_err();
        assert_eq!(error.name, "polish");
        assert!(error.to_string().contains("context_reset"), "{error}");
    }

    #[test]
    fn every_name_has_its_rung() {
        for name in RungName::ALL {
            assert_eq!(of_name(&name).unwrap().name(), name);
        }
        assert!(of_name(&"polish".into()).is_none());
    }
}
