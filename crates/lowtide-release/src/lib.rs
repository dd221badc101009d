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

mod advice;
mod allocator;
mod asking;
mod by_need;
mod claiming;
mod climb;
mod climber;
mod clock;
mod collected;
mod failure;
mod flights;
pub mod floor;
mod gate;
mod gauge;
mod home;
mod hooks;
mod idle;
mod idling;
mod inventory;
mod ladder;
mod left_behind;
mod log;
mod opened;
mod owners;
mod pause;
mod refusal;
mod releaser;
mod request;
mod restoring;
mod rung;
pub mod rungs;
mod slope;
mod stage;
mod stages;
mod stages_report;
mod sync;
mod verdict;

pub use allocator::{Allocator, AllocatorCounts};
pub use climb::{Climb, GoOn};
pub use clock::{Clock, ManualClock};
pub use failure::Failure;
pub use gate::{Busy, Closed, Gate, GateState, Mode, Outer, OwnedPass, Pass, Step};
pub use gauge::Gauge;
pub use hooks::{Hook, HookCall, HookPoint, Registration, Restore, Setting};
pub use idle::{Decision, Idle, IdleOptions, ParseIdleError, Task, Ticket, parse_time};
pub use idling::{Idling, Tick, Working};
pub use inventory::Inventory;
pub use ladder::{Ladder, LadderName, NoSuchRung, ParseLadderError};
pub use log::{LogLevel, log_text};
pub use lowtide_types::{
    Claim, ClaimBasis, Holder, Ledger, LedgerKind, LedgerLine, Reading, Receipt, RungName,
    RungOutcome, RungReceipt, Settling, Target, Touch, Verdict,
};
pub use opened::Opened;
pub use owners::{
    Cycle, DropOutcome, Dropped, HeldPath, Lent, NewPaths, Owned, Owners, Paths, Plan, Planned,
    Shutdown,
};
pub use pause::{Paused, Pauses, Resume, Resumed};
pub use releaser::Releaser;
pub use request::{Request, WhenBusy};
pub use restoring::{RestoreError, Restored};
pub use rung::{Climbed, Expectation, Rung};
pub use slope::{Slope, Trend, TrendWarning};
pub use stage::Stage;
pub use stages::{StageError, Stages};
pub use stages_report::{StageReport, StagesReport};
