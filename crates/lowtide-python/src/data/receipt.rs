//! Receipts for Python: data first, and the same text as everywhere.

use lowtide::device::Bytes;
use lowtide::release::{LogLevel, RungOutcome, Verdict, log_text};
use pyo3::prelude::*;

use crate::data::json;
use crate::data::ledger::Ledger;
use crate::data::values::{Claim, Holder, Touch};

/// The result of a release, with the driver's numbers before and after.
///
/// Printing it shows the verdict, what is left and what to do; `detailed()` adds every rung.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Receipt(pub(crate) lowtide::release::Receipt);

impl Receipt {
    /// Adds lines of advice that were not known when the receipt was written.
    pub(crate) fn with(mut receipt: lowtide::release::Receipt, advice: Vec<String>) -> Receipt {
        receipt.advice.extend(advice);
        Receipt(receipt)
    }
}

#[pymethods]
impl Receipt {
    /// The name of the release.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The device, or `None` if there is none.
    #[getter]
    fn device(&self) -> Option<String> {
        self.0.device.map(|id| id.to_string())
    }

    /// The target as text, or `None` if there was none.
    #[getter]
    fn target(&self) -> Option<String> {
        self.0.target.map(|target| target.to_string())
    }

    /// The verdict: `released`, `partial`, `no-effect`, `pinned`, `busy`, `unverified`,
    /// `no-device` or `failed`.
    #[getter]
    fn verdict(&self) -> String {
        self.0.verdict.to_string()
    }

    /// What the release said it would free, decided before it started; `None` if it did not start.
    #[getter]
    fn claim(&self) -> Option<Claim> {
        self.0.claim.map(Claim::from)
    }

    /// Hooks that apply and were not run, because their rung is not part of the ladder.
    #[getter]
    fn not_run(&self) -> Vec<String> {
        self.0.not_run.clone()
    }

    /// Whether the device's number confirms the claim.
    #[getter]
    fn proved(&self) -> bool {
        self.0.verdict.is_proved()
    }

    /// The bytes that were freed, by the driver's numbers, or `None` if the driver could not be
    /// asked.
    #[getter]
    fn freed_bytes(&self) -> Option<i64> {
        self.0.freed_bytes
    }

    /// The numbers before the release.
    #[getter]
    fn before(&self) -> Reading {
        Reading(self.0.before)
    }

    /// The numbers after the release, once they had settled.
    #[getter]
    fn after(&self) -> Reading {
        Reading(self.0.after)
    }

    /// Every rung that was climbed or skipped, in order.
    #[getter]
    fn rungs(&self) -> Vec<RungReceipt> {
        self.0.rungs.iter().cloned().map(RungReceipt).collect()
    }

    /// The references that still hold memory which should be free.
    #[getter]
    fn holders(&self) -> Vec<Holder> {
        self.0.holders.iter().cloned().map(Holder).collect()
    }

    /// What is left, and what would free it.
    #[getter]
    fn advice(&self) -> Vec<String> {
        self.0.advice.clone()
    }

    /// The rung at which the release was stopped because work arrived, or `None`.
    #[getter]
    fn stopped_at(&self) -> Option<&str> {
        self.0.stopped_at.as_ref().map(lowtide::release::RungName::as_str)
    }

    /// How long the release took, in seconds.
    #[getter]
    fn took_s(&self) -> f64 {
        self.0.took_s
    }

    /// A breakdown of the memory that is left, or `None` if the device could not be asked.
    #[getter]
    fn ledger(&self) -> Option<Ledger> {
        self.0.ledger.clone().map(Ledger)
    }

    /// Returns the rung of this name in the last attempt that had it, or `None`.
    fn rung(&self, name: &str) -> Option<RungReceipt> {
        self.0.rung(name).cloned().map(RungReceipt)
    }

    /// Returns the same receipt with one more line of advice.
    fn with_advice(&self, line: String) -> Receipt {
        Receipt::with(self.0.clone(), vec![line])
    }

    /// Returns one line for a log.
    fn line(&self) -> String {
        self.0.line()
    }

    /// Returns one line: what was reserved before and after, in MB of 1024² with one decimal.
    fn reserved_line(&self) -> String {
        self.0.reserved_line()
    }

    /// Returns the lines Before, After and Freed, in MB with two decimals.
    fn summary(&self) -> String {
        self.0.summary()
    }

    /// The level of its log line, as Python's logging counts: 20 for INFO, 30 for WARNING.
    #[getter]
    fn log_level(&self) -> u8 {
        match LogLevel::of(&self.0) {
            LogLevel::Info => 20,
            LogLevel::Warning => 30,
        }
    }

    /// Returns the text of its log line. `line` replaces the usual one; a warning adds what to do.
    #[pyo3(signature = (line=None))]
    fn log_text(&self, line: Option<&str>) -> String {
        line.map_or_else(|| log_text(&self.0, &self.0.line()), |line| log_text(&self.0, line))
    }

