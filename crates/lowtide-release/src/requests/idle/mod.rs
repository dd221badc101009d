//! The idle policy: decides when memory that nobody uses is freed by itself.
//!
//! It only decides; the caller releases. A release needs all conditions of R26: the policy is switched
//! on, a task has finished, no other is active, and there is memory to free. On top of these there is
//! a quiet time, which adapts: if tasks come back soon after a release, the freed memory had to be
//! loaded again, so the quiet time doubles; if the memory was left alone for long, it halves again.
//!
//! `options` is what people configure; `policy` decides.

mod options;
mod policy;

pub use options::{IdleOptions, ParseIdleError, parse_time};
pub use policy::{Decision, Idle, Task, Ticket};
