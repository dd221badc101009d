//! The states of a process, and the steps between them.

use lowtide_types::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

words! {
    /// A state of a process, as the driver reports it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum ProcessState {
        /// The process runs.
        Running = "running",
        /// Its driver calls wait; its memory is on the device.
        Locked = "locked",
        /// It is off the device.
        Checkpointed = "suspended",
        /// The driver could not restore it.
        Failed = "failed",
        /// A state that this version does not know.
        Unknown = "unknown",
    }
}

words! {
    /// A step of the helper.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Step {
        /// The driver waits for the process's work and holds its further calls.
        Lock = "lock",
        /// The driver copies the process's device memory to its host memory and frees the device.
        Checkpoint = "checkpoint",
        /// The driver puts the process's memory back.
        Restore = "restore",
        /// The driver lets the process's calls go on.
        Unlock = "unlock",
    }
}
