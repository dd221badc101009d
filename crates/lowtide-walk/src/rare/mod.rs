//! What serves rare programs only: profile functions of other threads, audit hooks, `sys.monitoring`, `atexit`, hooks
//! of autograd's nodes. Python shows none of them, so they are read from the state of the interpreter.
//!
//! Seen on Python 3.10 to 3.14 (`atexit`: an array of calls up to 3.13, a list from 3.14 on) and torch 2.1 to 2.15.
//! Where something is not as expected, nothing is found, and the answer is what it is without this room.

pub(crate) mod atexit;
pub(crate) mod autograd_hooks;
pub(crate) mod interpreter_state;
pub(crate) mod process_memory;

pub use atexit::exit_calls;
pub use autograd_hooks::{NodeHooks, hook_lists};
pub use interpreter_state::{kept_by, module_state, thread_state};
