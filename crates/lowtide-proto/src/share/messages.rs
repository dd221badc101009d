//! The messages of a standing connection.

use std::str::FromStr;

use lowtide_types::{Bytes, words};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device_bytes::DeviceBytes;
use crate::line::line_of;
use crate::target::Target;

words! {
    /// A program's class: whose wait is ended first. Waiting raises it.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
    )]
    #[serde(rename_all = "kebab-case")]
    pub enum Priority {
        /// Work that can wait.
        Batch = "batch",
        /// Every program that says nothing else.
        #[default]
        Normal = "normal",
        /// A person waits for the answer.
        Interactive = "interactive",
    }
}

/// A word that is no priority.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no priority; interactive, normal and batch are")]
pub struct ParsePriorityError(String);

impl Priority {
    /// All of them, the lowest first.
    pub const ALL: [Priority; 3] = [Priority::Batch, Priority::Normal, Priority::Interactive];
}

impl FromStr for Priority {
    type Err = ParsePriorityError;

    fn from_str(word: &str) -> Result<Priority, ParsePriorityError> {
        let found = Priority::ALL.into_iter().find(|priority| priority.as_str() == word);
        found.ok_or_else(|| ParsePriorityError(word.to_owned()))
    }
}

/// The question to become a member of those who share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Join {
    /// The command of the program, for people.
    pub command: String,
    /// The class of its needs.
    pub priority: Priority,
    /// The time after which a call of the program stops waiting, in milliseconds. The agent sees to that.
    pub wait_ms: u64,
    /// The process that `lowtide run` became, whose processes take turns together; `None` for one that is apart.
    #[serde(default)]
    pub family: Option<Target>,
}

words! {
    /// A state of a program's device memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum State {
        /// Its memory is on the devices.
        Awake = "awake",
        /// Its gate is closed for an order: submitted work runs, or memory leaves.
        Draining = "draining",
        /// Its memory is off the devices; contexts stay.
        Asleep = "asleep",
        /// It is off the devices, with its contexts.
        Suspended = "suspended",
        /// Its memory comes back.
        Waking = "waking",
    }
}

/// The memory of a program on one device. What it has there now is `resident` + `staying`, and so much of a
/// [`Need`] needs no room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holding {
    /// The UUID of the GPU, as NVML gives it.
    pub uuid: String,
    /// The bytes that a sleep frees now; zero while it is asleep.
    #[serde(rename = "resident_bytes")]
    pub resident: Bytes,
    /// The bytes that a sleep leaves: contexts, modules, memory that cannot sleep. Zero while it is suspended.
    #[serde(rename = "staying_bytes")]
    pub staying: Bytes,
    /// Those of them that a suspend frees; zero where the program cannot be suspended.
    #[serde(rename = "suspendable_bytes")]
    pub suspendable: Bytes,
    /// The bytes that come back with a wake from a sleep.
    #[serde(rename = "back_bytes")]
    pub back: Bytes,
}

/// A program's report about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The state of its memory.
    pub state: State,
    /// Its memory on each device that it uses.
    pub devices: Vec<Holding>,
    /// The time for which nothing has been on the devices and no touch has come, in milliseconds; `None`
    /// where that is less than 20 ms.
    pub idle_ms: Option<u64>,
    /// Whether it captures a graph. Nobody may put it to sleep meanwhile.
    #[serde(default)]
    pub in_capture: bool,
    /// Whether the program has begun to end.
    #[serde(default)]
    pub is_exiting: bool,
    /// The reasons for which its memory cannot leave; empty if it can.
    #[serde(default)]
    pub unmovable: Vec<String>,
    /// The time that its last sleep took, from the end of its work to the end of the sleep, in milliseconds.
    #[serde(default)]
    pub sleep_ms: u64,
    /// The time that its last wake took, in milliseconds.
    #[serde(default)]
    pub wake_ms: u64,
}

