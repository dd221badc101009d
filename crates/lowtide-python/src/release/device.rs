//! A device as Python tells of it: what is in use, the framework's allocator, the rungs it brings.
//!
//! Every method of the Python object may raise. What it raised becomes words: a failure of the rung
//! where there is one, else a line of the receipt's advice. Nothing keeps the exception, whose traceback
//! would keep what is to be freed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lowtide::{
    Allocator, AllocatorCounts, Bytes, DeviceError, DeviceId, Failure, Gauge, Hook, HookPoint,
    LedgerKind, LedgerLine, Restore, Setting, Source, Touch, Usage,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::answers::{bytes, touches, unsigned};

/// What Python tells of a device.
pub(crate) struct PythonDevice {
    object: Py<PyAny>,
    id: DeviceId,
    noise: Bytes,
    /// What could not be asked since somebody last looked.
    unheard: Mutex<Vec<String>>,
}

impl PythonDevice {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<PythonDevice> {
        let name: String = object.getattr("name")?.extract()?;
        let noise = object.getattr("noise_bytes").ok().and_then(|noise| noise.extract().ok());
        Ok(PythonDevice {
            id: name.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?,
            noise: noise.map_or(Bytes::ZERO, Bytes),
            object: object.clone().unbind(),
            unheard: Mutex::default(),
        })
    }

