//! What an agent is asked, and what it answers.

use std::fmt;

use lowtide_types::{Bytes, DeviceId, Ledger, Receipt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::helper;
use crate::line::line_of;

/// The version of this protocol.
pub const VERSION: u32 = 1;

/// What works without a GPU, for whoever is told that nothing can be freed.
pub const WITHOUT_GPU: &str = "LOWTIDE_DEVICE=cpu has the Python package free host memory, and a `lowtide.Worker` ends with its memory";

/// The most bytes in a line that asks.
pub const LINE_MOST: usize = 4096;

/// A question to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The version that the asker speaks.
    pub version: u32,
    /// The question itself.
    #[serde(flatten)]
    pub ask: Ask,
}

/// The questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    /// Asks what the process has on its devices. Changes nothing.
    Status,
    /// Puts the process to sleep.
    Sleep,
    /// Wakes the process.
    Wake,
    /// Takes the process off its devices, with its context. It sleeps first.
    Suspend,
    /// Brings a suspended process back to its devices. It sleeps on until it is woken.
    Resume,
    /// Frees device memory of the process; it sleeps only if that is needed for the target.
    Release {
        /// The most that the process may use afterwards on each device; `None` for as little as possible.
        #[serde(rename = "to_bytes", default, skip_serializing_if = "Option::is_none")]
        to: Option<Bytes>,
    },
    /// Has a Python program answer the question that waits for it (`lowtide why`).
    Why,
    /// Keeps the connection for an agent that opens memory of the process. Not for people.
    Share,
}

/// An agent's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// What the process has on its devices.
    Status(Status),
    /// The result of going to sleep, one receipt for each context that has memory.
    Slept {
        /// The receipts.
        receipts: Vec<Receipt>,
    },
    /// The result of a release, one receipt for each context that has memory.
    Released {
        /// The receipts.
        receipts: Vec<Receipt>,
    },
    /// The process sleeps already; nothing was done.
    Asleep,
    /// The process is awake.
    Woken(Woken),
    /// A thread of the program will answer at the socket of the question, once it has the interpreter's lock.
    Asked,
    /// The process stays asleep, because its memory does not fit on the device.
    NoRoom(NoRoom),
    /// The process is off its devices.
    Suspended {
        /// The receipts of the sleep before it; empty if the process slept already.
        receipts: Vec<Receipt>,
        /// What the helper did.
        suspended: helper::Suspended,
    },
    /// The process is on its devices again, and sleeps on.
    Resumed(Resumed),
    /// Nothing was done.
    Refused {
        /// The reason.
        reason: String,
    },
}

/// What a process has on its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The number of the process.
    pub pid: u32,
    /// The version of the agent.
    pub agent: String,
    /// Whether its memory is off the devices.
    pub is_asleep: bool,
    /// Whether it is off the devices altogether; the rest is then as it was before.
    #[serde(default)]
    pub is_suspended: bool,
    /// The time without a touch after which it falls asleep, in seconds; `None` if it does not by
    /// itself.
    pub idle_s: Option<f64>,
    /// The same time as it is now, in seconds: it grows when the program comes back soon after a sleep.
    #[serde(default)]
    pub quiet_s: Option<f64>,
    /// The time after which it leaves its devices by itself if nothing uses them, in seconds; `None` where that is not
    /// due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_s: Option<f64>,
    /// What idleness leads to: `sleep` or `suspend`; `None` if to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_to: Option<String>,
    /// What failed last, and when, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// To which other processes on its devices it gives way before it falls asleep by itself, in words; or why
    /// it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives_way: Option<String>,
    /// Whether it takes turns with others (`lowtide run --share`).
    #[serde(default)]
    pub shares: bool,
    /// The time for which a call waits for room on the device before it fails, in seconds.
    #[serde(default)]
    pub wake_timeout_s: f64,
    /// The number of calls so far that used a device.
    pub touches: u64,
    /// The memory that can sleep, by context.
    pub contexts: Vec<ContextStatus>,
    /// The limits of its memory, by device.
    #[serde(default)]
    pub limits: Vec<LimitStatus>,
    /// All memory in use on each device where it has memory that can sleep, broken down.
    #[serde(default)]
    pub ledgers: Vec<Ledger>,
    /// Memory that stays on the device while the process sleeps.
    pub staying: Vec<Staying>,
    /// The reasons why the process cannot sleep; empty if it can.
    pub obstacles: Vec<String>,
}

