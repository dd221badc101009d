//! The plain data of lowtide: what its parts tell each other, other processes and people.
//!
//! Nothing here calls a driver, the operating system or a clock. Every type can be written as JSON,
//! read back and described by a JSON schema, so that the protocol between processes, the command
//! line and the Python package speak of the same things.
//!
//! | type | meaning |
//! |---|---|
//! | [`Bytes`] | a size; printed in MiB |
//! | [`DeviceId`] | the name of a device: `host`, `cuda:0`, or a framework's name for its own |
//! | [`Usage`] | what a device reports: total, free, reserved |
//! | [`Reading`] | the device's and the allocators' numbers at one moment |
//! | [`Ledger`] | a breakdown of all device memory in use |
//! | [`RungName`] | one way to free memory |
//! | [`Receipt`] | the result of a release: its [`Claim`] and its [`Verdict`] |
//! | [`PoolSnapshot`] | a pool's numbers, by tag; [`SleepReport`] and [`WakeReport`] are results |
//! | [`Tally`] | counters and histograms of what a process did |
//! | [`Holder`] | a reference that keeps memory alive |
//!
//! Names that others chose are printed through [`printable()`].
//!
//! [`variables`] reads the environment, for all crates.

mod bytes;
mod claim;
mod device_id;
mod holder;
mod kernel_text;
mod ledger;
mod pool;
mod printable;
mod reading;
mod receipt;
mod receipt_text;
mod rung;
mod tally;
mod target;
mod thread_marks;
mod usage;
pub mod variables;
mod verdict;
mod words;

pub use bytes::{Bytes, ParseBytesError, signed};
pub use claim::{Claim, ClaimBasis};
pub use device_id::{DeviceId, DeviceName, ParseDeviceIdError};
pub use holder::Holder;
pub use kernel_text::kernel_text;
pub use ledger::{Ledger, LedgerKind, LedgerLine};
pub use pool::{LostBlock, Phase, PoolSnapshot, SleepPolicy, SleepReport, TagSnapshot, WakeReport};
pub use printable::{is_printable, printable, printable_bytes, printable_lines};
pub use reading::{Reading, Settling};
pub use receipt::{Receipt, RungReceipt};
pub use receipt_text::Detailed;
pub use rung::{RungName, RungOutcome, Touch};
pub use tally::{Act, BOUNDS_S, Moved, Tally, Times};
pub use target::Target;
pub use thread_marks::{ThreadMark, ThreadMarks};
pub use usage::{Source, Usage};
pub use verdict::Verdict;
