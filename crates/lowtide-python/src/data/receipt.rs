//! Receipts for Python: data first, and the same text as everywhere.

use lowtide::device::Bytes;
use lowtide::release::{LogLevel, RestoreError, RungOutcome, Verdict, log_text};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::data::classes::wrapper;
use crate::data::json;
use crate::data::ledger::Ledger;
use crate::data::values::{Claim, Holder, Touch};

wrapper! {
    /// The result of a release, with the driver's numbers before and after.
    ///
    /// Printing it shows the verdict, what is left and what to do; `detailed()` adds every rung.
    Receipt(lowtide::release::Receipt) {
        /// The name of the release.
        name: &str = |it| &it.name;
        /// The device, or `None` if there is none.
        device: Option<String> = |it| it.device.map(|id| id.to_string());
        /// The target as text, or `None` if there was none.
        target: Option<String> = |it| it.target.map(|target| target.to_string());
        /// The verdict: `released`, `partial`, `no-effect`, `pinned`, `busy`, `unverified`,
        /// `no-device` or `failed`.
        verdict: String = |it| it.verdict.to_string();
        /// What the release said it would free, decided before it started; `None` if it did not start.
        claim: Option<Claim> = |it| it.claim.map(Claim);
        /// Hooks that apply and were not run, because their rung is not part of the ladder.
        not_run: Vec<String> = |it| it.not_run.clone();
        /// Whether the device's number confirms the claim.
        proved: bool = |it| it.verdict.is_proved();
        /// The bytes that were freed, by the driver's numbers, or `None` if the driver could not be
        /// asked.
        freed_bytes: Option<i64> = |it| it.freed_bytes;
        /// The numbers before the release.
        before: Reading = |it| Reading(it.before);
        /// The numbers after the release, once they had settled.
        after: Reading = |it| Reading(it.after);
        /// Every rung that was climbed or skipped, in order.
        rungs: Vec<RungReceipt> = |it| it.rungs.iter().cloned().map(RungReceipt).collect();
        /// The references that still hold memory which should be free.
        holders: Vec<Holder> = |it| it.holders.iter().cloned().map(Holder).collect();
        /// What is left, and what would free it.
        advice: Vec<String> = |it| it.advice.clone();
        /// The rung at which the release was stopped because work arrived, or `None`.
        stopped_at: Option<&str> = |it| it.stopped_at.as_ref().map(lowtide::release::RungName::as_str);
        /// How long the release took, in seconds.
        took_s: f64 = |it| it.took_s;
        /// A breakdown of the memory that is left, or `None` if the device could not be asked.
        ledger: Option<Ledger> = |it| it.ledger.clone().map(Ledger);
        /// The level of its log line, as Python's logging counts: 20 for INFO, 30 for WARNING.
        log_level: u8 = |it| match LogLevel::of(it) {
            LogLevel::Info => 20,
            LogLevel::Warning => 30,
        };
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

    /// Returns one line: what was reserved before and after, in MiB to one decimal.
    fn reserved_line(&self) -> String {
        self.0.reserved_line()
    }

    /// Returns the lines Before, After and Freed, in MiB to two decimals.
    fn summary(&self) -> String {
        self.0.summary()
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

impl Receipt {
    /// Adds lines of advice that were not known when the receipt was written.
    pub(crate) fn with(mut receipt: lowtide::release::Receipt, advice: Vec<String>) -> Receipt {
        receipt.advice.extend(advice);
        Receipt(receipt)
    }
}

/// Returns the receipt of a release that did nothing: the interpreter is ending.
#[pyfunction]
pub(crate) fn empty_receipt(name: &str) -> Receipt {
    let nothing = lowtide::release::Reading::default();
    let receipt = lowtide::release::Receipt::new(name, None, Verdict::NoDevice, (nothing, nothing));
    Receipt::with(receipt, vec!["nothing was done: the interpreter is ending".to_owned()])
}

wrapper! {
    /// The numbers of the device and of the allocators at one moment.
    Reading(lowtide::release::Reading) {
        /// Memory in use on the device by all processes, as the driver reports it.
        driver_bytes: Option<u64> = |it| it.driver.map(number);
        /// Free memory of the device, as the driver reports it.
        driver_free_bytes: Option<u64> = |it| it.free.map(number);
        /// Memory in use by this process, if the driver reports it.
        own_bytes: Option<u64> = |it| it.own.map(number);
        /// The number by which a release is measured: this process's memory, or that of all processes.
        in_use_bytes: Option<u64> = |it| it.in_use().map(number);
        /// Memory in live blocks, as the allocators report it.
        allocated_bytes: u64 = |it| it.allocated.0;
        /// Memory that the allocators have taken from the device.
        reserved_bytes: u64 = |it| it.reserved.0;
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

wrapper! {
    /// The receipt of one rung in one attempt.
    RungReceipt(lowtide::release::RungReceipt) {
        /// The name of the rung.
        rung: &str = |it| it.rung.as_str();
        /// The number of the attempt, from 1.
        attempt: u32 = |it| it.attempt;
        /// How it ended: `done`, `skipped`, `failed`, `panicked` or `cut-off`.
        outcome: &'static str = |it| match &it.outcome {
            RungOutcome::Done => "done",
            RungOutcome::Skipped { .. } => "skipped",
            RungOutcome::Failed { .. } => "failed",
            RungOutcome::Panicked { .. } => "panicked",
            RungOutcome::CutOff { .. } => "cut-off",
        };
        /// Why it was skipped or failed, or `None` if it was done.
        why: Option<String> = |it| match &it.outcome {
            RungOutcome::Done => None,
            RungOutcome::Skipped { why } | RungOutcome::Failed { why } => Some(why.clone()),
            RungOutcome::Panicked { message } => Some(message.clone()),
            RungOutcome::CutOff { limit_ms } => {
                Some(format!("it did not end within {limit_ms} ms"))
            }
        };
        /// What it touched, with sizes where they are known.
        touched: Vec<Touch> = |it| it.touched.iter().cloned().map(Touch).collect();
        /// The parts that were skipped, each with its name and why.
        skipped: Vec<String> = |it| it.skipped.clone();
        /// The bytes that it expected to free, if it could know.
        expected_bytes: Option<u64> = |it| it.expected_bytes.map(number);
        /// The bytes that it freed, by the driver's numbers.
        freed_bytes: Option<i64> = |it| it.freed_bytes;
        /// The numbers before the rung.
        before: Reading = |it| Reading(it.before);
        /// The numbers after the rung, once they had settled.
        after: Reading = |it| Reading(it.after);
        /// How long it took, in seconds, without the time to settle.
        took_s: f64 = |it| it.took_s;
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

wrapper! {
    /// What came back to the device before a task began: models, sessions.
    Restored(lowtide::release::Restored) {
        /// Each model and session, with its size if that is known.
        touched: Vec<Touch> = |it| it.touched.iter().cloned().map(Touch).collect();
        /// The numbers of the device and of the allocators before anything came back.
        before: Reading = |it| Reading(it.before);
        /// The same numbers when everything was back.
        after: Reading = |it| Reading(it.after);
        /// Whether the numbers confirm that the memory is there; false if no size is known.
        proved: bool = |it| it.proved;
        /// How long it took, in seconds.
        took_s: f64 = |it| it.took_s;
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Restored {}>", self.0)
    }
}

/// Returns the exception of work that could not begin.
pub(crate) fn not_restored(error: &RestoreError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
