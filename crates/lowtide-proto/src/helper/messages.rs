//! The helper's questions and answers.

use std::time::Duration;

use lowtide_types::{Bytes, Usage, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use super::state::{ProcessState, Step};
use crate::device_bytes::DeviceBytes;
use crate::line::line_of;
use crate::share::{Join, Queue};
use crate::target::Target;

/// The version of the helper's protocol.
pub const VERSION: u32 = 1;

/// The most bytes in a line to or from the helper.
pub const LINE_MOST: usize = 1 << 16;

/// The longest time that a trial takes.
pub const TRIAL_LIMIT: Duration = Duration::from_secs(60);

/// The name of the helper's program.
pub const PROGRAM: &str = "lowtide-helper";

/// Returns the name of the helper's socket in the folder of its user. Numbers of processes mean something
/// in one namespace only, so each has a helper of its own: `pid:[4026531836]`, as `/proc/self/ns/pid`
/// gives it.
///
/// ```
/// let name = lowtide_proto::helper::socket_name("pid:[4026531836]");
/// assert_eq!(name, "helper-4026531836");
/// ```
pub fn socket_name(namespace: &str) -> String {
    let digits: String = namespace.chars().filter(char::is_ascii_digit).collect();
    format!("helper-{digits}")
}

/// The helper's first line on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Greeting {
    /// The version that the helper speaks.
    pub version: u32,
    /// The number of its process. Where tracing is restricted, a target names it as its tracer
    /// (`PR_SET_PTRACER`) before it is suspended.
    pub pid: u32,
}

/// The questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    /// Takes a process off the device.
    Suspend(Suspend),
    /// Brings a process back to the device.
    Resume(Resume),
    /// Asks for the state of a process. Changes nothing.
    State {
        /// The process.
        target: Target,
    },
    /// Asks for the processes that this helper or an earlier one suspended. Changes nothing.
    List,
    /// Asks for the numbers of all GPUs. Changes nothing.
    Devices,
    /// Asks for a trial on a disposable process, unless one with this driver is remembered. A process is not
    /// suspended if its trial failed.
    Try,
    /// Joins those who share the devices; the connection becomes a standing one ([`crate::share`]).
    Join(Join),
    /// Asks who has memory of the devices that are shared, and who waits for it. Changes nothing.
    Queue,
}

/// The question to take a process off the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suspend {
    /// The process.
    pub target: Target,
    /// The longest time that the driver waits for the process's work, in milliseconds. The process runs
    /// on if that passes.
    pub lock_limit_ms: u64,
    /// The longest time until the answer, in milliseconds. A step that takes longer goes on; the answer is
    /// [`Refusal::Unfinished`].
    pub limit_ms: u64,
    /// Whether to go on although the process uses a library that may hang a checkpoint, or a trial failed.
    #[serde(default)]
    pub force: bool,
    /// Whether the asker knows that the libraries of the process do not communicate, loaded or not.
    #[serde(default)]
    pub is_alone: bool,
}

/// The question to bring a process back to the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resume {
    /// The process.
    pub target: Target,
    /// The memory that must be free before it can come back, as its suspend said ([`Suspended::needs`]): for a
    /// helper that does not have that written down.
    #[serde(default)]
    pub needs: Vec<DeviceBytes>,
    /// The memory that the process maps right after it is back, by device. There must be room for it too.
    #[serde(default)]
    pub maps: Vec<DeviceBytes>,
    /// The longest time to wait for room, in milliseconds.
    pub wait_ms: u64,
    /// The longest time for restoring and unlocking, in milliseconds, as in [`Suspend::limit_ms`].
    pub limit_ms: u64,
}

/// The helper's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// The process is off the device.
    Suspended(Suspended),
    /// The process is back on the device and runs.
    Resumed(Resumed),
    /// The state of the process.
    State(ProcessStatus),
    /// The processes that are suspended.
    List {
        /// The processes.
        processes: Vec<ProcessStatus>,
    },
    /// The result of a trial.
    Tried(Trial),
    /// The numbers of all GPUs.
    Devices {
        /// The GPUs.
        devices: Vec<DeviceNumbers>,
    },
    /// The process is a member of those who share. The connection is a standing one from here on.
    Joined,
    /// Who has memory of the devices that are shared, and who waits for it.
    Queue(Queue),
    /// The process is not in the state that was asked for. It is as the reason says.
    Refused {
        /// The reason.
        refusal: Refusal,
    },
}

/// A step that was done, and the time that the driver took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepTime {
    /// The step.
    pub step: Step,
    /// The time, in seconds.
    pub took_s: f64,
}

