//! Targets: the number at which a release may stop.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Reading};

/// The number at which a release may stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This process uses at most this much (on the whole device, where the driver does not report
    /// processes apart).
    Under(Bytes),
    /// The device has at least this much free.
    Free(Bytes),
    /// This process uses no more than a bare context does.
    Floor,
}

impl Target {
    /// The memory that the first streams and modules add to a context; no release frees it.
    pub const ABOVE_FLOOR: Bytes = Bytes::mib(8);

    /// Returns whether a reading meets the target; `None` where the number or the floor is unknown.
    pub fn is_met(self, reading: &Reading, floor: Option<Bytes>) -> Option<bool> {
        match self {
            Target::Under(most) => reading.in_use().map(|in_use| in_use <= most),
            Target::Free(least) => reading.free.map(|free| free >= least),
            Target::Floor => {
                let floor = floor?;
                // A device without a context has nothing that grows.
                let above = if floor == Bytes::ZERO { Bytes::ZERO } else { Target::ABOVE_FLOOR };
                Some(reading.in_use()? <= floor + above)
            }
        }
    }

    /// Returns by how much a reading is above the target; `None` where the number or the floor is
    /// unknown.
    pub fn excess(self, reading: &Reading, floor: Option<Bytes>) -> Option<Bytes> {
        match self {
            Target::Under(most) => Some(reading.in_use()?.saturating_sub(most)),
            Target::Free(least) => Some(least.saturating_sub(reading.free?)),
            Target::Floor => Some(reading.in_use()?.saturating_sub(floor?)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Under(most) => write!(f, "at most {most}"),
            Target::Free(least) => write!(f, "at least {least} free"),
            Target::Floor => f.write_str("to the floor"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_by_the_drivers_numbers_or_not_judged() {
        let reading = Reading {
            driver: Some(Bytes::mib(900)),
            free: Some(Bytes::mib(100)),
            own: Some(Bytes::mib(60)),
            ..Reading::default()
        };
        let met = |target: Target| target.is_met(&reading, Some(Bytes::mib(52)));
        assert_eq!(met(Target::Under(Bytes::mib(60))), Some(true), "others do not count");
        assert_eq!(met(Target::Under(Bytes::mib(59))), Some(false));
        assert_eq!(Target::Under(Bytes::mib(59)).excess(&reading, None), Some(Bytes::mib(1)));
        assert_eq!(Target::Free(Bytes::mib(130)).excess(&reading, None), Some(Bytes::mib(30)));
        assert_eq!(Target::Floor.excess(&reading, None), None);
        assert_eq!(met(Target::Free(Bytes::mib(100))), Some(true));
        assert_eq!(met(Target::Free(Bytes::mib(101))), Some(false));
        assert_eq!(met(Target::Floor), Some(true));
        assert_eq!(Target::Floor.is_met(&reading, Some(Bytes::mib(51))), Some(false));
        assert_eq!(Target::Floor.is_met(&reading, None), None, "no floor is known");
        assert_eq!(Target::Under(Bytes::ZERO).is_met(&Reading::default(), None), None);
    }
}
