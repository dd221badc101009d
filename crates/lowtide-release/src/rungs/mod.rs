//! What is tried to free memory, and in which order: the ladders, and lowtide's rungs.

mod collect;
mod drop;
mod fraction;
mod hooked;
mod ladder;
mod last_resort;
mod quiesce;
mod rung;
mod sleep;
mod trim;

pub use collect::{COLLECT, Collect, YOUNG_COLLECT};
pub use drop::DropOwners;
pub use fraction::Fraction;
pub use hooked::{
    CACHES, CHEAP_CACHES, EXIT, Hooked, LIBRARIES, Parts, SESSIONS, SUSPEND, TO_HOST,
};
pub(crate) use ladder::Placed;
pub use ladder::{Ladder, LadderName, NoSuchRung, ParseLadderError, of_name};
pub use last_resort::{ContextReset, Fallback};
pub use quiesce::Quiesce;
pub use rung::{Climbed, Expectation, Rung};
pub use sleep::{Sleep, SleepTags};
pub use trim::Trim;
