//! A request: what a caller asks of a release.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use lowtide_types::{Bytes, Holder, Reading, Receipt, RungReceipt, Target, Verdict};

use crate::callbacks::{Climb, GoOn};
use crate::fork;
use crate::rungs::Ladder;

/// What a release does when work is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Does nothing; the verdict is `busy`.
    Refuse,
    /// Waits this long for the work to end, then refuses. New work waits meanwhile.
    Wait(Duration),
}

/// Asked after a climb for the references that still hold memory.
#[derive(Clone)]
pub(crate) struct Witness {
    ask: Arc<dyn Fn() -> Vec<Holder> + Send + Sync>,
    /// Whether the holders that it names should have let go.
    pins: bool,
}

/// How the claim of a release without a target is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claiming {
    /// By the ladder: the memory of the owners if it drops them, otherwise cached memory.
    ByLadder,
    /// The caller has counted the memory of what it drops.
    Owned(Bytes),
    /// The memory above an earlier reading. Growth outside the allocators may be that of libraries,
    /// which load once what no release can take back.
    Level { level: Reading, may_be_libraries: bool },
}

/// How much a release may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thrift {
    /// Nothing.
    None,
    /// A full collection, if the collectors say that it would find nothing.
    ByNeed,
    /// The same, also if they cannot tell, while another one would take too large a share of the time.
    ByTime,
}

/// What a release writes to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logging {
    /// One line.
    Line,
    /// One line, and the lines Before, After and Freed (R32).
    Summary,
    /// Nothing: the caller writes the line.
    ByCaller,
}

/// What a caller asks of a release.
#[derive(Clone)]
pub struct Request {
    /// The purpose of the release, for the receipt.
    pub name: String,
    /// The ladder to climb.
    pub ladder: Ladder,
    /// The target; without one, every rung is climbed once.
    pub to: Option<Target>,
    /// What to do when work is running.
    pub when_busy: WhenBusy,
    /// Whether every rung is climbed even if the target is met before.
    pub every_rung: bool,
    /// The time that planning took. It counts as part of the release.
    pub planned: Duration,
    pub(crate) logging: Logging,
    pub(crate) thrift: Thrift,
    pub(crate) claiming: Claiming,
    /// A rung that was climbed before the release began and belongs to it.
    pub(crate) done: Option<RungReceipt>,
    pub(crate) witness: Option<Witness>,
    pub(crate) alone: bool,
    pub(crate) go_on: Option<GoOn>,
    pub(crate) within: Option<Climb>,
}

impl Request {
    /// Creates a request without a target, which waits up to a minute for running work.
    pub fn new(name: impl Into<String>, ladder: Ladder) -> Request {
        Request {
            name: name.into(),
            ladder,
            to: None,
            when_busy: WhenBusy::Wait(Duration::from_secs(60)),
            every_rung: false,
            planned: Duration::ZERO,
            logging: Logging::Line,
            thrift: Thrift::None,
            claiming: Claiming::ByLadder,
            done: None,
            witness: None,
            alone: false,
            go_on: None,
            within: None,
        }
    }

    /// Sets the target.
    #[must_use]
    pub fn to(mut self, target: Target) -> Request {
        self.to = Some(target);
        self
    }

    /// Sets the claim: the memory of the objects that this release drops, as the caller counted it.
    /// Without it, a ladder that drops owners claims everything that the owners measure and the
    /// allocators have, and any other ladder the cached memory. A target is a claim of its own.
    #[must_use]
    pub fn claiming(mut self, owned: Bytes) -> Request {
        self.claiming = Claiming::Owned(owned);
        self
    }

    /// Collects in full only where that may free something: not again while nothing was allocated or
    /// freed, and the collectors have nothing to find ([`Hook::finding_nothing_if`]). Such a release
    /// reads the numbers, and says in its receipt what it left out.
    ///
    /// [`Hook::finding_nothing_if`]: crate::Hook::finding_nothing_if
    #[must_use]
    pub fn by_need(mut self) -> Request {
        self.thrift = Thrift::ByNeed;
        self
    }

    /// Refuses at once if work is running.
    #[must_use]
    pub fn or_refuse(mut self) -> Request {
        self.when_busy = WhenBusy::Refuse;
        self
    }

