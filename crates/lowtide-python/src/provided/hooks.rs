//! Hooks and settings that Python objects provide (`_rungs/hook.py`).

use std::sync::Arc;
use std::time::Duration;

use lowtide::device::Bytes;
use lowtide::release::{Failure, Hook, HookCall, Restore, Setting, Touch};
use lowtide_walk::{call_function, call_method};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::calls::attached::attached;
use crate::calls::climb::within;
use crate::data::classes::mirror;
use crate::data::values;

mirror! {
    /// The rung that runs a hook.
    HookPoint {
        /// Moves models to host memory.
        ToHost,
        /// Closes sessions of inference runtimes.
        Sessions,
        /// Clears caches.
        Caches,
        /// Runs a garbage collector.
        Collect,
        /// Frees what libraries hold.
        Libraries,
        /// Ends disposable processes, or resets the context of this one if it is disposable.
        ContextReset,
        /// Runs when nothing else has helped.
        Fallback,
        /// Processes end, with all that they started.
        Exit,
        /// Whole processes are taken off the device and live on.
        Suspend,
    }
}

/// A hook, as Python describes it.
#[derive(FromPyObject)]
struct PythonHook {
    point: HookPoint,
    name: String,
    limit_s: f64,
    costly: bool,
    restores: bool,
    disposable: bool,
}

/// Makes a hook of a Python object. Returns it with the rung that runs it.
pub(crate) fn hook(object: &Bound<'_, PyAny>) -> PyResult<(lowtide::release::HookPoint, Hook)> {
    let PythonHook { point, name, limit_s, costly, restores, disposable } = object.extract()?;
    let limit = Duration::try_from_secs_f64(limit_s)
        .map_err(|error| PyValueError::new_err(format!("limit_s of {name}: {error}")))?;
    let object = Arc::new(object.clone().unbind());
    let (missing, expect, restore, finds) =
        (Arc::clone(&object), Arc::clone(&object), Arc::clone(&object), Arc::clone(&object));
    let mut hook = Hook::new(name, move |call| run(&object, call))
        .limit(limit)
        // A hook that raises here is run all the same: its error then appears in the receipt.
        .unless(move || {
            attached(|py| call_method(missing.bind(py), "missing")?.extract()).unwrap_or_default()
        })
        .expecting(move || {
            attached(|py| size(&call_method(expect.bind(py), "expect")?)).unwrap_or_default()
        })
        .finding_nothing_if(move || {
            attached(|py| call_method(finds.bind(py), "finds_nothing")?.extract())
                .unwrap_or_default()
        });
    if costly {
        hook = hook.costly();
    }
    if disposable {
        hook = hook.of_disposable();
    }
    if restores {
        hook = hook.restored_by(move || {
            Ok(attached(|py| touches(&call_method(restore.bind(py), "restore")?))?)
        });
    }
    Ok((point.into(), hook))
}

fn run(object: &Py<PyAny>, call: &HookCall) -> Result<Vec<Touch>, Failure> {
    let touched = attached(|py| {
        let run =
            || call_function(&object.bind(py).getattr("run_round")?, (call.round, call.is_full));
        touches(&within(py, &call.climb, run)?)
    });
    Ok(touched?)
}

fn touches(touched: &Bound<'_, PyAny>) -> PyResult<Vec<Touch>> {
    let touched: Vec<Py<values::Touch>> = touched.extract()?;
    Ok(touched.iter().map(|touch| touch.get().0.clone()).collect())
}

/// Reads a size that may be unknown. A negative one counts as nothing.
pub(crate) fn size(answer: &Bound<'_, PyAny>) -> PyResult<Option<Bytes>> {
    Ok(answer.extract::<Option<i64>>()?.map(|size| Bytes(size.max(0).unsigned_abs())))
}

/// A setting that a Python object lowers and restores.
pub(crate) struct PythonSetting {
    object: Py<PyAny>,
    name: String,
}

impl PythonSetting {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<PythonSetting> {
        let name = object.getattr("name")?.extract()?;
        Ok(PythonSetting { object: object.clone().unbind(), name })
    }
}

impl Setting for PythonSetting {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn lower(&self) -> Result<Restore, Failure> {
        let restore = attached(|py| Ok(call_method(self.object.bind(py), "lower")?.unbind()))?;
        Ok(Box::new(move || Ok(attached(|py| call_function(restore.bind(py), ()).map(|_| ()))?)))
    }

    fn reset_statistics(&self) -> Result<(), Failure> {
        let reset = |py: Python<'_>| -> PyResult<()> {
            call_method(self.object.bind(py), "reset_statistics").map(|_| ())
        };
        Ok(attached(reset)?)
    }
}
