//! Stages: models that use the device one after another.
//!
//! Each model is torn down by one contract, which in Rust is `Drop`: the model is dropped, the host
//! language collects garbage, and cached memory goes back to the driver. So the peak is the largest
//! model, never the sum, and there is a receipt between each two.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use lowtide_types::{Bytes, Reading, Receipt, debug_as};

use super::slope::{Slope, Trend};
use super::stages_report::{StageReport, StagesReport};
use crate::climb::{Claiming, Releaser, Request, Thrift, outside_growth};
use crate::clock::Clock;
use crate::fork::ProcessMutex;
use crate::readings::Inventory;
use crate::rungs::Ladder;

/// The reason why a stage did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError<E> {
    /// The stage would not fit, so nothing was loaded.
    #[error(
        "stage {name:?} does not fit: it needs {needed}, and {available} are available ({in_use} in \
         use{}); free memory first, or load less",
        budget.map(|most| format!(", budget {most}")).unwrap_or_default()
    )]
    WouldNotFit {
        /// The name of the stage.
        name: String,
        /// The memory that the stage asked for.
        needed: Bytes,
        /// The memory that is available to it.
        available: Bytes,
        /// The memory in use before it.
        in_use: Bytes,
        /// The budget of the sequence, if it has one.
        budget: Option<Bytes>,
    },
    /// The model could not be loaded.
    #[error("{0}")]
    Load(E),
}

/// A stage that has begun: the numbers before it, and its peak so far.
#[derive(Debug, Clone)]
#[must_use = "a stage that is not closed is in no report"]
pub struct Opened {
    pub(super) name: String,
    pub(super) before: Reading,
    pub(super) peak: Bytes,
    /// By how much the device's number rose while the model was loaded.
    pub(super) loaded: Bytes,
    /// How many clean-ups between tasks came before the stage.
    pub(super) cleaned_before: usize,
}

impl Opened {
    /// Returns what the stage has taken: what its model took when it was loaded, or the growth of the
    /// allocators since, if that is more.
    pub fn taken(&self, now: &Reading) -> Bytes {
        self.loaded.max(now.reserved.saturating_sub(self.before.reserved))
    }

    /// Returns what was in use before the stage, where the device could be asked.
    pub fn before(&self) -> Option<Bytes> {
        self.before.in_use()
    }
}

/// A sequence of stages on one device. Clones share what they have seen.
#[derive(Clone)]
pub struct Stages {
    pub(crate) releaser: Releaser,
    budget: Option<Bytes>,
    began: Duration,
    done: Arc<ProcessMutex<Done>>,
}

/// A clean-up between two tasks.
struct CleanUp {
    /// In use before it.
    in_use: Option<Bytes>,
    took_s: f64,
}

#[derive(Default)]
struct Done {
    stages: Vec<StageReport>,
    between: Vec<CleanUp>,
    peak: Bytes,
    level: Option<Level>,
    slope: Slope,
    /// When the last clean-up ended.
    cleaned: Option<Duration>,
}

/// The numbers after the first task was cleaned up. Later tasks are held to them.
#[derive(Clone, Copy)]
struct Level {
    reading: Reading,
    /// Whether memory outside the allocators grew during the last task. Libraries load once; growth in
    /// two tasks in a row is not theirs.
    has_grown: bool,
}

impl Stages {
    /// Creates a sequence of stages on the device of `releaser`.
    pub fn new(releaser: &Releaser) -> Stages {
        let (releaser, began) = (releaser.clone(), releaser.now());
        Stages { releaser, budget: None, began, done: Arc::default() }
    }

    /// Sets the most that may be in use when a stage begins. [`Stages::load_needing`] refuses a stage whose size,
    /// with what is in use, would exceed it. Nothing is checked later: if a stage takes more than it said, or was
    /// loaded without a size, the [report](StagesReport) says by how much the peak exceeds the budget.
    #[must_use]
    pub fn budget(mut self, most: Bytes) -> Stages {
        self.budget = Some(most);
        self
    }

    /// Returns the same sequence with another clock for the waits of its caller, as
    /// [`Releaser::with_clock`]. Both clocks must count from the same moment.
    #[must_use]
    pub fn with_clock(&self, clock: Arc<dyn Clock>) -> Stages {
        Stages { releaser: self.releaser.with_clock(clock), ..self.clone() }
    }

