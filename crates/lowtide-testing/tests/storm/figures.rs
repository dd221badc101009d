//! The figures of a storm: what was done, what went wrong on purpose, what was checked.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use lowtide_device::Bytes;
use lowtide_release::Verdict;
use serde::{Deserialize, Serialize};

/// The figures of a child, or of a whole storm.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    /// Of the supervisor.
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) children: u64,
    /// Children that were ended by `kill -9`.
    pub(crate) kills: u64,
    pub(crate) worlds: u64,
    /// By kind.
    pub(crate) operations: BTreeMap<String, u64>,
    /// Operations that were refused, by reason.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// Releases by verdict.
    pub(crate) releases: BTreeMap<String, u64>,
    /// Calls of the driver that failed on purpose.
    pub(crate) faults: u64,
    pub(crate) forks: u64,
    /// Panics on purpose, in callbacks, hooks, limits and drops.
    pub(crate) panics: u64,
    pub(crate) bytes_checked: u64,
}

static OF_THIS_PROCESS: Mutex<Option<Figures>> = Mutex::new(None);

/// Changes the figures of this process, or reads them.
pub(crate) fn with<T>(change: impl FnOnce(&mut Figures) -> T) -> T {
    let mut figures = OF_THIS_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    change(figures.get_or_insert_default())
}

/// Counts an operation.
pub(crate) fn operation(kind: &str) {
    with(|figures| *figures.operations.entry(kind.to_owned()).or_default() += 1);
}

/// Counts a refusal.
pub(crate) fn refusal(why: &str) {
    with(|figures| *figures.refusals.entry(why.to_owned()).or_default() += 1);
}

/// Counts a release.
pub(crate) fn release(verdict: Verdict) {
    with(|figures| *figures.releases.entry(verdict.to_string()).or_default() += 1);
}

impl Figures {
    /// Adds the figures of a child.
    pub(crate) fn add(&mut self, child: &Figures) {
        self.worlds += child.worlds;
        self.faults += child.faults;
        self.forks += child.forks;
        self.panics += child.panics;
        self.bytes_checked += child.bytes_checked;
        for (sum, more) in [
            (&mut self.operations, &child.operations),
            (&mut self.refusals, &child.refusals),
            (&mut self.releases, &child.releases),
        ] {
            for (name, times) in more {
                *sum.entry(name.clone()).or_default() += times;
            }
        }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed             {}", self.seed)?;
        writeln!(f, "time             {:.1} s", self.seconds)?;
        writeln!(f, "children         {}, {} of them killed", self.children, self.kills)?;
        writeln!(f, "worlds           {}", self.worlds)?;
        writeln!(f, "bytes checked    {}", Bytes(self.bytes_checked))?;
        writeln!(f, "faults injected  {}", self.faults)?;
        writeln!(f, "forks            {}", self.forks)?;
        writeln!(f, "panics           {}", self.panics)?;
        for (title, counts) in [
            ("operations", &self.operations),
            ("refusals", &self.refusals),
            ("releases", &self.releases),
        ] {
            writeln!(f, "{title:<16} {}", counts.values().sum::<u64>())?;
            for (name, times) in counts {
                writeln!(f, "  {name:<20} {times:>10}")?;
            }
        }
        Ok(())
    }
}
