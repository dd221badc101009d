//! Frees memory and verifies the result with the device's own numbers.
//!
//! A [`Releaser`] climbs a [`Ladder`] of [`Rung`]s on a device until a [`Target`] is met. The result is
//! a [`Receipt`]: the numbers before and after each rung, what each rung acted on, how long it took,
//! and a [`Verdict`]. Around it:
//!
//! | type | purpose |
//! |---|---|
//! | [`Owners`] | what has to be dropped, in which order, and which references keep it alive |
//! | [`Stages`] | models that use the device one after another |
//! | [`Idling`] | frees memory while no work runs |
//! | [`Gate`], [`Pauses`] | pause, update, resume |
//! | [`Ledger`] | a breakdown of all device memory in use |
//!
//! The crate calls no driver, is not async and has no clock of its own: time comes from a [`Clock`]. The
//! crate `lowtide` brings the machine's.

mod callbacks;
mod climb;
mod clock;
mod failure;
mod fork;
mod gate;
mod owners;
mod readings;
mod requests;
pub mod rungs;
mod sync;

pub use callbacks::{Climb, GoOn, Hook, HookCall, HookPoint, Registration, Restore, Setting};
pub use climb::{LogLevel, Releaser, Request, RestoreError, Restored, WhenBusy, log_text};
pub use clock::{Clock, ManualClock};
pub use failure::Failure;
pub use gate::{Busy, Closed, Gate, GateState, Mode, Outer, OwnedPass, Pass, Step};
pub use lowtide_types::{
    Claim, ClaimBasis, Holder, Ledger, LedgerKind, LedgerLine, Reading, Receipt, RungName,
    RungOutcome, RungReceipt, Settling, Target, Touch, Verdict,
};
pub use owners::{
    Cycle, DropOutcome, Dropped, HeldPath, Lent, NewPaths, Owned, Owners, Paths, Plan, Planned,
    Shutdown,
};
pub use readings::{Allocator, AllocatorCounts, Gauge, Inventory, floor};
pub use requests::{
    Decision, Idle, IdleOptions, Idling, Opened, ParseIdleError, Paused, Pauses, Resume, Resumed,
    Slope, Stage, StageError, StageReport, Stages, StagesReport, Task, Tick, Ticket, Trend,
    TrendWarning, Working, parse_time,
};
pub use rungs::{Climbed, Expectation, Ladder, LadderName, NoSuchRung, ParseLadderError, Rung};
