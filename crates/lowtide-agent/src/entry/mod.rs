//! The program's way in: how it finds the driver's functions, and the functions that stand in for them.

mod attributes;
pub(crate) mod handles;
pub(crate) mod hooks;
pub(crate) mod lookup;
pub(crate) mod pointers;
pub(crate) mod trampolines;
mod unknown;

/// The functions that the agent answers or notes itself, by the driver's names.
pub(crate) mod own {
    pub(crate) use super::handles::*;
    pub(crate) use super::hooks::*;
    pub(crate) use super::pointers::*;
}
