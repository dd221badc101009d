//! Values that cross the border between Python and Rust: plain data with named fields.
//!
//! Python builds them to report what a device holds, and reads them from receipts and ledgers.

use lowtide::device::Bytes;
use pyo3::prelude::*;

use crate::data::json;

/// Total and free memory of a device, as the driver reports it.
#[pyclass(frozen, eq, get_all, new = "from_fields", module = "lowtide._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The memory that processes can use.
    pub(crate) total_bytes: u64,
    /// The free part of it.
    pub(crate) free_bytes: u64,
}

#[pymethods]
impl Usage {
    fn __repr__(&self) -> String {
        format!("Usage({}, {})", self.total_bytes, self.free_bytes)
    }
}

/// The numbers of a framework's allocator.
#[pyclass(frozen, eq, get_all, new = "from_fields", module = "lowtide._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllocatorCounts {
    /// The bytes in blocks that the program uses.
    pub(crate) allocated_bytes: u64,
    /// The bytes taken from the driver, allocated and cached.
    pub(crate) reserved_bytes: u64,
}

#[pymethods]
impl AllocatorCounts {
    fn __repr__(&self) -> String {
        format!("AllocatorCounts({}, {})", self.allocated_bytes, self.reserved_bytes)
    }
}

/// What a release said it would free.
#[pyclass(frozen, eq, get_all, module = "lowtide._native")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The memory that it counts: `owned`, `cached`, `level` or `target`.
    pub(crate) basis: &'static str,
    /// Its size when the release started.
    pub(crate) bytes: u64,
}

impl From<lowtide::release::Claim> for Claim {
    fn from(claim: lowtide::release::Claim) -> Claim {
        Claim { basis: claim.basis.as_str(), bytes: claim.bytes.0 }
    }
}

#[pymethods]
impl Claim {
    fn __repr__(&self) -> String {
        format!("<Claim {}, {}>", self.basis, Bytes(self.bytes))
    }
}

/// Device memory of a process.
#[pyclass(frozen, eq, get_all, new = "from_fields", module = "lowtide._native")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessUsage {
    /// Which process, for people.
    pub(crate) name: String,
    /// The device memory that it uses.
    pub(crate) bytes: u64,
}

#[pymethods]
impl ProcessUsage {
    fn __repr__(&self) -> String {
        format!("ProcessUsage({:?}, {})", self.name, self.bytes)
    }
}

/// Something that a rung touched, with its size if that is known.
#[pyclass(frozen, eq, get_all, module = "lowtide._native")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Touch {
    /// The name of it, for people.
    what: String,
    /// Its size, if it is known.
    bytes: Option<u64>,
}

#[pymethods]
impl Touch {
    /// Says that something was touched.
    #[new]
    #[pyo3(signature = (what, bytes=None))]
    fn new(what: String, bytes: Option<u64>) -> Touch {
        Touch { what, bytes }
    }

    fn __repr__(&self) -> String {
        match self.bytes {
            Some(bytes) => format!("Touch({:?}, {bytes})", self.what),
            None => format!("Touch({:?})", self.what),
        }
    }
}

impl From<&Touch> for lowtide::release::Touch {
    fn from(touch: &Touch) -> lowtide::release::Touch {
        lowtide::release::Touch { what: touch.what.clone(), bytes: touch.bytes.map(Bytes) }
    }
}

impl From<&lowtide::release::Touch> for Touch {
    fn from(touch: &lowtide::release::Touch) -> Touch {
        Touch { what: touch.what.clone(), bytes: touch.bytes.map(|bytes| bytes.0) }
    }
}

/// A reference that keeps memory alive.
#[pyclass(frozen, eq, module = "lowtide._native")]
#[derive(Clone, PartialEq)]
pub(crate) struct Holder(pub(crate) lowtide::release::Holder);

#[pymethods]
impl Holder {
    /// Says who holds something.
    #[new]
    #[pyo3(signature = (path, holds, *, count=1, bytes=None, cut=None, by_hand=None))]
    fn new(
        path: String,
        holds: String,
        count: usize,
        bytes: Option<u64>,
        cut: Option<String>,
        by_hand: Option<String>,
    ) -> Holder {
        let held = bytes.map(Bytes);
        let holder = lowtide::release::Holder::new(path, holds);
        Holder(lowtide::release::Holder { count, held, cut, by_hand, ..holder })
    }

    /// The path to the reference.
    #[getter]
    fn path(&self) -> &str {
        &self.0.path
    }

    /// The type of the object that it keeps alive.
    #[getter]
    fn holds(&self) -> &str {
        &self.0.holds
    }

    /// The number of references by this path.
    #[getter]
    fn count(&self) -> usize {
        self.0.count
    }

    /// The bytes that are freed with the last reference, if that is known.
    #[getter]
    fn bytes(&self) -> Option<u64> {
        self.0.held.map(|bytes| bytes.0)
    }

    /// The statement that drops the reference, if it is known.
    #[getter]
    fn cut(&self) -> Option<&str> {
        self.0.cut.as_deref()
    }

    /// A sentence that says what to do where no statement drops the reference.
    #[getter]
    fn by_hand(&self) -> Option<&str> {
        self.0.by_hand.as_deref()
    }

    /// Returns what drops the reference: a statement with a comment, or `by hand: ` and a sentence.
    fn remedy(&self) -> String {
        self.0.remedy()
    }

    /// Returns it as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::as_python(py, &self.0)
    }

    fn __repr__(&self) -> String {
        let lowtide::release::Holder { path, holds, count, .. } = &self.0;
        format!("<Holder {path} holds {holds}, {count} reference(s)>")
    }
}