    /// Begins a stage whose model is kept elsewhere, for example by a host language. It lasts until it
    /// is [closed](Stages::close).
    pub fn open(&self, name: &str) -> Opened {
        let before = self.releaser.inventory().read();
        let cleaned_before = self.done().map_or(0, |mut done| {
            done.level = None;
            done.between.len()
        });
        let peak = before.in_use().unwrap_or_default();
        Opened { name: name.to_owned(), before, peak, loaded: Bytes::ZERO, cleaned_before }
    }

    /// Reads what is in use now, for the peak of a stage.
    pub fn look(&self, opened: &mut Opened) {
        let in_use = self.releaser.inventory().read_device().in_use();
        opened.peak = opened.peak.max(in_use.unwrap_or_default());
        let Some(mut done) = self.done() else { return };
        done.peak = done.peak.max(opened.peak);
    }

    /// Ends a stage by a release, whose ladder tears its model down.
    pub fn close(&self, mut opened: Opened, request: Request) -> Receipt {
        self.look(&mut opened);
        // Planning is part of a teardown.
        let began = self.releaser.now().saturating_sub(request.planned);
        let receipt = self.releaser.release(request);
        self.closed(&opened, began, &receipt);
        receipt
    }

    pub(crate) fn closed(&self, opened: &Opened, began: Duration, receipt: &Receipt) {
        let before = opened.before.in_use().unwrap_or_default();
        // Before the lock: the clock may be the caller's.
        let teardown_s = self.releaser.now().saturating_sub(began).as_secs_f64();
        let Some(mut done) = self.done() else { return };
        // A task's buffers are gone before the stage ends; its clean-up has seen them.
        let tasks = done.between.iter().skip(opened.cleaned_before);
        let peak = tasks.filter_map(|task| task.in_use).fold(opened.peak, Bytes::max);
        let report = StageReport {
            name: opened.name.clone(),
            own_peak_bytes: peak.saturating_sub(before),
            peak_bytes: peak,
            teardown_s,
            receipt: receipt.clone(),
        };
        done.stages.push(report);
        // The tasks of another stage have another level.
        done.level = None;
    }

    /// Checks that there is room for a stage. If there is none, frees cached memory first.
    ///
    /// # Errors
    /// [`StageError::WouldNotFit`].
    pub fn make_room<E>(&self, name: &str, needed: Bytes) -> Result<(), StageError<E>> {
        if self.available() < Some(needed) {
            self.clean(name, Thrift::None);
        }
        match self.available() {
            Some(available) if available < needed => {
                let in_use = self.releaser.inventory().read_device().in_use().unwrap_or_default();
                let (name, budget) = (name.to_owned(), self.budget);
                Err(StageError::WouldNotFit { name, needed, available, in_use, budget })
            }
            _ => Ok(()),
        }
    }

    /// Returns the memory that a stage may take; `None` if the device cannot be asked, and then no
    /// stage is refused.
    fn available(&self) -> Option<Bytes> {
        let reading = self.releaser.inventory().read_device();
        let within =
            self.budget.map(|most| most.saturating_sub(reading.in_use().unwrap_or_default()));
        match (reading.free, within) {
            (Some(free), Some(within)) => Some(free.min(within)),
            (one, other) => one.or(other),
        }
    }

    /// Cleans up between two tasks: clears cheap caches, collects, then trims.
    ///
    /// The first call claims what is cached, and the number after it is the level of the later ones:
    /// they are `released` only if no more is in use than then. A stage that begins or ends, ends the
    /// level with it.
    ///
    /// A full collection takes long in a large heap. So it is left out while it would make cleaning more
    /// than a small share of the time (R15), unless the claim is missed, more is allocated than the last
    /// one left, or a collector knows that it would find something.
    pub fn between(&self, name: &str) -> Receipt {
        self.clean(name, Thrift::ByTime)
    }

    /// The same, at most once in `every`. Returns `None`, and does nothing, before that.
    pub fn between_every(&self, name: &str, every: Duration) -> Option<Receipt> {
        let now = self.releaser.now();
        let cleaned = self.done().and_then(|done| done.cleaned);
        let is_due = cleaned.is_none_or(|cleaned| now.saturating_sub(cleaned) >= every);
        is_due.then(|| self.between(name))
    }

