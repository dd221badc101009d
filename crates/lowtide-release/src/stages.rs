//! Stages: modules that hand the device on, one after another.
//!
//! Each module is torn down by one contract, which in Rust is `Drop`: the module goes, then the host
//! language collects, then what was cached goes back to the driver, then the stage around it does the
//! same. So the peak is the largest module, never the sum, and a receipt stands between each two.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lowtide_device::{Bytes, DeviceId};
use lowtide_types::{Reading, Receipt, RungName, RungOutcome, RungReceipt, Settling, Target};
use schemars::JsonSchema;
use serde::Serialize;

use crate::ask::Ask;
use crate::ladder::Ladder;
use crate::releaser::Releaser;
use crate::rung::message;

/// Why a stage did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError<E> {
    /// It would not fit, so nothing was loaded.
    #[error(
        "stage {name:?} needs {needed}, and there is {room} for it ({in_use} in use{limit}); give \
         some back first, or load less"
    )]
    WouldNotFit {
        /// The stage.
        name: String,
        /// What it said it needs.
        needed: Bytes,
        /// What there is for it.
        room: Bytes,
        /// What is in use before it.
        in_use: Bytes,
        /// The budget, in words, where there is one.
        limit: String,
    },
    /// The module could not be loaded.
    #[error("{0}")]
    Load(E),
}

/// A sequence of stages on one device.
pub struct Stages {
    releaser: Releaser,
    budget: Option<Bytes>,
    began: Duration,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    stages: Vec<StageReport>,
    between: Vec<Arc<Receipt>>,
    peak: Bytes,
}

/// What one stage took and gave back.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// The most that was seen in use above what was in use before it.
    pub own_peak_bytes: Bytes,
    /// The most that was seen in use meanwhile, in all.
    pub peak_bytes: Bytes,
    /// What its end took.
    pub teardown_s: f64,
    /// What its end gave back.
    pub receipt: Arc<Receipt>,
}

/// What all stages took.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StagesReport {
    /// One after another.
    pub stages: Vec<StageReport>,
    /// The most that was ever seen in use.
    pub peak_bytes: Bytes,
    /// The largest stage alone.
    pub largest_bytes: Bytes,
    /// What all of them would have taken at once.
    pub sum_bytes: Bytes,
    /// Time spent giving memory back.
    pub cleaning_s: f64,
    /// Its share of the time since the first stage, from 0 to 1.
    pub cleaning_share: f64,
}

impl Stages {
    /// Stages on the releaser's device.
    pub fn new(releaser: &Releaser) -> Stages {
        let (releaser, began) = (releaser.clone(), releaser.scene().clock().now());
        Stages { releaser, budget: None, began, done: Mutex::default() }
    }

    /// No stage may bring what is in use above this.
    #[must_use]
    pub fn budget(mut self, most: Bytes) -> Stages {
        self.budget = Some(most);
        self
    }

