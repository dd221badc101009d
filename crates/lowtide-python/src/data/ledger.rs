//! The ledger for Python: its lines, which a device in Python reports, and the whole of it.

use lowtide::device::Bytes;
use pyo3::prelude::*;

use crate::data::json;

/// A category of memory in the ledger.
#[pyclass(
    frozen,
    eq,
    hash,
    from_py_object,
    rename_all = "SCREAMING_SNAKE_CASE",
    module = "lowtide._native"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LedgerKind {
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

impl From<LedgerKind> for lowtide::release::LedgerKind {
    fn from(kind: LedgerKind) -> lowtide::release::LedgerKind {
        match kind {
            LedgerKind::Live => lowtide::release::LedgerKind::Live,
            LedgerKind::Cached => lowtide::release::LedgerKind::Cached,
            LedgerKind::Graphs => lowtide::release::LedgerKind::Graphs,
            LedgerKind::Libraries => lowtide::release::LedgerKind::Libraries,
            LedgerKind::Context => lowtide::release::LedgerKind::Context,
            LedgerKind::ContextAndLibraries => lowtide::release::LedgerKind::ContextAndLibraries,
            LedgerKind::Others => lowtide::release::LedgerKind::Others,
        }
    }
}

impl From<lowtide::release::LedgerKind> for LedgerKind {
    fn from(kind: lowtide::release::LedgerKind) -> LedgerKind {
        match kind {
            lowtide::release::LedgerKind::Live => LedgerKind::Live,
            lowtide::release::LedgerKind::Cached => LedgerKind::Cached,
            lowtide::release::LedgerKind::Graphs => LedgerKind::Graphs,
            lowtide::release::LedgerKind::Libraries => LedgerKind::Libraries,
            lowtide::release::LedgerKind::Context => LedgerKind::Context,
            lowtide::release::LedgerKind::ContextAndLibraries => LedgerKind::ContextAndLibraries,
            lowtide::release::LedgerKind::Others => LedgerKind::Others,
        }
    }
}

/// One line of the ledger.
#[pyclass(frozen, eq, get_all, new = "from_fields", module = "lowtide._native")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LedgerLine {
    /// The category.
    pub(crate) kind: LedgerKind,
    /// The owner, library or process.
    pub(crate) name: String,
    /// The size.
    pub(crate) bytes: u64,
}

#[pymethods]
impl LedgerLine {
    fn __repr__(&self) -> String {
        format!("LedgerLine({:?}, {:?}, {})", self.kind, self.name, self.bytes)
    }
}

impl From<&LedgerLine> for lowtide::release::LedgerLine {
    fn from(line: &LedgerLine) -> lowtide::release::LedgerLine {
        let LedgerLine { kind, name, bytes } = line;
        lowtide::release::LedgerLine {
            kind: (*kind).into(),
            name: name.clone(),
            bytes: Bytes(*bytes),
        }
    }
}

impl From<&lowtide::release::LedgerLine> for LedgerLine {
    fn from(line: &lowtide::release::LedgerLine) -> LedgerLine {
        LedgerLine { kind: line.kind.into(), name: line.name.clone(), bytes: line.bytes.0 }
    }
}

/// A breakdown of all device memory in use. It adds up to the driver's number.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Ledger(pub(crate) lowtide::release::Ledger);

#[pymethods]
impl Ledger {
    /// The device.
    #[getter]
    fn device(&self) -> String {
        self.0.device.to_string()
    }

    /// Memory in use, as the driver reports it.
    #[getter]
    fn driver_bytes(&self) -> u64 {
        self.0.driver_bytes.0
    }

    /// The lines that are accounted for.
    #[getter]
    fn lines(&self) -> Vec<LedgerLine> {
        self.0.lines.iter().map(LedgerLine::from).collect()
    }

    /// The rest. Negative if two lines count the same bytes.
    #[getter]
    fn unknown_bytes(&self) -> i64 {
        self.0.unknown_bytes
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