    /// Climbs every rung once, even if the target is met before.
    #[must_use]
    pub fn every_rung(mut self) -> Request {
        self.every_rung = true;
        self
    }

    /// Never shares the receipt of another release that climbs rungs of the same names, because one
    /// of its rungs is its own.
    #[must_use]
    pub fn alone(mut self) -> Request {
        self.alone = true;
        self
    }

    /// Sets a witness, asked after the climb for the references that still hold what this release was
    /// meant to free. They stand in the receipt and make it `pinned`. Such a release is
    /// [alone](Request::alone).
    #[must_use]
    pub fn asking(mut self, witness: Arc<dyn Fn() -> Vec<Holder> + Send + Sync>) -> Request {
        self.witness = Some(Witness { ask: witness, pins: true });
        self.alone()
    }

    /// Sets a witness of the users of the memory that is left, for a release that was not meant for
    /// anybody's memory in particular. They stand in the receipt, which is `pinned` only if nothing
    /// was freed. Such a release is [alone](Request::alone).
    #[must_use]
    pub fn asking_users(mut self, witness: Arc<dyn Fn() -> Vec<Holder> + Send + Sync>) -> Request {
        self.witness = Some(Witness { ask: witness, pins: false });
        self.alone()
    }

    /// Stops the release at its next safe point, between rungs or within a rung that asks, when
    /// `go_on` returns false. What was freed by then stays free. Such a release is
    /// [alone](Request::alone).
    #[must_use]
    pub fn go_on_while(mut self, go_on: impl Fn() -> bool + Send + Sync + 'static) -> Request {
        self.go_on = Some(Arc::new(go_on));
        self.alone()
    }

    /// Says that a rung or a hook of a climb asks for this release, on whatever thread. The releaser of
    /// that climb refuses it with the verdict `busy`, because it would wait for itself.
    #[must_use]
    pub fn within(mut self, climb: &Climb) -> Request {
        self.within = Some(climb.clone());
        self
    }

    /// Creates the receipt of a release in a forked child. Nothing of the parent's is asked for it, and it
    /// is not logged: a subscriber may have a lock of its own.
    pub(crate) fn refused_in_child(&self) -> Receipt {
        self.refused(Verdict::Failed, fork::refusal("releaser"))
    }

    /// Creates the receipt of a release that code asked for while it was asked for its own number. It is
    /// not asked again.
    pub(crate) fn refused_while_asked(&self) -> Receipt {
        let why = "nothing was touched: the gauge, an allocator or an account of this releaser asked for a \
                   release while it was asked for its number; ask outside of that";
        self.refused(Verdict::Busy, why.to_owned())
    }

    fn refused(&self, verdict: Verdict, why: String) -> Receipt {
        let nothing = Reading::default();
        let mut receipt = Receipt::new(&self.name, None, verdict, (nothing, nothing));
        receipt.target = self.to;
        receipt.advice.push(why);
        receipt
    }

    /// Whether the holders that the witness names should have let go.
    pub(crate) fn pins(&self) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.pins)
    }

    /// Asks the witness; nobody if there is none or it panics.
    pub(crate) fn survivors(&self) -> Vec<Holder> {
        let Some(Witness { ask, .. }) = &self.witness else { return Vec::new() };
        catch_unwind(AssertUnwindSafe(|| ask())).unwrap_or_default()
    }

    pub(crate) fn quiet(mut self) -> Request {
        self.logging = Logging::ByCaller;
        self
    }

    /// Logs the lines Before, After and Freed, too (R32).
    pub(crate) fn summarised(mut self) -> Request {
        self.logging = Logging::Summary;
        self
    }

    pub(crate) fn after(mut self, done: RungReceipt) -> Request {
        self.done = Some(done);
        self
    }

    /// Whether one release answers both requests, if it has rungs of the same names.
    pub(crate) fn is_like(&self, other: &Request) -> bool {
        let is_plain = |request: &Request| request.done.is_none() && !request.alone;
        is_plain(self)
            && is_plain(other)
            && (self.to, self.every_rung, self.claiming, self.thrift)
                == (other.to, other.every_rung, other.claiming, other.thrift)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("name", &self.name)
            .field("ladder", &self.ladder)
            .field("to", &self.to)
            .field("when_busy", &self.when_busy)
            .finish_non_exhaustive()
    }
}
