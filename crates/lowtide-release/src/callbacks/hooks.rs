//! Hooks: where a host language takes part in a ladder.
//!
//! Models, sessions, collectors and caches exist only in a host language or a framework. It registers
//! hooks at fixed points of the ladder; their order, isolation, time limits and guards are ours.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lowtide_types::{Bytes, RungName, Touch, debug_as};

use super::handle::{Climb, Ran};
use super::left_behind::PartName;
use crate::failure::{Failure, catch};
use crate::fork::ProcessMutex;

/// A point of the ladder at which hooks are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HookPoint {
    /// Models are moved to host memory.
    ToHost,
    /// Sessions of inference runtimes are closed.
    Sessions,
    /// Caches are cleared and stored tracebacks dropped.
    Caches,
    /// The host language's garbage collector runs.
    Collect,
    /// Workspaces of libraries, communicators and leftovers of other processes are freed.
    Libraries,
    /// A disposable process, or its context, ends and is started anew.
    ContextReset,
    /// The last resort, when no other rung was enough.
    Fallback,
    /// Whole processes are taken off the device and live on.
    Suspend,
    /// Processes end, with all that they started.
    Exit,
}

impl HookPoint {
    /// Every point, in the order of their rungs.
    pub const ALL: [HookPoint; 9] = [
        HookPoint::ToHost,
        HookPoint::Sessions,
        HookPoint::Caches,
        HookPoint::Collect,
        HookPoint::Libraries,
        HookPoint::ContextReset,
        HookPoint::Fallback,
        HookPoint::Suspend,
        HookPoint::Exit,
    ];

    /// Returns the rung that runs the hooks of this point.
    pub fn rung(self) -> RungName {
        match self {
            HookPoint::ToHost => RungName::ToHost,
            HookPoint::Sessions => RungName::Sessions,
            HookPoint::Caches => RungName::Caches,
            HookPoint::Collect => RungName::Collect,
            HookPoint::Libraries => RungName::Libraries,
            HookPoint::ContextReset => RungName::ContextReset,
            HookPoint::Fallback => RungName::Fallback,
            HookPoint::Suspend => RungName::Suspend,
            HookPoint::Exit => RungName::Exit,
        }
    }
}

/// The default time limit of a hook: less than that of its rung, so that the next hook still runs.
const HOOK_LIMIT: Duration = Duration::from_secs(20);

type Run = dyn Fn(&HookCall) -> Result<Vec<Touch>, Failure> + Send + Sync;
type Expect = dyn Fn() -> Option<Bytes> + Send + Sync;
type Unless = dyn Fn() -> Option<String> + Send + Sync;
type FindsNothing = dyn Fn() -> Option<bool> + Send + Sync;
type Undo = dyn Fn() -> Result<Vec<Touch>, Failure> + Send + Sync;

/// A repetition of a rung.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// From 0.
    pub(crate) number: u32,
    /// Whether a collector should look at everything.
    pub(crate) is_full: bool,
}

impl Round {
    /// The only round of a rung that is not repeated.
    pub(crate) const ONLY: Round = Round { number: 0, is_full: true };
}

/// The argument of a hook.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HookCall {
    /// The round of the rung, from 0. A collector may take another generation each time.
    pub round: u32,
    /// Whether a collector should look at everything. If not, young objects are enough, and fast.
    pub is_full: bool,
    /// The climb that the hook is part of.
    pub climb: Climb,
}

/// A function of a host language that a rung calls.
///
/// ```
/// use lowtide_release::Hook;
///
/// let hook = Hook::new("tokenizer cache", |call| {
///     if !call.climb.go_on() {
///         return Ok(Vec::new());
///     }
///     // … clear it …
///     Ok(vec!["tokenizer cache, 12 entries".into()])
/// });
/// ```
pub struct Hook {
    name: String,
    expect: Option<Box<Expect>>,
    unless: Option<Box<Unless>>,
    finds_nothing: Option<Box<FindsNothing>>,
    undo: Option<Box<Undo>>,
    is_costly: bool,
    is_of_disposable: bool,
    limit: Duration,
    run: Box<Run>,
}