/// What a process may have on a device, and what it is told (`lowtide run --memory`, `--share`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitStatus {
    /// The device.
    pub device: DeviceId,
    /// What it has there, asleep or not.
    #[serde(rename = "own_bytes")]
    pub own: Bytes,
    /// What other processes of its `run` have there, with which it shares its cap.
    #[serde(rename = "family_bytes", default)]
    pub kin: Bytes,
    /// The most that it may have.
    #[serde(rename = "cap_bytes")]
    pub cap: Bytes,
    /// What it is told that there is for it, since its first question; `None` before, and where it does not share.
    #[serde(rename = "life_bytes", skip_serializing_if = "Option::is_none", default)]
    pub life: Option<Bytes>,
    /// The free memory that it is told.
    #[serde(rename = "told_free_bytes")]
    pub told_free: Bytes,
    /// The free memory by the driver's number.
    #[serde(rename = "free_bytes")]
    pub free: Bytes,
}

/// The memory of one context that can sleep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextStatus {
    /// The device.
    pub device: DeviceId,
    /// The number of allocations.
    pub blocks: u64,
    /// The sum of their sizes.
    pub bytes: Bytes,
    /// The bytes of them that are on the device now.
    #[serde(rename = "on_device_bytes")]
    pub on_device: Bytes,
}

/// Memory that stays on the device while the process sleeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Staying {
    /// How it was taken.
    pub what: String,
    /// The number of allocations that are alive.
    pub count: u64,
    /// The sum of their sizes.
    pub bytes: Bytes,
}

/// The result of waking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Woken {
    /// The bytes that came back; zero if the process was awake.
    pub bytes: Bytes,
    /// The time that it took, in seconds.
    pub took_s: f64,
}

/// The result of bringing a suspended process back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resumed {
    /// The time that it took, in seconds; zero if the process was not suspended.
    pub took_s: f64,
    /// What the driver did, and how long it took.
    pub steps: Vec<helper::StepTime>,
}

/// The reason why a process cannot wake now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoRoom {
    /// The device that is full.
    pub device: DeviceId,
    /// The memory that comes back with a wake.
    #[serde(rename = "needed_bytes")]
    pub needed: Bytes,
    /// The memory that is free.
    #[serde(rename = "free_bytes")]
    pub free: Bytes,
    /// The processes that use the rest.
    pub holders: String,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoRoom { device, needed, free, holders } = self;
        write!(f, "no room on {device}: {needed} needed, {free} free; used by {holders}")
    }
}

/// The reason why a line is no question.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The line is too long.
    #[error("the line is longer than {LINE_MOST} bytes")]
    TooLong,
    /// The line is something else.
    #[error("the line is no request: {0}")]
    Format(#[from] serde_json::Error),
    /// The line is a request of another version.
    #[error("the request has version {version}, and this agent speaks version {VERSION}")]
    Version {
        /// The version that it has.
        version: u32,
    },
}

impl Request {
    /// Makes a request of this version.
    pub fn new(ask: Ask) -> Request {
        Request { version: VERSION, ask }
    }

    /// Returns the line to send.
    pub fn to_line(&self) -> String {
        line_of(self)
    }

    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn from_line(line: &[u8]) -> Result<Request, Unreadable> {
        if line.len() > LINE_MOST {
            return Err(Unreadable::TooLong);
        }
        let request: Request = serde_json::from_slice(line)?;
        if request.version == VERSION {
            Ok(request)
        } else {
            Err(Unreadable::Version { version: request.version })
        }
    }
}

impl Answer {
    /// Returns the line to send.
    pub fn to_line(&self) -> String {
        line_of(self)
    }
}

/// The name of every agent's socket begins so.
pub const SOCKET: &str = "agent-";

/// Returns the name of an agent's socket, in the folder of its user. Processes in different containers
/// may have the same number, so the name has their namespace too: `pid:[4026531836]`, as
/// `/proc/thread-self/ns/pid` gives it, also where the first thread has ended.
///
/// ```
/// let name = lowtide_proto::socket_name("pid:[4026531836]", 77);
/// assert_eq!(name, "agent-4026531836-77");
/// ```
pub fn socket_name(namespace: &str, pid: u32) -> String {
    let digits: String = namespace.chars().filter(char::is_ascii_digit).collect();
    format!("{SOCKET}{digits}-{pid}")
}
