//! The queue of those who share, for `lowtide status`.

use lowtide_types::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::messages::{Priority, State};
use crate::device_bytes::DeviceBytes;

/// Who has memory of the devices, and who waits for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// The devices on which a program that shares has memory or waits for it.
    pub devices: Vec<QueueDevice>,
    /// The programs that share, those that nobody can move, and those that do not share.
    pub holders: Vec<Holder>,
    /// The calls that wait, in the order in which they will have their room.
    pub waiters: Vec<Waiter>,
}

/// The memory of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueDevice {
    /// The UUID of the GPU.
    pub uuid: String,
    /// The most that programs can have there.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Bytes,
    /// The driver's free number.
    #[serde(rename = "free_bytes")]
    pub free: Bytes,
    /// Memory of it that is granted and not taken yet.
    #[serde(rename = "granted_bytes")]
    pub granted: Bytes,
}

/// A program that has memory on a device, or had some before it gave way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    /// Its process.
    pub pid: u32,
    /// Its command.
    pub command: String,
    /// The process that `lowtide run` became, where several processes of it take turns together.
    pub family: Option<u32>,
    /// Its class; `None` where it does not share.
    pub priority: Option<Priority>,
    /// The state of its memory; `None` where it does not share.
    pub state: Option<State>,
    /// What it has on each device.
    pub devices: Vec<DeviceBytes>,
    /// The time since its memory last came to the device or left it, in seconds; `None` where it does not share.
    pub since_s: Option<f64>,
    /// The time for which it has been idle, in seconds; `None` where it is busy or does not share.
    pub idle_s: Option<f64>,
    /// The time for which programs of its class cannot make it give way, in seconds; zero if they can now.
    pub protected_s: f64,
    /// The reason for which it cannot give way; `None` if it can.
    pub unmovable: Option<String>,
}

/// A call that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiter {
    /// Its process.
    pub pid: u32,
    /// The command of its program.
    pub command: String,
    /// The call or the occasion: `wake`, `cuMemAlloc`.
    pub call: String,
    /// The class that it has by now.
    pub class: Priority,
    /// The room that it waits for on each device.
    pub devices: Vec<DeviceBytes>,
    /// The time for which it has waited, in seconds.
    pub since_s: f64,
    /// The time after which its program stops waiting, in seconds from its beginning.
    pub limit_s: f64,
    /// Whether its room is granted, and it takes it now.
    pub is_granted: bool,
    /// The time until it will probably have its room, in seconds; `None` where nobody can say.
    pub expected_s: Option<f64>,
    /// The programs that it waits for and why, with PIDs.
    pub why: String,
}