    pub(crate) fn object<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.object.bind(py)
    }

    /// What could not be asked since this was last called, in words.
    pub(crate) fn take_unheard(&self) -> Vec<String> {
        std::mem::take(&mut *self.unheard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says that something could not be asked, once.
    pub(crate) fn not_heard(&self, question: &str, words: &str) {
        let line = format!("{} could not report {question}: {words}", self.id);
        let mut unheard = self.unheard.lock().unwrap_or_else(PoisonError::into_inner);
        if !unheard.contains(&line) {
            unheard.push(line);
        }
    }

    fn ask<T>(&self, ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, String> {
        attached(|py| ask(self.object.bind(py)))
    }

    // Where nobody can be told that it failed at once.
    fn ask_or<T>(
        &self,
        question: &str,
        otherwise: T,
        ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> T {
        self.ask(ask).unwrap_or_else(|words| {
            self.not_heard(question, &words);
            otherwise
        })
    }

    fn error(&self, question: &'static str) -> impl FnOnce(String) -> DeviceError {
        let device = self.id;
        move |answer| DeviceError::NotReported { device, question, answer }
    }
}

/// Does something with the interpreter; what it raised, in words.
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
    // The exception goes while the interpreter is held, and its frames with it.
    let done = Python::try_attach(|py| work(py).map_err(|error| error.to_string()));
    done.unwrap_or_else(|| Err("the interpreter is ending".to_owned()))
}

impl Gauge for PythonDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn usage(&self) -> Result<Usage, DeviceError> {
        let ask = |device: &Bound<'_, PyAny>| device.call_method0("usage")?.extract::<(u64, u64)>();
        let (total, free) = self.ask(ask).map_err(self.error("what is in use"))?;
        let (total, free, reserved) = (Bytes(total), Bytes(free), Bytes::ZERO);
        Ok(Usage { total, free, reserved, source: Source::Driver })
    }

    fn own(&self) -> Option<Bytes> {
        self.ask_or("its own part", None, |device| {
            Ok(device.call_method0("own")?.extract::<Option<u64>>()?.map(Bytes))
        })
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let ask = |device: &Bound<'_, PyAny>| device.call_method0("synchronize").map(|_| ());
        self.ask(ask).map_err(self.error("when its work ends"))
    }

    fn noise(&self) -> Bytes {
        self.noise
    }

    fn others(&self) -> Vec<(String, Bytes)> {
        self.ask_or("who else is there", Vec::new(), |device| {
            let others: Vec<(String, u64)> = device.call_method0("others")?.extract()?;
            Ok(others.into_iter().map(|(name, bytes)| (name, Bytes(bytes))).collect())
        })
    }
}

impl Allocator for PythonDevice {
    fn name(&self) -> String {
        format!("the allocator of {}", self.id)
    }

    fn counts(&self) -> AllocatorCounts {
        self.ask_or("what its allocator holds", AllocatorCounts::default(), |device| {
            let (allocated, reserved) = device.call_method0("counts")?.extract()?;
            Ok(AllocatorCounts { allocated: Bytes(allocated), reserved: Bytes(reserved) })
        })
    }

    fn lines(&self) -> Vec<LedgerLine> {
        self.ask_or("its ledger", Vec::new(), |device| {
            let lines: Vec<(String, String, u64)> = device.call_method0("lines")?.extract()?;
            lines.into_iter().map(|(kind, name, bytes)| line(&kind, name, Bytes(bytes))).collect()
        })
    }

    fn why_not_trim(&self) -> Option<String> {
        self.ask_or("whether a trim works now", None, |device| {
            device.call_method0("why_not_trim")?.extract()
        })
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        Ok(self.ask(|device| unsigned(&device.call_method0("trim")?))?)
    }
}

fn line(kind: &str, name: String, bytes: Bytes) -> PyResult<LedgerLine> {
    let kind = match kind {
        "live" => LedgerKind::Live,
        "cached" => LedgerKind::Cached,
        "graphs" => LedgerKind::Graphs,
        "libraries" => LedgerKind::Libraries,
        other => {
            let text = format!("{other:?} is no kind of line: live, cached, graphs or libraries");
            return Err(PyValueError::new_err(text));
        }
    };
    Ok(LedgerLine { kind, name, bytes })
}

/// A rung's part, by the Python object that does it, with its place.
pub(crate) fn hook(object: &Bound<'_, PyAny>) -> PyResult<(HookPoint, Hook)> {
    let place = match object.getattr("place")?.extract::<String>()?.as_str() {
        "to_host" => HookPoint::ToHost,
        "sessions" => HookPoint::Sessions,
        "caches" => HookPoint::Caches,
        "collect" => HookPoint::Collect,
        "libraries" => HookPoint::Libraries,
        "context_reset" => HookPoint::ContextReset,
        "fallback" => HookPoint::Fallback,
        other => return Err(PyValueError::new_err(format!("there is no place {other:?}"))),
    };
    let name: String = object.getattr("name")?.extract()?;
    let limit_s: f64 = object.getattr("limit_s")?.extract()?;
    let limit = Duration::try_from_secs_f64(limit_s)
        .map_err(|error| PyValueError::new_err(format!("limit_s of {name}: {error}")))?;
    let object = Arc::new(object.clone().unbind());
    let (missing, expect) = (Arc::clone(&object), Arc::clone(&object));
    let hook = Hook::new(name, move |call| run(&object, call.round))
        .limit(limit)
        // One that cannot say is tried: what is wrong with it comes out then.
        .unless(move || {
            attached(|py| missing.bind(py).call_method0("missing")?.extract()).unwrap_or_default()
        })
        .expecting(move || {
            attached(|py| bytes(&expect.bind(py).call_method0("expect")?)).unwrap_or_default()
        });
    Ok((place, hook))
}

fn run(object: &Py<PyAny>, round: u32) -> Result<Vec<Touch>, Failure> {
    Ok(attached(|py| touches(&object.bind(py).call_method1("run", (round,))?))?)
}

/// A setting that a rung lowers, by the Python object that has it.
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
        let restore = attached(|py| Ok(self.object.bind(py).call_method0("lower")?.unbind()))?;
        Ok(Box::new(move || Ok(attached(|py| restore.bind(py).call0().map(|_| ()))?)))
    }

    fn reset_statistics(&self) -> Result<(), Failure> {
        let reset = |py: Python<'_>| -> PyResult<()> {
            self.object.bind(py).call_method0("reset_statistics").map(|_| ())
        };
        Ok(attached(reset)?)
    }
}

/// The steps of a plan, taken out of the list they came in: whoever called keeps the list, and with it
/// everything that the steps refer to.
pub(crate) fn taken(list: &Bound<'_, PyList>) -> PyResult<Vec<super::ask::Step>> {
    let steps = list.iter().map(|step| {
        let path: String = step.getattr("path")?.extract()?;
        let size = bytes(&step.getattr("bytes")?)?;
        Ok(super::ask::Step { path, size, cut: step.getattr("cut")?.unbind() })
    });
    let steps = steps.collect::<PyResult<_>>()?;
    list.call_method0("clear")?;
    Ok(steps)
}
