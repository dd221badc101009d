//! The ledger for Python: its lines, which a device in Python reports, and the whole of it.

use lowtide::device::Bytes;
use pyo3::prelude::*;

use crate::data::classes::{mirror, wrapper};
use crate::data::json;

mirror! {
    /// A category of memory in the ledger.
    LedgerKind {
        /// Memory in live blocks.
        Live,
        /// Memory that an allocator keeps and no live block uses.
        Cached,
        /// Memory of captured graphs.
        Graphs,
        /// Memory of libraries: workspaces, sessions, communicators.
        Libraries,
        /// The floor: what a bare context uses.
        Context,
        /// The context and the libraries of this process, where no floor tells them apart.
        ContextAndLibraries,
        /// Memory of other processes.
        Others,
    }
}

wrapper! {
    /// One line of the ledger.
    LedgerLine(lowtide::release::LedgerLine), __eq__ {
        /// The category.
        kind: LedgerKind = |it| it.kind.into();
        /// The owner, library or process.
        name: &str = |it| &it.name;
        /// The size.
        bytes: u64 = |it| it.bytes.0;
    }

    /// Makes a line.
    #[new]
    fn new(kind: LedgerKind, name: String, bytes: u64) -> LedgerLine {
        LedgerLine(lowtide::release::LedgerLine { kind: kind.into(), name, bytes: Bytes(bytes) })
    }

    fn __repr__(&self) -> String {
        format!("LedgerLine({:?}, {:?}, {})", self.kind(), self.name(), self.bytes())
    }
}

wrapper! {
    /// A breakdown of all device memory in use. It adds up to the driver's number.
    Ledger(lowtide::release::Ledger) {
        /// The device.
        device: String = |it| it.device.to_string();
        /// Memory in use, as the driver reports it.
        driver_bytes: u64 = |it| it.driver_bytes.0;
        /// The lines that are accounted for.
        lines: Vec<LedgerLine> = |it| it.lines.iter().cloned().map(LedgerLine).collect();
        /// The rest. Negative if two lines count the same bytes.
        unknown_bytes: i64 = |it| it.unknown_bytes;
    }

    /// Returns the bytes of all lines of one category.
    fn of(&self, kind: LedgerKind) -> u64 {
        self.0.of(kind.into()).0
    }

    /// Returns it as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::as_python(py, &self.0)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Ledger of {}: {} in use>", self.0.device, self.0.driver_bytes)
    }
}
