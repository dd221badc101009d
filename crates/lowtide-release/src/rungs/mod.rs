//! The rungs that lowtide brings, one file for each or for a few that belong together.

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

use std::sync::Arc;

use lowtide_types::RungName;

pub use self::collect::{Collect, YoungCollect};
pub use self::drop::DropOwners;
pub use self::fraction::Fraction;
pub use self::hooked::{
    CACHES, CHEAP_CACHES, EXIT, Hooked, LIBRARIES, Parts, SESSIONS, SUSPEND, TO_HOST,
};
pub(crate) use self::ladder::Placed;
pub use self::ladder::{Ladder, LadderName, NoSuchRung, ParseLadderError};
pub use self::last_resort::{ContextReset, Fallback};
pub use self::quiesce::Quiesce;
pub use self::rung::{Climbed, Expectation, Rung};
pub use self::sleep::{Sleep, SleepTags};
pub use self::trim::Trim;

/// Returns the rung of a name; `None` for a [custom](RungName::Custom) one.
pub fn of_name(name: &RungName) -> Option<Arc<dyn Rung>> {
    Some(match name {
        RungName::Quiesce => Arc::new(Quiesce),
        RungName::Drop => Arc::new(DropOwners),
        RungName::Libraries => Arc::new(LIBRARIES),
        RungName::Caches => Arc::new(CACHES),
        RungName::Collect => Arc::new(Collect),
        RungName::Trim => Arc::new(Trim),
        RungName::ToHost => Arc::new(TO_HOST),
        RungName::Sessions => Arc::new(SESSIONS),
        RungName::Fraction => Arc::new(Fraction),
        RungName::Sleep => Arc::new(Sleep),
        RungName::ContextReset => Arc::new(ContextReset),
        RungName::Fallback => Arc::new(Fallback),
        RungName::Suspend => Arc::new(SUSPEND),
        RungName::Exit => Arc::new(EXIT),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_rung() {
        for name in RungName::ALL {
            assert_eq!(of_name(&name).unwrap().name(), name);
        }
        assert!(of_name(&"polish".into()).is_none());
    }
}