    fn clean(&self, name: &str, thrift: Thrift) -> Receipt {
        let mut request = Request::new(format!("after {name}"), Ladder::between());
        request.thrift = thrift;
        let level = self.done().and_then(|done| done.level).or_else(|| self.first_level());
        if let Some(Level { reading, has_grown }) = level {
            request.claiming = Claiming::Level { level: reading, may_be_libraries: !has_grown };
        }
        let receipt = self.releaser.release(request);
        self.cleaned(&receipt);
        receipt
    }

    /// Returns the level before the first clean-up, if what is cached is less than the device's number shows: a first
    /// clean task is then judged as the later ones are.
    fn first_level(&self) -> Option<Level> {
        let inventory = self.releaser.inventory();
        let is_clean = inventory.trimmable() <= inventory.noise();
        is_clean.then(|| Level { reading: inventory.read(), has_grown: false })
    }

    /// Records a clean-up: the level of the next one, and the trend.
    fn cleaned(&self, receipt: &Receipt) {
        let inventory = self.releaser.inventory();
        // Before the lock: the gauge may be the caller's.
        let (noise, now) = (inventory.noise(), self.releaser.now());
        let Some(mut done) = self.done() else { return };
        done.between.push(CleanUp { in_use: receipt.before.in_use(), took_s: receipt.took_s });
        done.peak = done.peak.max(receipt.before.in_use().unwrap_or_default());
        done.cleaned = Some(now);
        let Some(in_use) = receipt.after.in_use() else { return };
        match &mut done.level {
            Some(level) => level.follow(inventory, &receipt.after, noise),
            None => done.level = Some(Level { reading: receipt.after, has_grown: false }),
        }
        let warning = done.slope.add(in_use);
        drop(done);
        if let Some(warning) = warning {
            let (per_task, tasks) = (warning.per_update, warning.updates);
            tracing::warn!(%per_task, tasks, "memory in use grows by {per_task} with every task, over {tasks} tasks");
        }
    }

    /// Returns the trend of memory in use over the tasks so far.
    pub fn trend(&self) -> Trend {
        self.done().map_or_else(Trend::default, |done| done.slope.trend())
    }

    /// Runs a task and cleans up behind it, even if it panics.
    pub fn task<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        struct Behind<'a>(&'a Stages, &'a str);
        impl Drop for Behind<'_> {
            fn drop(&mut self) {
                self.0.between(self.1);
            }
        }
        let _behind = Behind(self, name);
        work()
    }

    /// Returns what has been seen so far.
    pub fn report(&self) -> StagesReport {
        // Before the lock: the clock may be the caller's.
        let total = self.releaser.now().saturating_sub(self.began);
        let Some(done) = self.done() else { return StagesReport::default() };
        let own = done.stages.iter().map(|stage| stage.own_peak_bytes);
        let torn_down: f64 = done.stages.iter().map(|stage| stage.teardown_s).sum();
        let between: f64 = done.between.iter().map(|clean| clean.took_s).sum();
        let cleaning_s = torn_down + between;
        StagesReport {
            peak_bytes: done.peak,
            largest_bytes: own.clone().max().unwrap_or_default(),
            sum_bytes: own.sum(),
            budget_bytes: self.budget,
            cleaning_s,
            cleaning_share: cleaning_s / total.as_secs_f64().max(f64::MIN_POSITIVE),
            stages: done.stages.clone(),
        }
    }

    /// Locks what was seen; `None` in a forked child.
    fn done(&self) -> Option<MutexGuard<'_, Done>> {
        self.done.lock()
    }
}

impl Level {
    /// Adds the growth of libraries, which no release can take back, to the level.
    fn follow(&mut self, inventory: &Inventory, after: &Reading, noise: Bytes) {
        let grown = outside_growth(inventory, &self.reading, after);
        let has_grown = grown > noise;
        if has_grown && !self.has_grown {
            self.reading.own = self.reading.own.map(|own| own + grown);
        }
        self.has_grown = has_grown;
    }
}

debug_as!(
    Stages,
    |it| "Stages({:?}, {} done)",
    it.releaser,
    it.done().map_or(0, |done| done.stages.len())
);
