//! A stage: one model, from its loading to the receipt of its teardown.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lowtide_types::{Bytes, DeviceId, Receipt, RungName, RungOutcome, RungReceipt, Target};

use super::stages::{Opened, StageError, Stages};
use crate::climb::{Request, untouched};
use crate::failure::message;
use crate::readings::Gauge;
use crate::rungs::Ladder;

impl Stages {
    /// Loads a model. The stage lasts as long as the guard; dropping the guard tears the model down.
    ///
    /// # Errors
    /// [`StageError::Load`] with the error of the loader.
    pub fn load<M, E>(
        &self,
        name: &str,
        load: impl FnOnce() -> Result<M, E>,
    ) -> Result<Stage<'_, M>, StageError<E>> {
        Stage::load(self, self.open(name), load).map_err(StageError::Load)
    }

    /// Loads a model whose size is known. It is refused before it is loaded if less than `needed` is free, or if
    /// `needed` and what is in use exceed the [budget](Stages::budget). Caches are emptied first where that may
    /// help.
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
}

/// A loaded model. Dropping it tears the model down.
pub struct Stage<'a, M> {
    stages: &'a Stages,
    opened: Opened,
    module: Option<M>,
    is_over: bool,
}

impl<'a, M> Stage<'a, M> {
    /// Loads the model of a stage. What a loader leaves that fails is cleaned up.
    pub(crate) fn load<E>(
        stages: &'a Stages,
        opened: Opened,
        load: impl FnOnce() -> Result<M, E>,
    ) -> Result<Stage<'a, M>, E> {
        let mut stage = Stage { stages, opened, module: None, is_over: false };
        stage.module = Some(load()?);
        stage.look();
        let before = stage.opened.before().unwrap_or_default();
        stage.opened.loaded = stage.opened.peak.saturating_sub(before);
        Ok(stage)
    }

    /// Reads what is in use now, for the peak. Call it when the model has just grown.
    pub fn look(&mut self) {
        self.stages.look(&mut self.opened);
    }

    /// Tears the model down. Returns the receipt.
    pub fn finish(mut self) -> Receipt {
        self.tear_down()
    }

    fn tear_down(&mut self) -> Receipt {
        self.is_over = true;
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
            outcome: match dropped {
                Ok(()) => RungOutcome::Done,
                Err(panic) => RungOutcome::Panicked { message: message(&*panic) },
            },
            touched: vec![self.opened.name.clone().into()],
            after,
            freed_bytes: after.freed_since(&before),
            took_s,
            ..untouched(RungName::Drop, 1, before)
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
        if !self.is_over {
            self.tear_down();
        }
    }
}

impl<M> fmt::Debug for Stage<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({})", self.opened.name)
    }
}
