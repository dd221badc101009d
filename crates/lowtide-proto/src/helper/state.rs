//! The states of a process, and the steps between them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A state of a process, as the driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// The process runs.
    Running,
    /// Its driver calls wait; its memory is on the device.
    Locked,
    /// It is off the device.
    Checkpointed,
    /// The driver could not restore it.
    Failed,
    /// A state that this version does not know.
    Unknown,
}

impl ProcessState {
    /// Returns the word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            ProcessState::Running => "running",
            ProcessState::Locked => "locked",
            ProcessState::Checkpointed => "suspended",
            ProcessState::Failed => "failed",
            ProcessState::Unknown => "unknown",
        }
    }
}

/// A step of the helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The driver waits for the process's work and holds its further calls.
    Lock,
    /// The driver copies the process's device memory to its host memory and frees the device.
    Checkpoint,
    /// The driver puts the process's memory back.
    Restore,
    /// The driver lets the process's calls go on.
    Unlock,
}

impl Step {
    /// Returns the word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Lock => "lock",
            Step::Checkpoint => "checkpoint",
            Step::Restore => "restore",
            Step::Unlock => "unlock",
        }
    }
}