/// The numbers of one device before and after an operation, as NVML reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceChange {
    /// The UUID of the GPU.
    pub uuid: String,
    /// The memory of the process before; zero if NVML lists it only afterwards, `None` where it never does.
    #[serde(rename = "process_before_bytes")]
    pub process_before: Option<Bytes>,
    /// The memory of the process afterwards; zero if NVML lists it only before, `None` where it never does.
    #[serde(rename = "process_after_bytes")]
    pub process_after: Option<Bytes>,
    /// The device's numbers before.
    pub before: Usage,
    /// The device's numbers afterwards.
    pub after: Usage,
}

/// The result of suspending a disposable process and bringing it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// The version of the driver.
    pub driver: String,
    /// What went wrong; `None` if the process was suspended and came back.
    pub failure: Option<String>,
}

/// The numbers of one device, as NVML reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceNumbers {
    /// The UUID of the GPU.
    pub uuid: String,
    /// The memory of the whole device.
    pub usage: Usage,
    /// The processes on it.
    pub processes: Vec<ProcessBytes>,
}

/// The memory of one process on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessBytes {
    /// The number of the process.
    pub pid: u32,
    /// Its memory; `None` where NVML does not report it.
    pub bytes: Option<Bytes>,
}

/// The result of taking a process off the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suspended {
    /// The process.
    pub target: Target,
    /// Whether it was off the device already, so that nothing was done.
    pub was_suspended: bool,
    /// The steps that were done.
    pub steps: Vec<StepTime>,
    /// The devices that the process used.
    pub devices: Vec<DeviceChange>,
    /// The result in one word.
    pub verdict: Verdict,
    /// The memory that must be free before the process can come back, by device.
    pub needs: Vec<DeviceBytes>,
}

/// The result of bringing a process back to the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resumed {
    /// The process.
    pub target: Target,
    /// Whether it ran already, so that nothing was done.
    pub was_running: bool,
    /// The time that it waited for room, in seconds.
    pub waited_s: f64,
    /// The steps that were done.
    pub steps: Vec<StepTime>,
    /// The devices that the process uses.
    pub devices: Vec<DeviceChange>,
}

/// A process and its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStatus {
    /// The process.
    pub target: Target,
    /// Its state.
    pub state: ProcessState,
    /// The memory that must be free before it can come back, by device; empty where it is not off the
    /// device or nobody wrote it down.
    pub needs: Vec<DeviceBytes>,
}

/// A line with a version: a question to the helper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The version that the asker speaks.
    pub version: u32,
    /// The question itself.
    #[serde(flatten)]
    pub ask: Ask,
}

impl Request {
    /// Returns the line that asks.
    pub fn line(ask: Ask) -> String {
        line_of(&Request { version: VERSION, ask })
    }

    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// [`Refusal::Unreadable`], to be answered.
    pub fn from_line(line: &[u8]) -> Result<Ask, Refusal> {
        let unreadable = |why: String| Refusal::Unreadable { why };
        if line.len() > LINE_MOST {
            return Err(unreadable(format!("the line is longer than {LINE_MOST} bytes")));
        }
        let request: Request =
            serde_json::from_slice(line).map_err(|error| unreadable(error.to_string()))?;
        if request.version != VERSION {
            let found = request.version;
            return Err(unreadable(format!("it has version {found}, and this is {VERSION}")));
        }
        Ok(request.ask)
    }
}

impl Greeting {
    /// Returns the line that greets.
    pub fn line(pid: u32) -> String {
        line_of(&Greeting { version: VERSION, pid })
    }
}

impl Answer {
    /// Returns the line that answers.
    pub fn to_line(&self) -> String {
        line_of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Priority;

    #[test]
    fn a_question_is_read_as_it_was_written() {
        let target = Target { pid: 7, start_ticks: 99 };
        let maps = vec![DeviceBytes { uuid: "GPU-1".to_owned(), bytes: Bytes::mib(3) }];
        let all = [
            Ask::Suspend(Suspend {
                target,
                lock_limit_ms: 1,
                limit_ms: 2,
                force: true,
                is_alone: false,
            }),
            Ask::Resume(Resume { target, needs: maps.clone(), maps, wait_ms: 3, limit_ms: 4 }),
            Ask::State { target },
            Ask::List,
            Ask::Devices,
            Ask::Try,
            Ask::Join(Join {
                command: "python serve.py".to_owned(),
                priority: Priority::Batch,
                wait_ms: 600_000,
                family: Some(target),
            }),
            Ask::Queue,
        ];
        for ask in all {
            let line = Request::line(ask.clone());
            assert_eq!(Request::from_line(line.as_bytes()), Ok(ask), "{line}");
        }
        for wrong in ["", "{}", "{\"version\":2,\"ask\":\"list\"}", "{\"version\":1,\"ask\":\"x\"}"]
        {
            let refused = Request::from_line(wrong.as_bytes());
            assert!(matches!(refused, Err(Refusal::Unreadable { .. })), "{wrong}");
        }
        let long = vec![b' '; LINE_MOST + 1];
        assert!(Request::from_line(&long).is_err());
    }
}
