//! Values that cross the border between Python and Rust: plain data with named fields.
//!
//! Python builds them to report what a device holds, and reads them from receipts and ledgers.

use lowtide::device::Bytes;
use pyo3::prelude::*;

use crate::data::classes::wrapper;
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

wrapper! {
    /// What a release said it would free.
    Claim(lowtide::release::Claim), __eq__ {
        /// The memory that it counts: `owned`, `cached`, `level` or `target`.
        basis: &'static str = |it| it.basis.as_str();
        /// Its size when the release started.
        bytes: u64 = |it| it.bytes.0;
    }

    fn __repr__(&self) -> String {
        format!("<Claim {}, {}>", self.basis(), self.0.bytes)
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

wrapper! {
    /// Something that a rung touched, with its size if that is known.
    Touch(lowtide::release::Touch), __eq__ {
        /// The name of it, for people.
        what: &str = |it| &it.what;
        /// Its size, if it is known.
        bytes: Option<u64> = |it| it.bytes.map(|bytes| bytes.0);
    }

    /// Says that something was touched.
    #[new]
    #[pyo3(signature = (what, bytes=None))]
    fn new(what: String, bytes: Option<u64>) -> Touch {
        Touch(lowtide::release::Touch { what, bytes: bytes.map(Bytes) })
    }

    fn __repr__(&self) -> String {
        let bytes = self.bytes().map_or_else(String::new, |bytes| format!(", {bytes}"));
        format!("Touch({:?}{bytes})", self.what())
    }
}

wrapper! {
    /// A reference that keeps memory alive.
    #[derive(Clone)]
    Holder(lowtide::release::Holder), __eq__ {
        /// The path to the reference.
        path: &str = |it| &it.path;
        /// The type of the object that it keeps alive.
        holds: &str = |it| &it.holds;
        /// The number of references by this path.
        count: usize = |it| it.count;
        /// The bytes that are freed with the last reference, if that is known.
        bytes: Option<u64> = |it| it.held.map(|bytes| bytes.0);
        /// The statement that drops the reference, if it is known.
        cut: Option<&str> = |it| it.cut.as_deref();
        /// A sentence that says what to do where no statement drops the reference.
        by_hand: Option<&str> = |it| it.by_hand.as_deref();
        /// The number by which `lowtide.cut` drops the reference, if it can.
        number: Option<u32> = |it| it.number;
        /// The numbers of the other cuts without which this one frees nothing.
        together: Vec<u32> = |it| it.together.clone();
    }

    /// Says who holds something.
    #[new]
    #[pyo3(signature = (path, holds, *, count=1, bytes=None, cut=None, by_hand=None, number=None, together=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        path: String,
        holds: String,
        count: usize,
        bytes: Option<u64>,
        cut: Option<String>,
        by_hand: Option<String>,
        number: Option<u32>,
        together: Option<Vec<u32>>,
    ) -> Holder {
        let (held, together) = (bytes.map(Bytes), together.unwrap_or_default());
        let holder = lowtide::release::Holder::new(path, holds);
        Holder(lowtide::release::Holder { count, held, cut, by_hand, number, together, ..holder })
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
