//! Calls across the border: how they wait, how they are interrupted, and what people write as sizes and times.
//!
//! Three rules prevent deadlocks between the interpreter's lock and ours:
//!
//! - a call from Python detaches from the interpreter before it takes one of our locks;
//! - a call into Python holds none of our locks but the climber's turn and the one that wakes at the gate, which
//!   nobody waits for while attached;
//! - a call of the main thread is done by another thread, so that Ctrl-C is noticed.

pub(crate) mod attached;
pub(crate) mod climb;
pub(crate) mod execute;
pub(crate) mod parse;
pub(crate) mod waiting;
