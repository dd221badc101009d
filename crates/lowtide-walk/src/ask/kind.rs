//! The kinds of objects that the walk tells apart.

/// The kinds of objects that the walk tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// `sys.modules`, which nobody cuts.
    Modules,
    Module,
    /// The dict of a module.
    Namespace,
    /// The dict of a class.
    ClassDict,
    Dict,
    /// A list, a set, a deque.
    Container,
    /// A tuple, a frozenset: it cannot be changed.
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
    Class,
    Function,
    Cell,
    Frame,
    /// A suspended generator or coroutine.
    Generator,
    Exception,
    /// An `lru_cache`.
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