impl Hook {
    /// Creates a hook. `run` returns what it acted on.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(&HookCall) -> Result<Vec<Touch>, Failure> + Send + Sync + 'static,
    ) -> Hook {
        let (name, run) = (name.into(), Box::new(run));
        Hook {
            name,
            expect: None,
            unless: None,
            finds_nothing: None,
            undo: None,
            is_costly: false,
            is_of_disposable: false,
            limit: HOOK_LIMIT,
            run,
        }
    }

    /// Sets the time limit. A hook that exceeds it is told to stop by its [`Climb`], named as failed,
    /// and left behind if it does not stop; the next hook runs. While a hook that was left behind still
    /// runs, it is not started again.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Hook {
        self.limit = limit;
        self
    }

    /// Sets a function that estimates how much the hook will free.
    #[must_use]
    pub fn expecting(mut self, expect: impl Fn() -> Option<Bytes> + Send + Sync + 'static) -> Hook {
        self.expect = Some(Box::new(expect));
        self
    }

    /// Sets a function that says why the hook does not apply now, for example because its library is
    /// not loaded. Such a hook is skipped by name and has not failed.
    #[must_use]
    pub fn unless(mut self, unless: impl Fn() -> Option<String> + Send + Sync + 'static) -> Hook {
        self.unless = Some(Box::new(unless));
        self
    }

    /// Sets a function that says whether a full run would find nothing, as far as the hook can tell
    /// without one. A collector that has nothing to find is not run
    /// ([`Request::by_need`](crate::Request::by_need)).
    #[must_use]
    pub fn finding_nothing_if(
        mut self,
        finds_nothing: impl Fn() -> Option<bool> + Send + Sync + 'static,
    ) -> Hook {
        self.finds_nothing = Some(Box::new(finds_nothing));
        self
    }

    /// Returns whether a full run would find nothing; `None` if the hook cannot tell. One that panics
    /// when asked cannot.
    pub(crate) fn would_find_nothing(&self) -> Option<bool> {
        let ask = self.finds_nothing.as_ref()?;
        catch_unwind(AssertUnwindSafe(ask)).unwrap_or_default()
    }

    /// Says that the program has to do costly work again after this hook, such as compiling. It is not
    /// run between tasks.
    #[must_use]
    pub fn costly(mut self) -> Hook {
        self.is_costly = true;
        self
    }

    /// Says that what the hook ends is disposable, such as a worker process that is started again at its
    /// next use. So it is run at [`HookPoint::ContextReset`] although this process is not disposable.
    #[must_use]
    pub fn of_disposable(mut self) -> Hook {
        self.is_of_disposable = true;
        self
    }

    pub(crate) fn is_of_disposable(&self) -> bool {
        self.is_of_disposable
    }

    /// Sets a function that brings back what the hook took off the device, such as a model. It is called
    /// before the next work begins ([`Releaser::enter`](crate::Releaser::enter)) and returns what it
    /// brought back. It may be called when there is nothing to bring back.
    #[must_use]
    pub fn restored_by(
        mut self,
        undo: impl Fn() -> Result<Vec<Touch>, Failure> + Send + Sync + 'static,
    ) -> Hook {
        self.undo = Some(Box::new(undo));
        self
    }

    /// Returns whether the hook can bring back what it takes away.
    pub(crate) fn can_restore(&self) -> bool {
        self.undo.is_some()
    }

    /// Brings back what the hook took away. A panic is a failure like others.
    pub(crate) fn restore(&self) -> Result<Vec<Touch>, Failure> {
        let Some(undo) = &self.undo else { return Ok(Vec::new()) };
        catch(undo).unwrap_or_else(|message| Err(message.into()))
    }

    pub(crate) fn is_costly(&self) -> bool {
        self.is_costly
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns why the hook does not apply now, with its name.
    pub(crate) fn why_not(&self) -> Option<String> {
        let why = self.unless.as_ref().and_then(|unless| unless())?;
        Some(format!("{}: {why}", self.name))
    }

    /// Returns whether the hook would do something now. One that panics when asked is counted.
    pub(crate) fn applies(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.why_not().is_none())).unwrap_or(true)
    }

    pub(crate) fn expected(&self) -> Option<Bytes> {
        self.expect.as_ref().and_then(|expect| expect())
    }

    /// Runs the hook within its time limit.
    pub(crate) fn run(
        self: &Arc<Hook>,
        climb: &Climb,
        Round { number: round, is_full }: Round,
    ) -> Result<Vec<Touch>, Failure> {
        let (hook, name) = (Arc::clone(self), PartName::Hook(self.name.clone()));
        let ran = climb.run_within(name, self.limit, climb.takes(), move |climb| {
            (hook.run)(&HookCall { round, is_full, climb: climb.clone() })
        });
        match (ran.why_not(self.limit), ran) {
            (None, Ran::Ended(Ok(outcome))) => outcome,
            (None, Ran::Ended(Err(panic))) => resume_unwind(panic),
            (why, _) => Err(why.unwrap_or_default().into()),
        }
    }
}

debug_as!(Hook, |it| "Hook({})", it.name);

/// A function that sets a setting back to its former value.
pub type Restore = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

/// A setting that the rung `fraction` lowers for a moment, such as the share of the device that an
/// allocator may take. It is always restored: after an error, after a panic, and at the end of a rung
/// that was left behind.
pub trait Setting: Send + Sync {
    /// Returns the name of the setting.
    fn name(&self) -> String;

    /// Lowers the setting. Returns the function that restores it.
    ///
    /// # Errors
    /// Whatever the owner of the setting reports.
    fn lower(&self) -> Result<Restore, Failure>;

    /// Resets the statistics that belong to the setting, while it is lowered.
    ///
    /// # Errors
    /// Whatever the owner of the setting reports.
    fn reset_statistics(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// What registrations leave behind when they are kept for good.
pub(crate) type Kept = ProcessMutex<Vec<Arc<dyn Send + Sync>>>;

/// The registration of a hook, a setting, an allocator or an account. Dropping it ends the
/// registration.
#[must_use = "dropping it ends the registration; `keep` makes it permanent"]
pub struct Registration {
    what: Arc<dyn Send + Sync>,
    kept: Weak<Kept>,
}

impl Registration {
    pub(crate) fn new(what: Arc<dyn Send + Sync>, kept: &Arc<Kept>) -> Registration {
        Registration { what, kept: Arc::downgrade(kept) }
    }

    /// Keeps the registration for as long as the releaser exists.
    pub fn keep(self) {
        if let Some(kept) = self.kept.upgrade() {
            kept.push(self.what);
        }
    }
}

debug_as!(Registration, |_| "Registration");
