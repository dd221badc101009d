//! How much device memory the objects have that the collector lists: one pass over them instead of a walk.
//!
//! Tensors are tracked by the collector, whoever holds them. So what it lists has all memory that a walk
//! finds, in a seventh of the time, except for objects that it does not track: those of some types of torch.
//! Who asks has to know whether there are any (`_why/memory/listed.py`). Frozen objects are read as well,
//! where that is possible.

use std::collections::HashMap;

use pyo3::prelude::*;

use crate::memory::nodes::{Tensors, tensors};
use crate::memory::reported::Reports;
use crate::start::question::Question;

/// Returns the bytes that the objects which the collector lists hold on the question's device, and what
/// those keep in native code. Each piece of memory counts once. Returns `None` if there are frozen objects
/// that cannot be read.
#[pyfunction]
pub fn listed_memory(question: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let py = question.py();
    let (question, mut kinds) = Question::new(question)?;
    let mut reports = Reports::new(py)?;
    let Tensors { found, has_frozen, .. } = tensors(py, &question, &mut kinds)?;
    if !has_frozen {
        return Ok(None);
    }
    reports.ask(py, &question, found, &mut HashMap::new())?;
    let reported = reports.memory.values().flatten().map(Py::get);
    let is_asked = |device: &str| question.device.as_ref().is_none_or(|asked| asked == device);
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    for memory in reported {
        if is_asked(memory.device.bind(py).to_str()?) {
            sizes.insert(memory.key, memory.bytes);
        }
    }
    Ok(Some(sizes.values().sum()))
}
