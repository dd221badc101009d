//! The helper: a resident process that takes other processes of its user off the device and brings them
//! back, with the driver's process checkpoint.
//!
//! Whoever needs it starts it (`lowtide_proto::helper`). It leaves its starter at once, listens on a socket
//! in the folder of this user's agents, and ends when it has not been used for a while and nobody is
//! suspended. There is one for each user and PID namespace.
//!
//! | file | holds |
//! |---|---|
//! | `program` | the start: variables, leaving the starter, one instance |
//! | `serving` | the socket, and a thread for each connection |
//! | `desk` | what is under way, so that one operation at a time is at work on a device |
//! | `operation` | suspending and resuming, step by step |
//! | `driver` | the driver's calls, as steps |
//! | `devices` | the memory of devices and processes, as NVML reports it |
//! | `room` | whether a process may come back, and waiting for that |
//! | `inspection` | whether a process may be suspended at all |
//! | `journal` | what was begun, written before each step |
//! | `recovery` | what an earlier helper left unfinished |
//! | [`rungs`] | hooks for the rungs `suspend` and `exit` |
//! | [`trial`] | whether this driver suspends processes, found out on a disposable one |
//! | `locks` | locks on files, for one instance and for the machine |
//!
//! What always holds:
//! - A step is written to the journal before the driver is asked. Whatever moment the helper is killed at,
//!   the next one knows whom to finish or to bring back.
//! - No step is cancelled. An operation past its limit is left alone, and its devices refuse others by name.
//! - A restore begins only while what the process needs is free, under a lock of the machine.

mod desk;
mod devices;
mod driver;
mod inspection;
mod journal;
mod locks;
mod operation;
mod program;
mod recovery;
mod room;
pub mod rungs;
mod serving;
pub mod trial;

pub use self::journal::{Asked, Record, records};
pub use self::program::main;
