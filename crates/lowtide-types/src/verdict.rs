//! The verdict of a release: one word, decided by the device's own numbers.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a release in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Verdict {
    /// The device's number confirms the claim: it fell by as much, and nothing of it is alive.
    Released,
    /// Less memory was freed than was claimed.
    Partial,
    /// No memory was freed, and some was claimed; or there was nothing to free.
    NoEffect,
    /// References keep the memory alive; the receipt names them.
    Pinned,
    /// Work was running, so nothing was touched.
    Busy,
    /// The device's number is not available, or other processes moved it: it proves nothing.
    Unverified,
    /// There is no device, so nothing was done.
    NoDevice,
    /// Every rung that applied failed.
    Failed,
}

impl Verdict {
    /// Returns whether the device's number confirms the claim. Nothing is proved without a device.
    pub fn is_proved(self) -> bool {
        self == Verdict::Released
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Released => "released",
            Verdict::Partial => "partial",
            Verdict::NoEffect => "no-effect",
            Verdict::Pinned => "pinned",
            Verdict::Busy => "busy",
            Verdict::Unverified => "unverified",
            Verdict::NoDevice => "no-device",
            Verdict::Failed => "failed",
        })
    }
}
