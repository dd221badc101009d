//! Scopes: the tag that is in force on a thread.
//!
//! torch routes only allocations of the thread that entered a `MemPool`, so a tag is in force on that thread
//! alone. A scope may end on another thread (a generator that is collected there): then it is marked, and
//! its own thread takes it off the list when it looks next.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use lowtide::pool::Tag;
use pyo3::prelude::*;

use crate::tagged::error::Refusal;
use crate::tagged::pools::{self, TaggedPool};

thread_local! {
    /// The scopes that this thread has begun, the innermost last.
    static BEGUN: RefCell<Vec<Arc<Scope>>> = const { RefCell::new(Vec::new()) };
}

/// A tag on a device, while it is in force.
pub(crate) struct Scope {
    pub(crate) tagged: Arc<TaggedPool>,
    pub(crate) tag: Tag,
    pub(crate) name: Arc<str>,
    device: i32,
    is_open: AtomicBool,
}

/// Returns the innermost scope of a device on this thread.
pub(crate) fn in_force(device: i32) -> Option<Arc<Scope>> {
    let look = |begun: &RefCell<Vec<Arc<Scope>>>| {
        let mut begun = begun.borrow_mut();
        begun.retain(|scope| scope.is_open.load(SeqCst));
        begun.iter().rev().find(|scope| scope.device == device).cloned()
    };
    // A thread that ends has no list any more.
    BEGUN.try_with(look).unwrap_or_default()
}

/// A scope for Python: between `begin` and `end`, allocations of the thread have the tag.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct TagScope(Arc<Scope>);

#[pymethods]
impl TagScope {
    /// Opens the device and declares the tag there.
    #[new]
    fn new(py: Python<'_>, name: &str, policy: &str, device: i32) -> PyResult<TagScope> {
        let (name, policy) = (Arc::<str>::from(name), pools::policy(policy)?);
        let scope = py.detach(|| {
            let tagged = pools::of_device(device)?;
            let tag = tagged.declare(&name, policy)?;
            let is_open = AtomicBool::new(false);
            Ok::<_, Refusal>(Scope { tagged, tag, name, device, is_open })
        })?;
        Ok(TagScope(Arc::new(scope)))
    }

    /// Puts the tag in force on this thread. Raises if the tag is asleep, or if this was called before.
    fn begin(&self) -> PyResult<()> {
        pools::check_process()?;
        let scope = &self.0;
        scope.tagged.open(&scope.name, scope.tag)?;
        if scope.is_open.swap(true, SeqCst) {
            scope.tagged.close(&scope.name);
            return Err(Refusal::Open { name: scope.name.to_string() }.into());
        }
        BEGUN.with_borrow_mut(|begun| begun.push(Arc::clone(scope)));
        Ok(())
    }

    /// Ends the scope, on whatever thread. A second call does nothing.
    fn end(&self) {
        let scope = &self.0;
        if pools::check_process().is_ok() && scope.is_open.swap(false, SeqCst) {
            scope.tagged.close(&scope.name);
        }
    }
}

impl Drop for TagScope {
    fn drop(&mut self) {
        // A scope that nobody has any more would keep its tag from sleeping for ever.
        self.end();
    }
}
