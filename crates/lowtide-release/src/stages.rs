//! Stages: models that use the device one after another.
//!
//! Each model is torn down by one contract, which in Rust is `Drop`: the model is dropped, the host
//! language collects garbage, and cached memory goes back to the driver. So the peak is the largest
//! model, never the sum, and there is a receipt between each two.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lowtide_types::{
    Bytes, DeviceId, Reading, Receipt, RungName, RungOutcome, RungReceipt, Settling, Target,
};

use crate::claiming::outside_growth;
use crate::clock::Clock;
use crate::failure::message;
use crate::gauge::Gauge;
use crate::home::Home;
use crate::inventory::Inventory;
use crate::ladder::Ladder;
use crate::releaser::Releaser;
use crate::request::{Claiming, Request};
use crate::slope::{Slope, Trend};
use crate::stages_report::{StageReport, StagesReport};

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

/// A sequence of stages on one device. Clones share what they have seen.
#[derive(Clone)]
pub struct Stages {
    releaser: Releaser,
    budget: Option<Bytes>,
    began: Duration,
    done: Arc<Mutex<Done>>,
    /// The process that the sequence belongs to.
    home: Home,
}

#[derive(Default)]
struct Done {
    stages: Vec<StageReport>,
    between: Vec<Arc<Receipt>>,
    peak: Bytes,
    level: Option<Level>,
    slope: Slope,
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
        Stages { releaser, budget: None, began, done: Arc::default(), home: Home::default() }
    }

    /// Sets the most that may be in use. A stage that would exceed it is refused.
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

    /// Loads a model. The stage lasts as long as the guard; dropping the guard tears the model down.
    ///
    /// # Errors
    /// [`StageError::Load`] with the error of the loader.
    pub fn load<M, E>(
        &self,
        name: &str,
        load: impl FnOnce() -> Result<M, E>,
    ) -> Result<Stage<'_, M>, StageError<E>> {
        let mut stage =
            Stage { stages: self, opened: self.open(name), module: None, receipt: None };
        stage.module = Some(load().map_err(StageError::Load)?);
        stage.look();
        stage.opened.loaded =
            stage.opened.peak.saturating_sub(stage.opened.before().unwrap_or_default());
        Ok(stage)
    }

    /// Loads a model whose size is known. If it does not fit it is refused before it is loaded.
    ///
    /// # Errors
    /// [`StageError::WouldNotFit`], or as [`Stages::load`].
    pub fn load_needing<M, E>(
        &self,
        name: &str,
        needed: Bytes,
        load: impl FnOnce() -> Result<M, E>,
    ) -> Result<Stage<'_, M>, StageError<E>> {
        self.make_room(name, needed)?;
        self.load(name, load)
    }

    /// Begins a stage whose model is kept elsewhere, for example by a host language. It lasts until it
    /// is [closed](Stages::close).
    pub fn open(&self, name: &str) -> Opened {
        let before = self.releaser.inventory().read();
        if let Some(mut done) = self.done() {
            done.level = None;
        }
        let peak = before.in_use().unwrap_or_default();
        Opened { name: name.to_owned(), before, peak, loaded: Bytes::ZERO }
    }

    /// Reads what is in use now, for the peak of a stage.
    pub fn look(&self, opened: &mut Opened) {
        let in_use = self.releaser.inventory().read().in_use();
        opened.peak = opened.peak.max(in_use.unwrap_or_default());
        let Some(mut done) = self.done() else { return };
        done.peak = done.peak.max(opened.peak);
    }

    /// Ends a stage by a release, whose ladder tears its model down.
    pub fn close(&self, mut opened: Opened, request: Request) -> Arc<Receipt> {
        self.look(&mut opened);
        // Planning is part of a teardown.
        let began = self.releaser.now().saturating_sub(request.planned);
        let receipt = self.releaser.release(request);
        self.closed(&opened, began, &receipt);
        receipt
    }

    fn closed(&self, opened: &Opened, began: Duration, receipt: &Arc<Receipt>) {
        let before = opened.before.in_use().unwrap_or_default();
        let report = StageReport {
            name: opened.name.clone(),
            own_peak_bytes: opened.peak.saturating_sub(before),
            peak_bytes: opened.peak,
            teardown_s: self.releaser.now().saturating_sub(began).as_secs_f64(),
            receipt: Arc::clone(receipt),
        };
        let Some(mut done) = self.done() else { return };
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
            self.between(name);
        }
        match self.available() {
            Some(available) if available < needed => {
                let in_use = self.releaser.inventory().read().in_use().unwrap_or_default();
                let (name, budget) = (name.to_owned(), self.budget);
                Err(StageError::WouldNotFit { name, needed, available, in_use, budget })
            }
            _ => Ok(()),
        }
    }

    /// Returns the memory that a stage may take; `None` if the device cannot be asked, and then no
    /// stage is refused.
    fn available(&self) -> Option<Bytes> {
        let reading = self.releaser.inventory().read();
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
    pub fn between(&self, name: &str) -> Arc<Receipt> {
        let mut request = Request::new(format!("after {name}"), Ladder::between());
        let level = self.done().and_then(|done| done.level);
        if let Some(Level { reading, has_grown }) = level {
            request.claiming = Claiming::Level { level: reading, may_be_libraries: !has_grown };
        }
        let receipt = self.releaser.release(request);
        self.cleaned(&receipt);
        receipt
    }

    /// Records a clean-up: the level of the next one, and the trend.
    fn cleaned(&self, receipt: &Arc<Receipt>) {
        let inventory = self.releaser.inventory();
        let Some(mut done) = self.done() else { return };
        done.between.push(Arc::clone(receipt));
        let Some(in_use) = receipt.after.in_use() else { return };
        match &mut done.level {
            Some(level) => level.follow(inventory, &receipt.after),
            None => done.level = Some(Level { reading: receipt.after, has_grown: false }),
        }
        if let Some(warning) = done.slope.add(in_use) {
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
        let Some(done) = self.done() else { return StagesReport::default() };
        let own = done.stages.iter().map(|stage| stage.own_peak_bytes);
        let torn_down: f64 = done.stages.iter().map(|stage| stage.teardown_s).sum();
        let between: f64 = done.between.iter().map(|receipt| receipt.took_s).sum();
        let cleaning_s = torn_down + between;
        let total = self.releaser.now().saturating_sub(self.began);
        StagesReport {
            peak_bytes: done.peak,
            largest_bytes: own.clone().max().unwrap_or_default(),
            sum_bytes: own.sum(),
            cleaning_s,
            cleaning_share: cleaning_s / total.as_secs_f64().max(f64::MIN_POSITIVE),
            stages: done.stages.clone(),
        }
    }

    /// Locks what was seen; `None` in a forked child.
    fn done(&self) -> Option<MutexGuard<'_, Done>> {
        let lock = || self.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.home.is_here().then(lock)
    }
}

