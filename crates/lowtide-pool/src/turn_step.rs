//! The steps of a sleep, a wake or an allocation, for errors that name one.

use std::fmt;

/// A step of a sleep, a wake or an allocation at which a [`Limit`](crate::Limit) can stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TurnStep {
    /// Waits until another sleep or wake of the same tags, or driver calls of other threads on their
    /// memory, have ended.
    Waiting,
    /// Computes digests and takes host memory for backups.
    Planning,
    /// Copies pages to the host.
    CopyingOut,
    /// Takes memory away from its addresses.
    Unmapping,
    /// Creates memory and puts it under its addresses.
    Mapping,
    /// Copies pages back to the device.
    CopyingIn,
    /// Compares digests with those of the backups.
    Checking,
}

impl fmt::Display for TurnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TurnStep::Waiting => "waiting for other work on the same memory",
            TurnStep::Planning => "planning",
            TurnStep::CopyingOut => "copying to the host",
            TurnStep::Unmapping => "unmapping",
            TurnStep::Mapping => "mapping",
            TurnStep::CopyingIn => "copying to the device",
            TurnStep::Checking => "checking digests",
        })
    }
}
