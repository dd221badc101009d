//! The helper: a resident process that takes other processes of its user off the device and brings them
//! back, with the driver's process checkpoint.
//!
//! Whoever needs it starts it (`lowtide_proto::helper`). It leaves its starter at once, listens on a socket
//! in the folder of this user's agents, and ends when it has not been used for a while and nobody is
//! suspended. There is one for each user and PID namespace.
//!
//! | folder | holds |
//! |---|---|
//! | `process` | a process and its devices, as the kernel, the driver and NVML report them |
//! | `operation` | suspending and resuming, step by step |
//! | `server` | the resident process: its start, its socket and its connections |
//! | [`share`] | the arbiter: whose memory is on a device that is too small for all |
//! | [`rungs`] | hooks for the rungs `suspend` and `exit` |
//!
//! What always holds:
//! - A process is written to the journal before it is locked. Whatever moment the helper is killed at, the next
//!   one knows whom to finish or to bring back.
//! - The way back to running depends on no disk and no new file, thread or process: a journal that cannot be
//!   written is written later. Once a checkpoint has succeeded, the answer is not a refusal.
//! - No step is cancelled. An operation past its limit is left alone, and its devices refuse others by name.
//! - One place in the folder, one arbiter: a helper that lost its place lets those who share go.
//! - A restore begins only while what the process needs is free, under a lock of the machine.

mod operation;
mod process;
pub mod rungs;
mod server;
pub mod share;

pub use self::operation::journal::{Asked, Record, records, unreadable};
pub use self::operation::trial;
pub use self::process::handle::{about_tracing, is_stopped};
pub use self::server::program::main;
