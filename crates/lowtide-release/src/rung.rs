//! A rung: one way to give memory back.
//!
//! It says beforehand what it expects, or why it does not apply; it does its work; it says what it
//! touched. What that freed is measured by others.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lowtide_types::{Bytes, Touch};

use crate::scene::Scene;

/// Why something could not be done.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a rung says before it is climbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expectation {
    /// It does not apply now, and why.
    Skip(String),
    /// It will give back about so much; `None` where nobody can tell.
    Bytes(Option<Bytes>),
}

/// What a rung did. What went wrong in one part of it does not undo the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Climbed {
    /// What it touched; nothing, where there was nothing to do.
    pub touched: Vec<Touch>,
    /// What went wrong, by name.
    pub failures: Vec<String>,
    /// Parts that did not apply, by name, with why; nothing went wrong in them.
    pub skipped: Vec<String>,
}

impl Climbed {
    /// Does one part, on its own: whether it fails or panics, the next is not touched by it.
    pub fn attempt(&mut self, name: &str, part: impl FnOnce() -> Result<Vec<Touch>, Failure>) {
        self.attempt_whole(name, || Ok(Climbed { touched: part()?, ..Climbed::default() }));
    }

    pub(crate) fn attempt_whole(
        &mut self,
        name: &str,
        part: impl FnOnce() -> Result<Climbed, Failure>,
    ) {
        match catch_unwind(AssertUnwindSafe(part)) {
            Ok(Ok(climbed)) => {
                self.touched.extend(climbed.touched);
                self.failures.extend(climbed.failures);
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

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a word".to_owned())
}

/// One way to give memory back. It must not wait for another release: it is part of one.
pub trait Rung: Send + Sync {
    /// Its name in receipts.
    fn name(&self) -> &str;

    /// Whether work may go on meanwhile: it touches only what nobody has. A ladder in which every
    /// rung says so leaves the gate open; any other closes it first.
    fn lets_work_go_on(&self) -> bool {
        false
    }

    /// What it expects to give back, or why it does not apply now.
    fn expect(&self, scene: &Scene) -> Expectation;

    /// Does it.
    ///
    /// # Errors
    /// What stopped it; what it had touched until then is told by the numbers.
    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure>;
}
