//! What is asked of a release.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use lowtide_types::{Holder, RungReceipt, Target};

use crate::ladder::Ladder;

/// What to do where work is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Nothing: the verdict is `busy`.
    Refuse,
    /// Wait for it so long, then refuse. New work waits meanwhile.
    Wait(Duration),
}

/// Who is asked, after a climb, who still holds what it was meant to free.
#[derive(Clone)]
pub(crate) struct Witness {
    ask: Arc<dyn Fn() -> Vec<Holder> + Send + Sync>,
    /// Whether whom it names should have let go.
    pins: bool,
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Witness")
    }
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
    /// What it took to find out what to ask for: part of what the release costs.
    pub planned: Duration,
    /// Whether whoever asks writes the log line.
    pub(crate) quiet: bool,
    /// What was done before the release began, and belongs to it.
    pub(crate) done: Option<RungReceipt>,
    /// Who knows what should be gone.
    pub(crate) witness: Option<Witness>,
    /// Whether nobody else's release does what this one is to do.
    pub(crate) alone: bool,
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
            planned: Duration::ZERO,
            quiet: false,
            done: None,
            witness: None,
            alone: false,
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

    /// As a release of its own, which is never answered by the receipt of another that climbs rungs
    /// of the same names: one of its rungs is for it alone.
    #[must_use]
    pub fn alone(mut self) -> Ask {
        self.alone = true;
        self
    }

    /// With a witness, asked after the climb who still holds what this release was meant to free. Whom
    /// it names stands in the receipt, and makes it `pinned`. Such a release is [alone](Ask::alone).
    #[must_use]
    pub fn asking(mut self, witness: Arc<dyn Fn() -> Vec<Holder> + Send + Sync>) -> Ask {
        self.witness = Some(Witness { ask: witness, pins: true });
        self.alone()
    }

    /// With a witness of who uses what is left, for a release that was meant for nobody's memory in
    /// particular. Whom it names stands in the receipt, which is `pinned` only where the release was in
    /// vain.
    #[must_use]
    pub fn asking_users(mut self, witness: Arc<dyn Fn() -> Vec<Holder> + Send + Sync>) -> Ask {
        self.witness = Some(Witness { ask: witness, pins: false });
        self.alone()
    }

    /// Whether whom the witness names should have let go.
    pub(crate) fn pins(&self) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.pins)
    }

    /// Whom the witness names; nobody, where there is none or it panics.
    pub(crate) fn survivors(&self) -> Vec<Holder> {
        let Some(Witness { ask, .. }) = &self.witness else { return Vec::new() };
        catch_unwind(AssertUnwindSafe(|| ask())).unwrap_or_default()
    }

    pub(crate) fn quiet(mut self) -> Ask {
        self.quiet = true;
        self
    }

    pub(crate) fn after(mut self, done: RungReceipt) -> Ask {
        self.done = Some(done);
        self
    }

    // Whether two ask for the same. What has a piece of its own is like nothing else.
    pub(crate) fn is_like(&self, other: &Ask) -> bool {
        let is_plain = |ask: &Ask| ask.done.is_none() && !ask.alone;
        is_plain(self)
            && is_plain(other)
            && (self.to, self.every_rung) == (other.to, other.every_rung)
            && self.ladder.names() == other.ladder.names()
    }
}
