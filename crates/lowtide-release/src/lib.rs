//! Memory given back, with proof.
//!
//! A [`Releaser`] climbs a [`Ladder`] of [`Rung`]s on a device until a [`Target`] is met, and writes a
//! [`Receipt`]: before and after each rung by the driver's own numbers, what was touched, how long it
//! took, and a [`Verdict`]. Around it: [`Owners`] (who should let go, in which order), [`Stages`]
//! (modules that hand the device on), [`Idling`] (free on idle), [`Gate`] and [`Pauses`] (pause,
//! update, resume), the [`Ledger`] (where every byte is).
//!
//! It knows no driver, no async and no clock of its own: time comes from a [`Clock`]. The crate
//! `lowtide` brings the machine's.

mod advice;
mod allocator;
mod ask;
mod climb;
mod clock;
pub mod floor;
mod gate;
mod idle;
mod idle_options;
mod idling;
mod ladder;
mod owners;
mod pause;
mod reading;
mod releaser;
mod rung;
pub mod rungs;
mod scene;
mod slope;
mod stages;
mod sync;

pub use allocator::{Allocator, Counts};
pub use ask::{Ask, WhenBusy};
pub use clock::{Clock, ManualClock};
pub use gate::{Busy, Closed, Gate, GateState, Mode, Pass, Step};
pub use idle::{Claim, Decision, Idle, Task};
pub use idle_options::{IdleOptions, ParseIdleError};
pub use idling::{Idling, Tick, Working};
pub use ladder::Ladder;
pub use lowtide_types::{
    Holder, Ledger, LedgerKind, LedgerLine, Reading, Receipt, RungName, RungOutcome, RungReceipt,
    Settling, Target, Touch, Verdict,
};
pub use owners::{
    Cycle, DropOutcome, Dropped, HeldPath, Lent, NewPaths, Owned, Owners, Paths, Plan, Planned,
    Shutdown,
};
pub use pause::{Paused, Pauses, Resume};
pub use reading::Gauge;
pub use releaser::Releaser;
pub use rung::{Climbed, Expectation, Failure, Rung};
pub use scene::{Hook, Place, Plugged, Restore, Scene, Setting};
pub use slope::{Slope, Trend};
pub use stages::{Opened, Stage, StageError, StageReport, Stages, StagesReport};
