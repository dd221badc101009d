//! What the helper is asked, and what it answers.
//!
//! The helper is a resident process of one user. It takes other processes off the device and brings them
//! back with the driver's process checkpoint. It knows only processes: whoever asks has closed its gate and
//! put its memory to sleep before, and wakes it afterwards.
//!
//! A connection begins with the helper's [`Greeting`]. Then each question is one line and is answered with
//! one line, in order. A question that takes long does not hold up other connections.
//!
//! | question | what the helper does |
//! |---|---|
//! | [`Ask::Suspend`] | locks and checkpoints the process, and proves that it left the device |
//! | [`Ask::Resume`] | waits for room, restores and unlocks the process |
//! | [`Ask::State`] | asks the driver for the state of the process |
//! | [`Ask::List`] | lists the processes that it suspended |
//! | [`Ask::Try`] | suspends a disposable process, unless that was done with this driver |
//! | [`Ask::Devices`] | reads all GPUs, which a suspended process cannot do itself |
//! | [`Ask::Join`] | makes the process a member of those who share ([`crate::share`]) |
//! | [`Ask::Queue`] | lists who has memory of the devices that are shared, and who waits for it |

mod client;
mod messages;
mod refusal;
mod state;

pub use self::client::{Connection, Helper, HelperError, is_privileged};
pub use self::messages::*;
pub use self::refusal::Refusal;
pub use self::state::{ProcessState, Step};
pub use crate::device_bytes::DeviceBytes;
pub use crate::target::{ParseTargetError, Target};