impl Level {
    /// Adds the growth of libraries, which no release can take back, to the level.
    fn follow(&mut self, inventory: &Inventory, after: &Reading) {
        let grown = outside_growth(inventory, &self.reading, after);
        let has_grown = grown > inventory.noise();
        if has_grown && !self.has_grown {
            self.reading.own = self.reading.own.map(|own| own + grown);
        }
        self.has_grown = has_grown;
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Stages({:?}, {} done)",
            self.releaser,
            self.done().map_or(0, |done| done.stages.len())
        )
    }
}

/// A stage that has begun: the numbers before it, and its peak so far.
#[derive(Debug, Clone)]
#[must_use = "a stage that is not closed is in no report"]
pub struct Opened {
    name: String,
    before: Reading,
    peak: Bytes,
    /// By how much the device's number rose while the model was loaded.
    loaded: Bytes,
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

/// A loaded model. Dropping it tears the model down.
pub struct Stage<'a, M> {
    stages: &'a Stages,
    opened: Opened,
    module: Option<M>,
    receipt: Option<Arc<Receipt>>,
}

impl<M> Stage<'_, M> {
    /// Reads what is in use now, for the peak. Call it when the model has just grown.
    pub fn look(&mut self) {
        self.stages.look(&mut self.opened);
    }

    /// Tears the model down. Returns the receipt.
    pub fn finish(mut self) -> Arc<Receipt> {
        self.tear_down()
    }

    fn tear_down(&mut self) -> Arc<Receipt> {
        if let Some(receipt) = &self.receipt {
            return Arc::clone(receipt);
        }
        self.look();
        let releaser = &self.stages.releaser;
        let began = releaser.now();
        let done = self.drop_module(began);
        let name = format!("stage {}", self.opened.name);
        // A context grows by a little when it is first used, and keeps that.
        let gauge = releaser.inventory().gauge();
        let grows = matches!(gauge.map(Gauge::id), Some(DeviceId::Cuda(_)));
        let grown = if grows { Target::ABOVE_FLOOR } else { Bytes::ZERO };
        let claim = self.opened.taken(&done.before).saturating_sub(grown);
        let request =
            Request::new(name, Ladder::between()).every_rung().claiming(claim).after(done);
        let receipt = releaser.release(request);
        self.stages.closed(&self.opened, began, &receipt);
        self.receipt = Some(Arc::clone(&receipt));
        receipt
    }

    /// Drops the model: the first rung of its teardown.
    fn drop_module(&mut self, began: Duration) -> RungReceipt {
        let releaser = &self.stages.releaser;
        let before = releaser.inventory().read();
        let module = self.module.take();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(module)));
        let took_s = releaser.now().saturating_sub(began).as_secs_f64();
        let after = releaser.inventory().read();
        RungReceipt {
            rung: RungName::Drop,
            attempt: 1,
            outcome: match dropped {
                Ok(()) => RungOutcome::Done,
                Err(panic) => RungOutcome::Panicked { message: message(&*panic) },
            },
            touched: vec![self.opened.name.clone().into()],
            skipped: Vec::new(),
            expected_bytes: None,
            before,
            after,
            freed_bytes: after.freed_since(&before),
            settling: Settling::Steady,
            took_s,
        }
    }
}

impl<M> Deref for Stage<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.module.as_ref().expect("a stage has its model until it ends")
    }
}

impl<M> DerefMut for Stage<'_, M> {
    fn deref_mut(&mut self) -> &mut M {
        self.module.as_mut().expect("a stage has its model until it ends")
    }
}

impl<M> Drop for Stage<'_, M> {
    fn drop(&mut self) {
        // A loader that failed has left nothing to tear down, but cached memory goes back.
        self.tear_down();
    }
}

impl<M> fmt::Debug for Stage<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({})", self.opened.name)
    }
}
