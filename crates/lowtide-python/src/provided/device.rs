//! A device that a Python object describes (`_devices/device.py`): what is in use, and the
//! framework's allocator on it.
//!
//! Every method of the Python object may raise. The exception's text becomes a failure of the rung,
//! if there is one, or else a line of the receipt's advice.

use std::sync::Mutex;

use lowtide::device::{Bytes, DeviceId, Error as DeviceError, Source, Usage};
use lowtide::release::{Allocator, AllocatorCounts, Failure, Gauge, LedgerKind, LedgerLine};
use lowtide_walk::call_method;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::calls::attached::attached;
use crate::calls::waiting::lock;
use crate::data::ledger;
use crate::data::values;

/// A device that a Python object describes.
pub(crate) struct PythonDevice {
    object: Py<PyAny>,
    id: DeviceId,
    noise: Bytes,
    grain: Bytes,
    /// What the allocator counted last, where that takes long.
    counted: Option<Mutex<Option<AllocatorCounts>>>,
    /// Questions that failed since `take_failed_questions` was last called, as text.
    failed_questions: Mutex<Vec<String>>,
}

impl PythonDevice {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<PythonDevice> {
        let name: String = object.getattr("name")?.extract()?;
        let size = |name: &str| object.getattr(name).ok().and_then(|size| size.extract().ok());
        let (noise, grain) = (size("noise_bytes"), size("grain_bytes"));
        let counts_slowly = object.getattr("counts_slowly").and_then(|slow| slow.extract());
        Ok(PythonDevice {
            counted: counts_slowly.unwrap_or(false).then(Mutex::default),
            id: name.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?,
            noise: noise.map_or(Bytes::ZERO, Bytes),
            grain: grain.map_or(Bytes(1), Bytes),
            object: object.clone().unbind(),
            failed_questions: Mutex::default(),
        })
    }

    /// Returns the questions that failed since the last call, as text.
    pub(crate) fn take_failed_questions(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.failed_questions))
    }

    /// Notes that a question failed; the same failure is noted once.
    pub(crate) fn note_failure(&self, question: &str, words: &str) {
        let line = format!("{} could not report {question}: {words}", self.id);
        let mut failed = lock(&self.failed_questions);
        if !failed.contains(&line) {
            failed.push(line);
        }
    }

    /// Returns what the worker processes of this program use.
    pub(crate) fn worker_bytes(&self) -> Bytes {
        self.ask_or("what workers use", Bytes::ZERO, |device| {
            Ok(Bytes(call_method(device, "worker_bytes")?.extract()?))
        })
    }

    fn ask<T>(&self, ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, String> {
        attached(|py| ask(self.object.bind(py)))
    }

    /// Asks, and returns `otherwise` if the question fails: the failure goes to the receipt's
    /// advice.
    fn ask_or<T>(
        &self,
        question: &str,
        otherwise: T,
        ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> T {
        self.ask(ask).unwrap_or_else(|words| {
            self.note_failure(question, &words);
            otherwise
        })
    }

    fn error(&self, question: &'static str) -> impl FnOnce(String) -> DeviceError {
        let device = self.id;
        move |answer| DeviceError::NotReported { device, question, answer }
    }
}

impl Gauge for PythonDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn usage(&self) -> Result<Usage, DeviceError> {
        let ask = |device: &Bound<'_, PyAny>| {
            let usage = call_method(device, "usage")?;
            Ok(*usage.cast::<values::Usage>()?.get())
        };
        let usage = self.ask(ask).map_err(self.error("what is in use"))?;
        let (total, free) = (Bytes(usage.total_bytes), Bytes(usage.free_bytes));
        Ok(Usage { total, free, reserved: Bytes::ZERO, source: Source::Driver })
    }

    fn own(&self) -> Option<Bytes> {
        self.ask_or("what this process uses", None, |device| {
            Ok(call_method(device, "own")?.extract::<Option<u64>>()?.map(Bytes))
        })
    }

    fn is_away(&self) -> bool {
        self.ask_or("whether this process has left it", false, |device| {
            call_method(device, "is_away")?.extract()
        })
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let ask = |device: &Bound<'_, PyAny>| call_method(device, "synchronize").map(|_| ());
        self.ask(ask).map_err(self.error("when its work ends"))
    }

    fn noise(&self) -> Bytes {
        self.noise
    }

    fn grain(&self) -> Bytes {
        self.grain
    }

    fn others(&self) -> Vec<(String, Bytes)> {
        self.ask_or("what other processes use", Vec::new(), |device| {
            let others: Vec<Py<values::ProcessUsage>> = call_method(device, "others")?.extract()?;
            let others = others.iter().map(|other| (other.get().name.clone(), other.get().bytes));
            Ok(others.map(|(name, bytes)| (name, Bytes(bytes))).collect())
        })
    }
}

impl Allocator for PythonDevice {
    fn name(&self) -> String {
        format!("the allocator of {}", self.id)
    }

    fn counts(&self) -> AllocatorCounts {
        if let Some(known) = self.counted.as_ref().and_then(|counted| *lock(counted)) {
            return known;
        }
        let counts =
            self.ask_or("what its allocator holds", AllocatorCounts::default(), |device| {
                let counts = call_method(device, "counts")?;
                let counts = *counts.cast::<values::AllocatorCounts>()?.get();
                let allocated = Bytes(counts.allocated_bytes);
                Ok(AllocatorCounts { allocated, reserved: Bytes(counts.reserved_bytes) })
            });
        if let Some(counted) = &self.counted {
            *lock(counted) = Some(counts);
        }
        counts
    }

    fn recount(&self) {
        if let Some(counted) = &self.counted {
            *lock(counted) = None;
        }
    }

    fn lines(&self) -> Vec<LedgerLine> {
        if self.counted.is_some() {
            let AllocatorCounts { allocated, reserved } = self.counts();
            let name = format!("{} allocator", self.id);
            let cached = reserved.saturating_sub(allocated);
            let lines = [(LedgerKind::Live, allocated), (LedgerKind::Cached, cached)];
            let lines = lines.map(|(kind, bytes)| LedgerLine { kind, name: name.clone(), bytes });
            return lines.into_iter().filter(|line| line.bytes > Bytes::ZERO).collect();
        }
        self.ask_or("its ledger", Vec::new(), |device| {
            let lines: Vec<Py<ledger::LedgerLine>> = call_method(device, "lines")?.extract()?;
            Ok(lines.iter().map(|line| line.get().0.clone()).collect())
        })
    }

    fn trimmable(&self) -> Bytes {
        self.ask_or("what a trim can return", Bytes::ZERO, |device| {
            let bytes = call_method(device, "trimmable")?.extract::<i64>()?;
            Ok(Bytes(bytes.max(0).unsigned_abs()))
        })
    }

    fn activity(&self) -> Option<(u64, u64)> {
        self.ask_or("how often it has allocated", None, |device| {
            call_method(device, "counters")?.extract()
        })
    }

    fn why_not_trim(&self) -> Option<String> {
        self.ask_or("whether it can be trimmed", None, |device| {
            call_method(device, "why_not_trim")?.extract()
        })
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        // The allocator may have grown meanwhile: less than nothing counts as nothing.
        let trimmed = self.ask(|device| call_method(device, "trim")?.extract::<i64>())?;
        Ok(Bytes(trimmed.max(0).unsigned_abs()))
    }
}
