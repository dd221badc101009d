//! The releaser for Python: one for each device.

use std::sync::Arc;

use lowtide::release::{Gauge, LedgerKind, floor};
use lowtide_walk::{call_function, call_method};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::calls::waiting::{CallClock, held, waiting};
use crate::data::ledger::Ledger;
use crate::data::receipt::{Reading, Receipt};
use crate::data::receipt::{Restored, not_restored};
use crate::provided::device::PythonDevice;
use crate::provided::hooks::{PythonSetting, hook};
use crate::provided::request::{Ladder, Options, request};
use crate::release::gate::Gate;

/// Frees memory on one device and verifies the result.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Releaser {
    pub(crate) inner: lowtide::release::Releaser,
    pub(crate) device: Option<Arc<PythonDevice>>,
    /// Says why there is no device: a function of Python's, since that may change.
    absence: Option<Py<PyAny>>,
}

impl Releaser {
    /// Makes a receipt for Python. What failed meanwhile, or why there is no device, is added to the advice.
    pub(crate) fn receipt(&self, mut receipt: lowtide::release::Receipt) -> Receipt {
        for line in &mut receipt.advice {
            *line = line.replace(" in Python, `receipt.detailed()` in Rust", "");
        }
        let advice = match (&self.device, &self.absence) {
            (Some(device), _) => device.take_failed_questions(),
            // A reason that cannot be given is no reason to lose the receipt.
            (None, Some(absence)) => {
                Python::attach(|py| call_function(absence.bind(py), ())?.extract())
                    .map_or_else(|_: PyErr| Vec::new(), |why| vec![why])
            }
            (None, None) => Vec::new(),
        };
        Receipt::with(receipt, advice)
    }
}

#[pymethods]
impl Releaser {
    /// Creates a releaser for a device that a Python object describes. Without a device, every
    /// receipt has the verdict `no-device`, and what `absence` returns in its advice.
    #[new]
    #[pyo3(signature = (device, hooks, absence=None))]
    fn new(
        device: Option<&Bound<'_, PyAny>>,
        hooks: &Bound<'_, PyAny>,
        absence: Option<Py<PyAny>>,
    ) -> PyResult<Releaser> {
        let clock = Arc::new(CallClock::default());
        let Some(object) = device else {
            return Ok(Releaser {
                inner: lowtide::release::Releaser::without_device(clock),
                device: None,
                absence,
            });
        };
        let device = Arc::new(PythonDevice::new(object)?);
        let inner = lowtide::release::Releaser::with_gauge(Some(Arc::clone(&device) as _), clock);
        inner.add_allocator(Arc::clone(&device) as _).keep();
        // Their memory is part of what this program uses, and of no allocator here.
        let workers = Arc::clone(&device);
        inner.add_account(LedgerKind::Live, "workers", move || workers.worker_bytes()).keep();
        for object in hooks.try_iter()? {
            let (point, hook) = hook(&object?)?;
            inner.add_hook(point, hook).keep();
        }
        for object in call_method(object, "settings")?.try_iter()? {
            inner.add_setting(Arc::new(PythonSetting::new(&object?)?)).keep();
        }
        // The floor that `lowtide doctor` measured, if the device has a UUID.
        let uuid = call_method(object, "uuid").ok().and_then(|uuid| uuid.extract::<String>().ok());
        let total = || device.usage().ok().map(|usage| usage.total);
        let floor = uuid.zip(total()).and_then(|(uuid, total)| floor::of_uuid(&uuid, total));
        if let Some(bytes) = floor {
            inner.set_floor(bytes);
        }
        Ok(Releaser { inner, device: Some(device), absence: None })
    }

    /// Climbs a ladder and returns the receipt.
    #[pyo3(signature = (
        name, ladder, *, to=None, claim_bytes=None, steps=None, witness=None, pins=true, wait_s=60.0, planned_s=0.0,
        beside_work=false, libraries=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn release(
        &self,
        py: Python<'_>,
        name: &str,
        ladder: Ladder,
        to: Option<Bound<'_, PyAny>>,
        claim_bytes: Option<u64>,
        steps: Option<Bound<'_, PyList>>,
        witness: Option<Py<PyAny>>,
        pins: bool,
        wait_s: f64,
        planned_s: f64,
        beside_work: bool,
        libraries: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Receipt> {
        let every_rung = false;
        let options = Options {
            to,
            claim_bytes,
            steps,
            witness,
            pins,
            wait_s,
            planned_s,
            every_rung,
            beside_work,
            libraries,
        };
        let request = request(py, name, ladder, options, self.device.as_ref())?;
        let releaser = self.inner.clone();
        Ok(self.receipt(waiting(py, move |clock| releaser.with_clock(clock).release(request))?))
    }

    /// Brings back what releases took off the device: models, sessions. Returns `None` if there was
    /// nothing to bring back.
    fn restore(&self, py: Python<'_>) -> PyResult<Option<Restored>> {
        let releaser = self.inner.clone();
        let restored = held(py, move || releaser.restore())?;
        Ok(restored.map_err(|error| not_restored(&error))?.map(Restored))
    }

    /// Returns the numbers of the device and of the allocator now.
    fn read(&self, py: Python<'_>) -> Reading {
        Reading(py.detach(|| self.inner.inventory().read()))
    }

    /// Returns a breakdown of all memory in use, or `None` if there is no device or it cannot be
    /// asked.
    fn ledger(&self, py: Python<'_>) -> Option<Ledger> {
        py.detach(|| self.inner.ledger()).map(Ledger)
    }

    /// Returns the gate that work passes and that releases close.
    fn gate(&self) -> Gate {
        Gate::of(&self.inner)
    }

    /// Sets whether the process may lose everything on the device.
    fn set_disposable(&self, disposable: bool) {
        self.inner.set_disposable(disposable);
    }

    fn __repr__(&self) -> String {
        match &self.device {
            Some(device) => format!("<Releaser of {}>", lowtide::release::Gauge::id(&**device)),
            None => "<Releaser without a device>".to_owned(),
        }
    }
}