    /// Loads a module. While the guard lives the stage lasts; when it goes the module is torn down.
    ///
    /// # Errors
    /// [`StageError::Load`] with what the loader said.
    pub fn load<M, E>(
        &self,
        name: &str,
        load: impl FnOnce() -> Result<M, E>,
    ) -> Result<Stage<'_, M>, StageError<E>> {
        let mut stage =
            Stage { stages: self, opened: self.open(name), module: None, receipt: None };
        stage.module = Some(load().map_err(StageError::Load)?);
        stage.look();
        Ok(stage)
    }

    /// Begins a stage whose modules somebody else keeps, such as a host language. It lasts until it is
    /// [closed](Stages::close).
    pub fn open(&self, name: &str) -> Opened {
        let before = self.releaser.scene().read();
        Opened { name: name.to_owned(), before, peak: before.in_use().unwrap_or_default() }
    }

    /// Looks at what is in use now, for the peak of a stage.
    pub fn look(&self, opened: &mut Opened) {
        let in_use = self.releaser.scene().read().in_use();
        opened.peak = opened.peak.max(in_use.unwrap_or_default());
        let mut done = self.done();
        done.peak = done.peak.max(opened.peak);
    }

    /// Ends a stage by a release, whose ladder tears its modules down.
    pub fn close(&self, mut opened: Opened, ask: Ask) -> Arc<Receipt> {
        self.look(&mut opened);
        // What planning took is part of a teardown.
        let began = self.releaser.scene().clock().now().saturating_sub(ask.planned);
        let receipt = self.releaser.release(ask);
        self.closed(&opened, began, &receipt);
        receipt
    }

    fn closed(&self, opened: &Opened, began: Duration, receipt: &Arc<Receipt>) {
        let before = opened.before.in_use().unwrap_or_default();
        let report = StageReport {
            name: opened.name.clone(),
            own_peak_bytes: opened.peak.saturating_sub(before),
            peak_bytes: opened.peak,
            teardown_s: self.releaser.scene().clock().since(began).as_secs_f64(),
            receipt: Arc::clone(receipt),
        };
        self.done().stages.push(report);
    }

    /// The same for a module whose size is known: what would not fit is refused before the load.
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

    /// Sees that there is room for a stage; what is cached goes back first where there is none.
    ///
    /// # Errors
    /// [`StageError::WouldNotFit`].
    pub fn make_room<E>(&self, name: &str, needed: Bytes) -> Result<(), StageError<E>> {
        if self.room() < Some(needed) {
            self.between(name);
        }
        match self.room() {
            Some(room) if room < needed => {
                let in_use = self.releaser.scene().read().in_use().unwrap_or_default();
                let limit = self.budget.map(|most| format!(", budget {most}")).unwrap_or_default();
                let name = name.to_owned();
                Err(StageError::WouldNotFit { name, needed, room, in_use, limit })
            }
            _ => Ok(()),
        }
    }

    // `None` where the device cannot be asked: then it is not ours to refuse.
    fn room(&self) -> Option<Bytes> {
        let reading = self.releaser.scene().read();
        let within =
            self.budget.map(|most| most.saturating_sub(reading.in_use().unwrap_or_default()));
        match (reading.free, within) {
            (Some(free), Some(within)) => Some(free.min(within)),
            (one, other) => one.or(other),
        }
    }

    /// Between two tasks: collect, then trim.
    pub fn between(&self, name: &str) -> Arc<Receipt> {
        let receipt = self.releaser.release(Ask::new(format!("after {name}"), Ladder::cache()));
        self.done().between.push(Arc::clone(&receipt));
        receipt
    }

    /// Runs a task and cleans up behind it, however it ends.
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

    /// What has been seen so far.
    pub fn report(&self) -> StagesReport {
        let done = self.done();
        let own = done.stages.iter().map(|stage| stage.own_peak_bytes);
        let torn_down: f64 = done.stages.iter().map(|stage| stage.teardown_s).sum();
        let between: f64 = done.between.iter().map(|receipt| receipt.took_s).sum();
        let cleaning_s = torn_down + between;
        let total = self.releaser.scene().clock().since(self.began);
        StagesReport {
            peak_bytes: done.peak,
            largest_bytes: own.clone().max().unwrap_or_default(),
            sum_bytes: own.sum(),
            cleaning_s,
            cleaning_share: cleaning_s / total.as_secs_f64().max(f64::MIN_POSITIVE),
            stages: done.stages.clone(),
        }
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stages({:?}, {} done)", self.releaser, self.done().stages.len())
    }
}

/// A stage that has begun: how the device was then, and the most that was seen in use since.
#[derive(Debug, Clone)]
#[must_use = "a stage that is not closed is in no report"]
pub struct Opened {
    name: String,
    before: Reading,
    peak: Bytes,
}

impl Opened {
    /// What was in use before it, where the device could be asked.
    pub fn before(&self) -> Option<Bytes> {
        self.before.in_use()
    }
}

/// A module that is loaded. Its end tears it down.
pub struct Stage<'a, M> {
    stages: &'a Stages,
    opened: Opened,
    module: Option<M>,
    receipt: Option<Arc<Receipt>>,
}

impl<M> Stage<'_, M> {
    /// Looks at what is in use now, for the peak: worth it where the module has just grown.
    pub fn look(&mut self) {
        self.stages.look(&mut self.opened);
    }

    /// Tears the module down and says what that gave back.
    pub fn finish(mut self) -> Arc<Receipt> {
        self.tear_down()
    }

    fn tear_down(&mut self) -> Arc<Receipt> {
        if let Some(receipt) = &self.receipt {
            return Arc::clone(receipt);
        }
        self.look();
        let scene = self.stages.releaser.scene();
        let (clock, began) = (scene.clock(), scene.clock().now());
        let before = scene.read();
        let module = self.module.take();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(module)));
        let took_s = clock.since(began).as_secs_f64();
        let after = scene.read();
        let drop = RungReceipt {
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
        };
        let name = format!("stage {}", self.opened.name);
        let mut ask = Ask::new(name, Ladder::cache()).every_rung();
        if let Some(before) = self.opened.before() {
            // A context grows by a little when it is first used, and keeps that.
            let grows = matches!(scene.gauge().map(crate::Gauge::id), Some(DeviceId::Cuda(_)));
            let grown = if grows { Target::ABOVE_FLOOR } else { Bytes::ZERO };
            ask = ask.to(Target::Under(before + grown));
        }
        let receipt = self.stages.releaser.release(ask.after(drop));
        self.stages.closed(&self.opened, began, &receipt);
        self.receipt = Some(Arc::clone(&receipt));
        receipt
    }
}

impl<M> Deref for Stage<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.module.as_ref().expect("a stage has its module until it ends")
    }
}

impl<M> DerefMut for Stage<'_, M> {
    fn deref_mut(&mut self) -> &mut M {
        self.module.as_mut().expect("a stage has its module until it ends")
    }
}

impl<M> Drop for Stage<'_, M> {
    fn drop(&mut self) {
        // A loader that failed has left nothing to tear down, but what it cached goes back.
        self.tear_down();
    }
}

impl<M> fmt::Debug for Stage<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({})", self.opened.name)
    }
}