    /// Returns the whole receipt as plain data. Its schema is docs/schemas/receipt.json.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::as_python(py, &self.0)
    }

    /// Returns the text with Before, After and Freed and every rung.
    fn detailed(&self) -> String {
        self.0.detailed().to_string().trim_end().to_owned()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Receipt {}>", self.0.line())
    }
}

/// Returns the receipt of a release that did nothing: the interpreter is ending.
#[pyfunction]
pub(crate) fn empty_receipt(name: &str) -> Receipt {
    let nothing = lowtide::release::Reading::default();
    let receipt = lowtide::release::Receipt::new(name, None, Verdict::NoDevice, (nothing, nothing));
    Receipt::with(receipt, vec!["nothing was done: the interpreter is ending".to_owned()])
}

/// The numbers of the device and of the allocators at one moment.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Reading(pub(crate) lowtide::release::Reading);

#[pymethods]
impl Reading {
    /// Memory in use on the device by all processes, as the driver reports it.
    #[getter]
    fn driver_bytes(&self) -> Option<u64> {
        self.0.driver.map(number)
    }

    /// Free memory of the device, as the driver reports it.
    #[getter]
    fn driver_free_bytes(&self) -> Option<u64> {
        self.0.free.map(number)
    }

    /// Memory in use by this process, if the driver reports it.
    #[getter]
    fn own_bytes(&self) -> Option<u64> {
        self.0.own.map(number)
    }

    /// The number by which a release is measured: this process's memory, or that of all processes.
    #[getter]
    fn in_use_bytes(&self) -> Option<u64> {
        self.0.in_use().map(number)
    }

    /// Memory in live blocks, as the allocators report it.
    #[getter]
    fn allocated_bytes(&self) -> u64 {
        self.0.allocated.0
    }

    /// Memory that the allocators have taken from the device.
    #[getter]
    fn reserved_bytes(&self) -> u64 {
        self.0.reserved.0
    }

    fn __repr__(&self) -> String {
        let lowtide::release::Reading { driver, own, allocated, reserved, .. } = self.0;
        let text = |bytes: Option<Bytes>| {
            bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string())
        };
        format!(
            "<Reading in use {}, own {}, reserved {reserved}, allocated {allocated}>",
            text(driver),
            text(own)
        )
    }
}

/// The receipt of one rung in one attempt.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct RungReceipt(lowtide::release::RungReceipt);

#[pymethods]
impl RungReceipt {
    /// The name of the rung.
    #[getter]
    fn rung(&self) -> &str {
        self.0.rung.as_str()
    }

    /// The number of the attempt, from 1.
    #[getter]
    fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// How it ended: `done`, `skipped`, `failed`, `panicked` or `cut-off`.
    #[getter]
    fn outcome(&self) -> &'static str {
        match &self.0.outcome {
            RungOutcome::Done => "done",
            RungOutcome::Skipped { .. } => "skipped",
            RungOutcome::Failed { .. } => "failed",
            RungOutcome::Panicked { .. } => "panicked",
            RungOutcome::CutOff { .. } => "cut-off",
        }
    }

    /// Why it was skipped or failed, or `None` if it was done.
    #[getter]
    fn why(&self) -> Option<String> {
        match &self.0.outcome {
            RungOutcome::Done => None,
            RungOutcome::Skipped { why } | RungOutcome::Failed { why } => Some(why.clone()),
            RungOutcome::Panicked { message } => Some(message.clone()),
            RungOutcome::CutOff { limit_ms } => {
                Some(format!("it did not end within {limit_ms} ms"))
            }
        }
    }

    /// What it touched, with sizes where they are known.
    #[getter]
    fn touched(&self) -> Vec<Touch> {
        self.0.touched.iter().map(Touch::from).collect()
    }

    /// The parts that were skipped, each with its name and why.
    #[getter]
    fn skipped(&self) -> Vec<String> {
        self.0.skipped.clone()
    }

    /// The bytes that it expected to free, if it could know.
    #[getter]
    fn expected_bytes(&self) -> Option<u64> {
        self.0.expected_bytes.map(number)
    }

    /// The bytes that it freed, by the driver's numbers.
    #[getter]
    fn freed_bytes(&self) -> Option<i64> {
        self.0.freed_bytes
    }

    /// The numbers before the rung.
    #[getter]
    fn before(&self) -> Reading {
        Reading(self.0.before)
    }

    /// The numbers after the rung, once they had settled.
    #[getter]
    fn after(&self) -> Reading {
        Reading(self.0.after)
    }

    /// How long it took, in seconds, without the time to settle.
    #[getter]
    fn took_s(&self) -> f64 {
        self.0.took_s
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<RungReceipt {}>", self.0)
    }
}

fn number(bytes: Bytes) -> u64 {
    bytes.0
}
