//! What the walk knows of the interpreter, and the functions of it that it calls.

use pyo3::prelude::*;
use pyo3::types::PyType;

/// Facts and functions of the interpreter, as they were when the package was imported. To import
/// the functions during a walk would run the program's `__import__`; to look them up could find
/// what the program has put in their place.
#[derive(FromPyObject)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(crate) struct Interpreter<'py> {
    pub(crate) get_objects: Bound<'py, PyAny>,
    pub(crate) get_freeze_count: Bound<'py, PyAny>,
    pub(crate) get_threshold: Bound<'py, PyAny>,
    pub(crate) get_count: Bound<'py, PyAny>,
    pub(crate) current_frames: Bound<'py, PyAny>,
    pub(crate) current_exceptions: Bound<'py, PyAny>,
    /// Whether it is known how frozen objects are linked.
    pub(crate) finds_frozen: bool,
    /// Whether it is known where the collector has its lists of objects.
    pub(crate) knows_generations: bool,
    /// Whether the layout of its objects is known.
    pub(crate) knows_layout: bool,
    /// Whether the traverse slot of a running frame shows its variables.
    pub(crate) frames_show: bool,
    /// Types whose traverse slots any thread may call.
    pub(crate) readers: Vec<Bound<'py, PyType>>,
    /// How many threads walk, whatever the number of objects; 0 if that decides.
    pub(crate) threads: usize,
}
