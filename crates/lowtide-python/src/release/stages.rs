//! Stages for Python: what each of them used and freed, and what all of them come to.

use std::sync::{Arc, Mutex};

use lowtide::release::StageError;
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::calls::parse::{seconds, size};
use crate::calls::waiting::{lock, waiting};
use crate::data::classes::wrapper;
use crate::data::json;
use crate::data::receipt::Receipt;
use crate::provided::request::{Ladder, Options, request};
use crate::release::pauses::Trend;
use crate::release::releaser::Releaser;

create_exception!(
    lowtide,
    WouldNotFit,
    PyMemoryError,
    "Raised if a stage would not fit. Nothing was loaded."
);

/// A sequence of stages on one device.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Stages {
    releaser: Py<Releaser>,
    stages: Arc<lowtide::release::Stages>,
}

#[pymethods]
impl Stages {
    /// Creates a sequence on the releaser's device. `budget` limits what may be in use.
    #[new]
    #[pyo3(signature = (releaser, budget=None))]
    fn new(releaser: Py<Releaser>, budget: Option<Bound<'_, PyAny>>) -> PyResult<Stages> {
        let mut stages = lowtide::release::Stages::new(&releaser.get().inner);
        if let Some(budget) = budget {
            stages = stages.budget(size(&budget)?);
        }
        Ok(Stages { releaser, stages: Arc::new(stages) })
    }

    /// Begins a stage. Raises `WouldNotFit` if what it needs would not fit.
    #[pyo3(signature = (name, needs=None))]
    fn open(
        &self,
        py: Python<'_>,
        name: String,
        needs: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Opened> {
        let needs = needs.map(|needs| size(&needs)).transpose()?;
        let stages = Arc::clone(&self.stages);
        let opened = waiting(py, move |clock| {
            let stages = stages.with_clock(clock);
            if let Some(needs) = needs {
                stages.make_room::<std::convert::Infallible>(&name, needs)?;
            }
            Ok(stages.open(&name))
        })?;
        let would_not_fit = |error: StageError<_>| WouldNotFit::new_err(error.to_string());
        Ok(Opened(Mutex::new(Some(opened.map_err(would_not_fit)?))))
    }

    /// Reads what is in use now, for the peak of a stage.
    fn look(&self, py: Python<'_>, opened: &Bound<'_, Opened>) {
        let opened = opened.get();
        py.detach(|| {
            // Taken out, so that the lock is not held while the interpreter is asked.
            let taken = opened.take();
            if let Some(mut stage) = taken {
                self.stages.look(&mut stage);
                *lock(&opened.0) = Some(stage);
            }
        });
    }

    /// Ends a stage with a release.
    #[pyo3(signature = (opened, name, *, to=None, claim_bytes=None, steps=None, witness=None, wait_s=60.0, planned_s=0.0, libraries=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn close(
        &self,
        py: Python<'_>,
        opened: &Bound<'_, Opened>,
        name: &str,
        to: Option<Bound<'_, PyAny>>,
        claim_bytes: Option<u64>,
        steps: Option<Bound<'_, PyList>>,
        witness: Option<Py<PyAny>>,
        wait_s: f64,
        planned_s: f64,
        libraries: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Receipt> {
        let ladder = match libraries {
            Some(_) => Ladder::StageWithLibraries,
            None => Ladder::Stage,
        };
        let options = Options {
            to,
            claim_bytes,
            steps,
            witness,
            pins: true,
            wait_s,
            planned_s,
            every_rung: true,
            // Others do not use what a stage owns, so their work may go on.
            beside_work: libraries.is_none(),
            libraries,
        };
        let releaser = self.releaser.get();
        let request = request(py, name, ladder, options, releaser.device.as_ref())?;
        let opened = opened.get().take();
        let opened = opened.ok_or_else(|| PyRuntimeError::new_err("this stage has ended"))?;
        let stages = Arc::clone(&self.stages);
        Ok(releaser
            .receipt(waiting(py, move |clock| stages.with_clock(clock).close(opened, request))?))
    }

    /// Collects and trims between two tasks. If it did so less than `every_s` ago, it does nothing and
    /// returns `None`.
    #[pyo3(signature = (name, every_s=0.0))]
    fn between(&self, py: Python<'_>, name: String, every_s: f64) -> PyResult<Option<Receipt>> {
        let (stages, every) = (Arc::clone(&self.stages), seconds(every_s)?);
        let receipt =
            waiting(py, move |clock| stages.with_clock(clock).between_every(&name, every))?;
        Ok(receipt.map(|receipt| self.releaser.get().receipt(receipt)))
    }

    /// Returns the trend of memory in use over the tasks so far.
    fn trend(&self) -> Trend {
        Trend(self.stages.trend())
    }

    /// Returns what all stages so far used.
    fn report(&self) -> StagesReport {
        StagesReport(self.stages.report())
    }
}

/// A stage that has begun.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Opened(Mutex<Option<lowtide::release::Opened>>);

impl Opened {
    fn take(&self) -> Option<lowtide::release::Opened> {
        lock(&self.0).take()
    }
}

#[pymethods]
impl Opened {
    /// Returns what the allocators have taken since the stage began.
    fn taken_bytes(&self, releaser: &Releaser, py: Python<'_>) -> u64 {
        py.detach(|| {
            let now = releaser.inner.inventory().read();
            let opened = lock(&self.0);
            opened.as_ref().map_or(0, |opened| opened.taken(&now).0)
        })
    }
}

wrapper! {
    /// The report of one stage: the memory that it used and that its end freed.
    StageReport(lowtide::release::StageReport) {
        /// The name of the stage.
        name: &str = |it| &it.name;
        /// The highest reading during the stage, above what was in use before it.
        own_peak_bytes: u64 = |it| it.own_peak_bytes.0;
        /// The highest reading during the stage.
        peak_bytes: u64 = |it| it.peak_bytes.0;
        /// How long its end took, in seconds.
        teardown_s: f64 = |it| it.teardown_s;
        /// The receipt of its end.
        receipt: Receipt = |it| Receipt(it.receipt.clone());
    }
}

wrapper! {
    /// The report of a sequence of stages.
    StagesReport(lowtide::release::StagesReport) {
        /// The stages in order.
        stages: Vec<StageReport> = |it| it.stages.iter().cloned().map(StageReport).collect();
        /// The highest reading of all.
        peak_bytes: u64 = |it| it.peak_bytes.0;
        /// The largest stage alone.
        largest_bytes: u64 = |it| it.largest_bytes.0;
        /// What all stages would have used at once.
        sum_bytes: u64 = |it| it.sum_bytes.0;
        /// The time spent on freeing memory, in seconds.
        cleaning_s: f64 = |it| it.cleaning_s;
        /// The share of that time since the first stage, from 0 to 1.
        cleaning_share: f64 = |it| it.cleaning_share;
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<StagesReport of {} stages: peak {}>", self.0.stages.len(), self.0.peak_bytes)
    }

    /// Returns it as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::as_python(py, &self.0)
    }
}
