//! The idle policy: decides when memory that nobody uses is freed by itself.
//!
//! It only decides; the caller releases. A release needs all conditions of R26: the policy is switched
//! on, a task has finished, no other is active, and there is memory to free. On top of these there is
//! a quiet time, which adapts: if tasks come back soon after a release, the freed memory had to be
//! loaded again, so the quiet time doubles; if the memory was left alone for long, it halves again.
//!
//! A release is also put off while another process on the device is starting: it may compute what it uses
//! from the fall of the free number, and would fail or take too little (vLLM does).
//!
//! `options` is what people configure; `policy` decides; `give_way` knows for whom a release is put off.

mod give_way;
mod options;
mod policy;

pub use options::{IdleOptions, ParseIdleError, parse_time};
pub use policy::{Decision, Idle, Task, Ticket};
