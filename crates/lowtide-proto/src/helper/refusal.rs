//! The reasons why the helper did not do what it was asked.

use lowtide_types::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::state::{ProcessState, Step};

/// The reason why the helper did not do what it was asked. Unless it says otherwise, the process is as it
/// was before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(tag = "reason", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Refusal {
    /// The line was no question.
    #[error("the helper could not read the question: {why}")]
    Unreadable {
        /// What is wrong with it.
        why: String,
    },
    /// The driver cannot suspend processes here.
    #[error("the helper cannot use the driver: {why}")]
    NoDriver {
        /// The driver's or the loader's words.
        why: String,
    },
    /// There is no process of this number, or another one has it now.
    #[error("process {pid} has ended")]
    Ended {
        /// The number.
        pid: u32,
    },
    /// The number is a thread's.
    #[error("{pid} is a thread of process {process}; name the process")]
    Thread {
        /// The number of the thread.
        pid: u32,
        /// The number of its process.
        process: u32,
    },
    /// The process is the helper itself.
    #[error("process {pid} is the helper itself")]
    Helper {
        /// The number.
        pid: u32,
    },
    /// The process belongs to another user.
    #[error("process {pid} belongs to user {owner}; the helper runs as user {user}")]
    OtherUser {
        /// The number of the process.
        pid: u32,
        /// Its user.
        owner: u32,
        /// The helper's user.
        user: u32,
    },
    /// The process may not be traced by processes of its own user.
    #[error(
        "process {pid} is not dumpable (it changed its user without starting a program, or asked for that), so the \
         driver may not attach to it"
    )]
    NotDumpable {
        /// The number of the process.
        pid: u32,
    },
    /// The process is stopped; a lock would hang until it continues.
    #[error("process {pid} is stopped; continue it first (kill -CONT {pid})")]
    Stopped {
        /// The number of the process.
        pid: u32,
    },
    /// The process uses a library that may hang a checkpoint.
    #[error(
        "process {pid} uses {library}: a checkpoint may hang while it communicates; end its communication first, or \
         force it"
    )]
    Library {
        /// The number of the process.
        pid: u32,
        /// The name of the library.
        library: String,
    },
    /// The process uses the GPU through the multi-process service, which no checkpoint supports.
    #[error(
        "process {pid} is a client of the multi-process service (MPS), which the driver cannot suspend"
    )]
    Mps {
        /// The number of the process.
        pid: u32,
    },
    /// The GPU is partitioned, which no checkpoint supports.
    #[error("GPU {device} is partitioned (MIG), and the driver cannot suspend processes there")]
    Mig {
        /// The UUID of the GPU.
        device: String,
    },
    /// A disposable process could not be suspended with this driver.
    #[error(
        "driver {driver} could not suspend a disposable process, so no other is tried: {why}; `lowtide doctor` tries \
         again"
    )]
    Tried {
        /// The version of the driver.
        driver: String,
        /// What went wrong.
        why: String,
    },
    /// The process does not use CUDA.
    #[error("process {pid} has nothing on a device")]
    NotOnDevice {
        /// The number of the process.
        pid: u32,
    },
    /// The operating system did not let the driver attach to the process.
    #[error("the operating system did not let the driver attach to process {pid}: {why}")]
    Forbidden {
        /// The number of the process.
        pid: u32,
        /// What is known about the reason, and what to do.
        why: String,
    },
    /// The work of the process was not done in time. The process runs.
    #[error("process {pid} was at work on the device for longer than {limit_ms} ms; it runs on")]
    Busy {
        /// The number of the process.
        pid: u32,
        /// The time that the driver waited.
        limit_ms: u64,
    },
    /// Another operation on this process is under way.
    #[error("another operation on process {pid} is under way")]
    UnderWay {
        /// The number of the process.
        pid: u32,
    },
    /// An operation on the same device is past its limit and still running.
    #[error(
        "GPU {device} is taken: the {} of process {pid} has been running for {} s; it is left alone, and nothing else is \
         suspended or resumed there until it ends",
        step.as_str(),
        ran_ms / 1000
    )]
    DeviceTaken {
        /// The UUID of the GPU.
        device: String,
        /// The process that the operation is on.
        pid: u32,
        /// The step that does not end.
        step: Step,
        /// The time since it began.
        ran_ms: u64,
    },
    /// Another user's helper, or one in another container, was at work on the device for too long.
    #[error("GPU {device} was taken by another helper for longer than {limit_ms} ms")]
    MachineTaken {
        /// The UUID of the GPU.
        device: String,
        /// The time that was waited.
        limit_ms: u64,
    },
    /// A step did not end in time. It is left alone and may still end.
    #[error(
        "the {} of process {pid} did not end within {limit_ms} ms; it is left alone and may still end",
        step.as_str()
    )]
    Unfinished {
        /// The number of the process.
        pid: u32,
        /// The step.
        step: Step,
        /// The limit.
        limit_ms: u64,
    },
    /// The process is not in a state in which this can be done.
    #[error("process {pid} is {}", state.as_str())]
    WrongState {
        /// The number of the process.
        pid: u32,
        /// Its state.
        state: ProcessState,
    },
    /// There is no room on the device for the process to come back. It stays suspended.
    #[error("no room on GPU {device}: {needed} needed, {free} free; used by {holders}")]
    NoRoom {
        /// The UUID of the GPU.
        device: String,
        /// The memory that must be free.
        #[serde(rename = "needed_bytes")]
        needed: Bytes,
        /// The memory that is free.
        #[serde(rename = "free_bytes")]
        free: Bytes,
        /// The processes that use the rest.
        holders: String,
    },
    /// The machine has too little host memory for the copy that the driver makes.
    #[error("not enough host memory for the driver's copy: {needed} needed, {left} left")]
    NoHostMemory {
        /// The size of the copy.
        #[serde(rename = "needed_bytes")]
        needed: Bytes,
        /// The memory that is left.
        #[serde(rename = "left_bytes")]
        left: Bytes,
    },
    /// The driver refused a step, and the process was left in this state.
    #[error("the driver refused to {} process {pid}: {name} ({code}); it is {} now", step.as_str(), state.as_str())]
    Driver {
        /// The number of the process.
        pid: u32,
        /// The step.
        step: Step,
        /// The driver's code.
        code: i32,
        /// The driver's name for the code.
        name: String,
        /// The state afterwards.
        state: ProcessState,
    },
    /// The helper could not write its journal, so it began nothing.
    #[error("the helper could not write its journal: {why}")]
    NoJournal {
        /// The reason.
        why: String,
    },
    /// The helper is broken.
    #[error("the helper failed: {why}")]
    Broken {
        /// The reason.
        why: String,
    },
}
