//! Files of the crate `lowtide-walk`, for the unit tests in them: that crate is linked to an interpreter,
//! which a test program is not. These files need none.
#![allow(
    dead_code,
    unreachable_pub,
    unsafe_code,
    reason = "they are here for their tests, and read and write tables"
)]

#[path = "../../../lowtide-walk/src/walk/object_table.rs"]
mod object_table;
#[path = "../../../lowtide-walk/src/safety/own_memory.rs"]
pub(crate) mod own_memory;
#[path = "../../../lowtide-walk/src/walk/pieces.rs"]
mod pieces;
#[path = "../../../lowtide-walk/src/ask/prefetch.rs"]
pub(crate) mod prefetch;
#[path = "../../../lowtide-walk/src/walk/threads.rs"]
mod threads;

/// The rooms that the files name.
pub(crate) mod ask {
    pub(crate) use super::prefetch;

    /// Stands in for the kinds of objects, which are a class of Python.
    pub(crate) mod kind {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind {
            Dict,
            Namespace,
            Immutable,
            Defaults,
        }
    }
}
pub(crate) mod safety {
    pub(crate) use super::own_memory;
}
