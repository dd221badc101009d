//! The verdict of a release: one word, decided by the device's own numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words;

words! {
    /// The result of a release in one word.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    pub enum Verdict {
        /// The device's number confirms the claim: it fell by as much, and nothing of it is alive.
        Released = "released",
        /// Less memory was freed than was claimed.
        Partial = "partial",
        /// No memory was freed, and some was claimed; or there was nothing to free.
        NoEffect = "no-effect",
        /// References keep the memory alive; the receipt names them.
        Pinned = "pinned",
        /// Work was running, so nothing was touched.
        Busy = "busy",
        /// The device's number is not available, or other processes moved it: it proves nothing.
        Unverified = "unverified",
        /// There is no device, so nothing was done.
        NoDevice = "no-device",
        /// Every rung that applied failed.
        Failed = "failed",
    }
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 8] = [
        Verdict::Released,
        Verdict::Partial,
        Verdict::NoEffect,
        Verdict::Pinned,
        Verdict::Busy,
        Verdict::Unverified,
        Verdict::NoDevice,
        Verdict::Failed,
    ];

    /// Returns whether the device's number confirms the claim. Nothing is proved without a device.
    pub fn is_proved(self) -> bool {
        self == Verdict::Released
    }
}