/// A call that waits for room. It is sent again, with the same ticket, when what the program has or wants has
/// changed: if it gave way meanwhile, before it says [`ToArbiter::Gave`]. The call keeps its place. Once it is
/// granted a new need changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Need {
    /// The number of the wait, unique on this connection.
    pub ticket: u64,
    /// The call or the occasion, for people: `wake`, `cuMemAlloc`.
    pub call: String,
    /// *All* that the program will have on each device once the call has its memory: what it keeps there, what it
    /// brings back and what it wants more. Devices where it wants nothing more are in it too, if what it has there
    /// would have to come back.
    pub devices: Vec<DeviceBytes>,
    /// Whether the call has left the gate, so that the program may be put to sleep while it waits. A call that
    /// cannot leave (nested, or inside a capture) waits only for programs that can give way now.
    pub can_leave: bool,
}

words! {
    /// A way to make room.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Way {
        /// The program sleeps.
        Sleep = "sleep",
        /// The program leaves the device; it sleeps first.
        Suspend = "suspend",
    }
}

/// An order to make room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Give {
    /// The number of the order.
    pub order: u64,
    /// The way.
    pub way: Way,
    /// The longest time for which the gate stays closed while submitted work runs, in milliseconds.
    pub drain_ms: u64,
    /// The program that needs the room, for people: `process 77 (vllm)`.
    pub for_whom: String,
    /// Whether the process keeps its memory and its gate closed once its work has ended, and says
    /// [`ToArbiter::Held`]: others of its family may not be able to give way.
    #[serde(default)]
    pub holds: bool,
}

/// What a call waits for, for the line on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// The number of the wait.
    pub ticket: u64,
    /// The programs that it waits for and why, with PIDs.
    pub why: String,
    /// A command that ends the wait.
    pub command: Option<String>,
    /// The time until it will probably have its room, in seconds; `None` where nobody can say.
    pub expected_s: Option<f64>,
}

/// A line from an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToArbiter {
    /// The program as it is now.
    Report(Report),
    /// A call waits for room.
    Need(Need),
    /// A call waits no longer, or does not want what was granted.
    Drop {
        /// The number of the wait.
        ticket: u64,
    },
    /// A granted call has its memory. A report comes before it.
    Used {
        /// The number of the wait.
        ticket: u64,
    },
    /// A granted call found no room. It waits on, and keeps its place.
    Failed {
        /// The number of the wait.
        ticket: u64,
    },
    /// The work of a process has ended that holds; its gate is closed, and its memory still there.
    Held {
        /// The number of the order.
        order: u64,
    },
    /// Room was made. A report comes before it.
    Gave {
        /// The number of the order.
        order: u64,
        /// The memory that left, by the driver's numbers.
        freed: Vec<DeviceBytes>,
        /// The time that it took after the program's work had ended, in milliseconds.
        took_ms: u64,
    },
    /// Asks what of a device others have that cannot be moved. The bytes are what the program itself has there.
    Fixed(DeviceBytes),
    /// No room was made. The program runs as before.
    Refused {
        /// The number of the order.
        order: u64,
        /// The reason.
        reason: String,
        /// The time for which the program was held up, in milliseconds.
        tried_ms: u64,
    },
}

/// A line from the arbiter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToAgent {
    /// Asks for a report.
    Look,
    /// Orders the program to make room.
    Give(Give),
    /// Lets a process that holds go on with its order: all of its family hold.
    Leave {
        /// The number of the order.
        order: u64,
    },
    /// Ends the order of a process that holds: one of its family does not give way. It goes on with its work.
    Stay {
        /// The number of the order.
        order: u64,
    },
    /// Lets a call take its memory. Another grant for a call that has taken it says nothing new.
    Grant {
        /// The number of the wait.
        ticket: u64,
        /// The time in which the call has to take it, in milliseconds.
        lease_ms: u64,
    },
    /// Ends a wait without room: the call returns the driver's out-of-memory.
    Refuse {
        /// The number of the wait.
        ticket: u64,
        /// The reason.
        why: String,
    },
    /// Says what a call waits for. Sent again when that changes.
    Wait(Wait),
    /// Says what of a device others have that cannot be moved.
    Fixed(DeviceBytes),
}

