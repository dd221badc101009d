//! A rung: one way to free memory.
//!
//! A rung says in advance how much it expects to free, or why it does not apply. It does its work and
//! reports what it acted on. What that freed is measured by the releaser.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use lowtide_types::{Bytes, RungName, Touch};

use crate::callbacks::{Climb, Hook};
use crate::failure::{Failure, message};
use crate::readings::Inventory;

/// The default time limit of a rung.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What a rung says before it is climbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expectation {
    /// The rung does not apply now, for this reason.
    Skip(String),
    /// The rung will free about this much; `None` where it cannot tell.
    Bytes(Option<Bytes>),
}

/// What a rung did. A failure of one part does not undo the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Climbed {
    /// What the rung acted on.
    pub touched: Vec<Touch>,
    /// What failed, each with its name.
    pub failures: Vec<String>,
    /// Parts that did not apply, each with its name and the reason.
    pub skipped: Vec<String>,
    /// Whether the rung ended early, because its climb was told to stop.
    pub stopped: bool,
}

impl Climbed {
    /// Runs one part on its own. If it fails or panics, that is recorded under its name, and the next
    /// part can run.
    pub fn attempt(&mut self, name: &str, part: impl FnOnce() -> Result<Vec<Touch>, Failure>) {
        self.attempt_rung(name, || Ok(Climbed { touched: part()?, ..Climbed::default() }));
    }

    /// The same for a part that is a whole rung.
    pub(crate) fn attempt_rung(
        &mut self,
        name: &str,
        part: impl FnOnce() -> Result<Climbed, Failure>,
    ) {
        match catch_unwind(AssertUnwindSafe(part)) {
            Ok(Ok(climbed)) => {
                self.touched.extend(climbed.touched);
                self.failures.extend(climbed.failures);
                self.stopped |= climbed.stopped;
                for skipped in climbed.skipped {
                    // Once is enough, however many rounds there are.
                    if !self.skipped.contains(&skipped) {
                        self.skipped.push(skipped);
                    }
                }
            }
            Ok(Err(failure)) => self.failures.push(format!("{name}: {failure}")),
            Err(panic) => self.failures.push(format!("{name} panicked: {}", message(&*panic))),
        }
    }
}

/// One way to free memory.
///
/// A rung is part of a release. If it asks for another one, on whatever thread, it says so with
/// [`Request::within`](crate::Request::within) and its climb, and is refused.
pub trait Rung: Send + Sync {
    /// Returns the name of the rung in receipts.
    fn name(&self) -> RungName;

    /// Returns whether work may go on while the rung is climbed, because it touches only memory that
    /// nobody uses. A ladder in which every rung says so leaves the gate open; any other closes it.
    fn lets_work_go_on(&self) -> bool {
        false
    }

    /// Returns the time limit of the rung. A rung that exceeds it is left behind, and the next one is
    /// climbed.
    fn limit(&self) -> Duration {
        LIMIT
    }

    /// Returns how much the rung expects to free, or why it does not apply now.
    fn expect(&self, inventory: &Inventory) -> Expectation;

    /// Returns the registered hooks that the rung runs.
    fn hooks(&self, _: &Inventory) -> Vec<Arc<Hook>> {
        Vec::new()
    }

    /// Frees memory. A rung that takes long asks [`Climb::go_on`] at every safe point.
    ///
    /// # Errors
    /// Whatever stopped the rung. The device's numbers tell what it had freed by then.
    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure>;
}
