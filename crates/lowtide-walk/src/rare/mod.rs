//! What serves rare programs only: profile functions of other threads, audit hooks, `sys.monitoring`, `atexit`, hooks of autograd nodes.

pub(crate) mod atexit;
pub(crate) mod autograd_hooks;
pub(crate) mod interpreter_state;