impl ToArbiter {
    /// Returns the line to send.
    pub fn to_line(&self) -> String {
        line_of(self)
    }

    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// Those of JSON, and of a message that this version does not know.
    pub fn from_line(line: &[u8]) -> Result<ToArbiter, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

impl ToAgent {
    /// Returns the line to send.
    pub fn to_line(&self) -> String {
        line_of(self)
    }

    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// Those of JSON, and of a message that this version does not know.
    pub fn from_line(line: &[u8]) -> Result<ToAgent, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(uuid: &str, bytes: Bytes) -> DeviceBytes {
        DeviceBytes { uuid: uuid.to_owned(), bytes }
    }

    #[test]
    fn what_an_agent_says_is_read_as_it_was_written() {
        let holding = Holding {
            uuid: "GPU-1".to_owned(),
            resident: Bytes::gib(16),
            staying: Bytes::mib(500),
            suspendable: Bytes::mib(480),
            back: Bytes::gib(14),
        };
        let report = Report {
            state: State::Draining,
            devices: vec![holding],
            idle_ms: Some(20),
            in_capture: true,
            is_exiting: true,
            unmovable: vec!["managed memory".to_owned()],
            sleep_ms: 119,
            wake_ms: 300,
        };
        let devices = vec![on("GPU-1", Bytes::gib(76)), on("GPU-2", Bytes::ZERO)];
        let need =
            Need { ticket: 3, call: "wake".to_owned(), devices: devices.clone(), can_leave: true };
        let all = [
            ToArbiter::Report(report),
            ToArbiter::Need(need),
            ToArbiter::Drop { ticket: 1 },
            ToArbiter::Used { ticket: 2 },
            ToArbiter::Failed { ticket: 3 },
            ToArbiter::Held { order: 4 },
            ToArbiter::Gave { order: 4, freed: devices, took_ms: 119 },
            ToArbiter::Refused { order: 5, reason: "at work".to_owned(), tried_ms: 10_000 },
            ToArbiter::Fixed(on("GPU-1", Bytes::mib(500))),
        ];
        for said in all {
            let line = said.to_line();
            assert_eq!(ToArbiter::from_line(line.as_bytes()).ok(), Some(said), "{line}");
        }
        for wrong in ["", "{}", "{\"say\":\"used\"}", "{\"say\":\"grant\",\"ticket\":1}"] {
            assert!(ToArbiter::from_line(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_arbiter_says_is_read_as_it_was_written() {
        let for_whom = "process 7 (python)".to_owned();
        let wait = Wait {
            ticket: 6,
            why: "process 8 (vllm) works on".to_owned(),
            command: Some("lowtide sleep 8".to_owned()),
            expected_s: Some(1.5),
        };
        let all = [
            ToAgent::Look,
            ToAgent::Give(Give {
                order: 9,
                way: Way::Suspend,
                drain_ms: 10_000,
                for_whom,
                holds: true,
            }),
            ToAgent::Leave { order: 9 },
            ToAgent::Stay { order: 9 },
            ToAgent::Grant { ticket: 6, lease_ms: 5000 },
            ToAgent::Refuse { ticket: 6, why: "the device has less".to_owned() },
            ToAgent::Wait(wait.clone()),
            ToAgent::Wait(Wait { command: None, expected_s: None, ..wait }),
            ToAgent::Fixed(on("GPU-1", Bytes::gib(9))),
        ];
        for said in all {
            let line = said.to_line();
            assert_eq!(ToAgent::from_line(line.as_bytes()).ok(), Some(said), "{line}");
        }
        for wrong in
            ["", "{}", "{\"say\":\"grant\",\"ticket\":1}", "{\"say\":\"used\",\"ticket\":1}"]
        {
            assert!(ToAgent::from_line(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn priorities_are_words_and_have_an_order() {
        for priority in Priority::ALL {
            assert_eq!(priority.as_str().parse(), Ok(priority));
        }
        assert!(Priority::ALL.is_sorted() && Priority::default() == Priority::Normal);
        let error = "high".parse::<Priority>().expect_err("no such word");
        assert_eq!(error.to_string(), "\"high\" is no priority; interactive, normal and batch are");
    }
}
