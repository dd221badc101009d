//! What is asked of a release.

use std::time::Duration;

use crate::ladder::Ladder;
use crate::receipt::RungReceipt;
use crate::target::Target;

/// What to do where work is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Nothing: the verdict is `busy`.
    Refuse,
    /// Wait for it so long, then refuse. New work waits meanwhile.
    Wait(Duration),
}

/// What is wanted of a release.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What it is for, in the receipt.
    pub name: String,
    /// How.
    pub ladder: Ladder,
    /// When it is enough; every rung once, where there is none.
    pub to: Option<Target>,
    /// Where work is running.
    pub when_busy: WhenBusy,
    /// Whether rungs are climbed though the target is met.
    pub every_rung: bool,
    /// Whether whoever asks writes the log line.
    pub(crate) quiet: bool,
    /// What was done before the release began, and belongs to it.
    pub(crate) done: Option<RungReceipt>,
}

impl Ask {
    /// A release by a ladder, without a target, that waits up to a minute for running work.
    pub fn new(name: impl Into<String>, ladder: Ladder) -> Ask {
        let when_busy = WhenBusy::Wait(Duration::from_secs(60));
        Ask {
            name: name.into(),
            ladder,
            to: None,
            when_busy,
            every_rung: false,
            quiet: false,
            done: None,
        }
    }

    /// Until this is met.
    #[must_use]
    pub fn to(mut self, target: Target) -> Ask {
        self.to = Some(target);
        self
    }

    /// Refusing at once where work is running.
    #[must_use]
    pub fn or_refuse(mut self) -> Ask {
        self.when_busy = WhenBusy::Refuse;
        self
    }

    /// Climbing every rung once, though the target may be met before.
    #[must_use]
    pub fn every_rung(mut self) -> Ask {
        self.every_rung = true;
        self
    }

    pub(crate) fn quiet(mut self) -> Ask {
        self.quiet = true;
        self
    }

    pub(crate) fn after(mut self, done: RungReceipt) -> Ask {
        self.done = Some(done);
        self
    }

    // Whether two ask for the same.
    pub(crate) fn is_like(&self, other: &Ask) -> bool {
        let is_whole = self.done.is_none() && other.done.is_none();
        is_whole
            && (self.to, self.every_rung) == (other.to, other.every_rung)
            && self.ladder.names() == other.ladder.names()
    }
}
