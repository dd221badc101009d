//! The kinds of objects that the walk tells apart.

use pyo3::prelude::*;
use pyo3::types::PyType;

/// A kind of object. Python names those that it knows by their types; the walk finds out the others.
#[pyclass(
    frozen,
    eq,
    hash,
    from_py_object,
    name = "ObjectKind",
    rename_all = "SCREAMING_SNAKE_CASE",
    module = "lowtide._native"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `sys.modules`, which nobody cuts.
    Modules,
    /// A module.
    Module,
    /// The dict of a module.
    Namespace,
    /// The dict of a class.
    ClassDict,
    /// A dict.
    Dict,
    /// A container whose elements can be removed: a list, a set, a deque.
    Container,
    /// A container that cannot be changed: a tuple, a frozenset.
    Immutable,
    /// The tuple of a function's default arguments, which can be replaced.
    Defaults,
    /// A function with arguments that somebody will call: a partial, a queued job. Without a part
    /// of it the call would fail, so it is dropped as a whole.
    Call,
    /// The dict of such a call's arguments.
    Arguments,
    /// An instance of a class written in Python.
    Instance,
    /// An instance that people know as one thing, whatever it is made of: a model.
    Model,
    /// A class.
    Class,
    /// A function written in Python.
    Function,
    /// A cell of a closure.
    Cell,
    /// A frame.
    Frame,
    /// A suspended generator, coroutine or async generator.
    Generator,
    /// An exception.
    Exception,
    /// A function with an `lru_cache`.
    Cache,
    /// An object of ctypes: its dict keeps memory alive that its own address is in.
    Foreign,
    /// A tensor, or another object that may hold device memory.
    Tensor,
    /// Device memory itself. It is no object.
    Memory,
    /// An object or node that was made for this walk.
    Ours,
    /// Any other object.
    Opaque,
}

impl Kind {
    /// Returns whether it is a place for names rather than an object that has one.
    pub(crate) fn is_scaffolding(self) -> bool {
        matches!(self, Kind::Modules | Kind::Module | Kind::Namespace | Kind::Frame | Kind::Ours)
    }
}

/// A type, and the kind of its objects.
#[pyclass(frozen, module = "lowtide._native")]
pub struct TypeKind {
    pub(crate) class: Py<PyType>,
    pub(crate) kind: Kind,
    pub(crate) subclasses: bool,
}

#[pymethods]
impl TypeKind {
    /// Says of which kind the objects of a type are, and whether those of its subclasses are too.
    #[new]
    #[pyo3(signature = (class_, kind, *, subclasses=false))]
    fn new(class_: Py<PyType>, kind: Kind, subclasses: bool) -> TypeKind {
        TypeKind { class: class_, kind, subclasses }
    }
}
