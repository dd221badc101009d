//! Who asks for releases: stages, the idle policy and pauses.

mod idle;
mod idling;
mod pause;
mod slope;
mod stage;
mod stages;
mod stages_report;

pub use idle::{Decision, Idle, IdleOptions, ParseIdleError, Task, Ticket, parse_time};
pub use idling::{Idling, Tick, Working};
pub use pause::{Paused, Pauses, Resume, Resumed};
pub use slope::{Slope, Trend, TrendWarning};
pub use stage::Stage;
pub use stages::{Opened, StageError, Stages};
pub use stages_report::{StageReport, StagesReport};
