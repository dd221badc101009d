//! The kinds of objects that Python names by their types.

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::ask::kind::Kind;

/// A kind of object that Python knows by its type.
#[pyclass(
    frozen,
    eq,
    hash,
    from_py_object,
    rename_all = "SCREAMING_SNAKE_CASE",
    module = "lowtide._native"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A module.
    Module,
    /// A dict.
    Dict,
    /// A container whose elements can be removed: a list, a set, a deque.
    Container,
    /// A container that cannot be changed: a tuple, a frozenset.
    Immutable,
    /// A function written in Python.
    Function,
    /// A cell of a closure.
    Cell,
    /// A frame.
    Frame,
    /// A generator, a coroutine, an async generator.
    Generator,
    /// A function with an `lru_cache`.
    Cache,
    /// A function with arguments that somebody will call.
    Call,
    /// An object of ctypes.
    Foreign,
    /// A tensor, or another object that may hold device memory.
    Tensor,
    /// An object that people know as one thing, whatever it is made of: a model.
    Model,
}

impl From<ObjectKind> for Kind {
    fn from(kind: ObjectKind) -> Kind {
        match kind {
            ObjectKind::Module => Kind::Module,
            ObjectKind::Dict => Kind::Dict,
            ObjectKind::Container => Kind::Container,
            ObjectKind::Immutable => Kind::Immutable,
            ObjectKind::Function => Kind::Function,
            ObjectKind::Cell => Kind::Cell,
            ObjectKind::Frame => Kind::Frame,
            ObjectKind::Generator => Kind::Generator,
            ObjectKind::Cache => Kind::Cache,
            ObjectKind::Call => Kind::Call,
            ObjectKind::Foreign => Kind::Foreign,
            ObjectKind::Tensor => Kind::Tensor,
            ObjectKind::Model => Kind::Model,
        }
    }
}

/// A type, and the kind of its objects.
#[pyclass(frozen, module = "lowtide._native")]
pub struct TypeKind {
    pub(crate) class: Py<PyType>,
    pub(crate) kind: ObjectKind,
    pub(crate) subclasses: bool,
}

#[pymethods]
impl TypeKind {
    /// Says of which kind the objects of a type are, and whether those of its subclasses are too.
    #[new]
    #[pyo3(signature = (class_, kind, *, subclasses=false))]
    fn new(class_: Py<PyType>, kind: ObjectKind, subclasses: bool) -> TypeKind {
        TypeKind { class: class_, kind, subclasses }
    }
}
