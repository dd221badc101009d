//! The releaser that Python holds: one for each device.

use std::sync::Arc;

use lowtide::{Bytes, IdleOptions, floor};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::ask::{Wishes, ask, seconds, size};
use super::call::{PythonClock, waiting};
use super::device::{PythonDevice, PythonSetting, hook};
use super::gate::Gate;
use super::receipt::{Reading, Receipt, plain};

/// Gives memory back on one device, and proves it.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Releaser {
    pub(crate) inner: lowtide::Releaser,
    pub(crate) device: Option<Arc<PythonDevice>>,
}

impl Releaser {
    /// The receipt, with what could not be asked meanwhile.
    pub(crate) fn told(&self, receipt: Arc<lowtide::Receipt>) -> Receipt {
        let unheard = self.device.as_ref().map(|device| device.take_unheard()).unwrap_or_default();
        Receipt::with(receipt, unheard)
    }
}

#[pymethods]
impl Releaser {
    /// On a device as Python tells of it; without one every receipt says `no-device`.
    #[new]
    #[pyo3(signature = (device))]
    fn new(device: Option<&Bound<'_, PyAny>>) -> PyResult<Releaser> {
        let clock = Arc::new(PythonClock::default());
        let Some(object) = device else {
            return Ok(Releaser { inner: lowtide::Releaser::without_device(clock), device: None });
        };
        let device = Arc::new(PythonDevice::new(object)?);
        let inner = lowtide::Releaser::with_gauge(Some(Arc::clone(&device) as _), clock);
        inner.add_allocator(Arc::clone(&device) as _).keep();
        for object in object.call_method0("hooks")?.try_iter()? {
            let (place, hook) = hook(&object?)?;
            inner.add_hook(place, hook).keep();
        }
        for object in object.call_method0("settings")?.try_iter()? {
            inner.add_setting(Arc::new(PythonSetting::new(&object?)?)).keep();
        }
        // As `lowtide doctor` measured it, where the device says which it is.
        let uuid = object.call_method0("uuid").ok().and_then(|uuid| uuid.extract::<String>().ok());
        if let Some(bytes) = uuid.and_then(|uuid| floor_of(&uuid)) {
            inner.set_floor(bytes);
        }
        Ok(Releaser { inner, device: Some(device) })
    }

    /// The device as Python tells of it.
    #[getter]
    fn device(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.device.as_ref().map(|device| device.object(py).clone().unbind())
    }

    /// Climbs a ladder, given by the names of its rungs, and says what that did.
    #[pyo3(signature = (
        name, ladder, *, to=None, steps=None, witness=None, pins=true, wait_s=60.0, planned_s=0.0, attempts=1,
        every_rung=false, beside_work=false, parts=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    #[expect(clippy::needless_pass_by_value, reason = "a list of Python is copied")]
    fn release(
        &self,
        py: Python<'_>,
        name: &str,
        ladder: Vec<String>,
        to: Option<Bound<'_, PyAny>>,
        steps: Option<Bound<'_, PyList>>,
        witness: Option<Py<PyAny>>,
        pins: bool,
        wait_s: f64,
        planned_s: f64,
        attempts: u32,
        every_rung: bool,
        beside_work: bool,
        parts: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Receipt> {
        let wishes = Wishes {
            to,
            steps,
            witness,
            pins,
            wait_s,
            planned_s,
            attempts,
            every_rung,
            beside_work,
            parts,
        };
        let ask = ask(name, &ladder, wishes, self.device.as_ref())?;
        let releaser = self.inner.clone();
        Ok(self.told(waiting(py, move || releaser.release(ask))?))
    }

    /// What the device and the allocator say right now.
    fn read(&self, py: Python<'_>) -> Reading {
        Reading(py.detach(|| self.inner.inventory().read()))
    }

    /// Where every byte in use is; `None` where there is no device or it cannot be asked.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        py.detach(|| self.inner.ledger()).map(|ledger| plain(py, &ledger)).transpose()
    }

    /// The gate that work passes and releases close.
    fn gate(&self) -> Gate {
        Gate::of(&self.inner)
    }

    /// Says what a bare context costs here.
    fn set_floor(&self, bytes: u64) {
        self.inner.set_floor(Bytes(bytes));
    }

    /// Says that the process may lose everything on the device.
    fn set_disposable(&self, disposable: bool) {
        self.inner.set_disposable(disposable);
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = self.device.as_ref().map(|device| device.object(py).getattr("name"));
        Ok(match name.transpose()? {
            Some(name) => format!("<Releaser of {name}>"),
            None => "<Releaser without a device>".to_owned(),
        })
    }
}

fn floor_of(uuid: &str) -> Option<Bytes> {
    let own = floor::recall().into_iter().filter(|floor| floor.uuid == uuid);
    own.max_by_key(|floor| floor.measured_at_s).map(|floor| floor.bytes)
}

/// A number of bytes, or a size with its unit such as "512 MiB", in bytes.
#[pyfunction]
pub(crate) fn parse_bytes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(size(value)?.0)
}

/// A number of seconds, or a time with its unit such as "250ms", "30s", "5m" or "1h", in seconds.
#[pyfunction]
pub(crate) fn parse_seconds(value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if let Ok(number) = value.extract::<f64>() {
        return Ok(seconds(number)?.as_secs_f64());
    }
    let text: String = value.extract()?;
    let text = text.replace(' ', "");
    let has_unit =
        text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(char::is_alphabetic);
    let options = has_unit.then(|| text.parse::<IdleOptions>().ok()).flatten();
    let options = options.ok_or_else(|| {
        PyValueError::new_err(format!(
            "{text:?} is no time; write seconds, or a time such as \"250ms\", \"30s\", \"5m\" or \"1h\""
        ))
    })?;
    Ok(options.after.as_secs_f64())
}
