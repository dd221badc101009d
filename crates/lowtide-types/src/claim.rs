//! Claims: what a release says it will free, in bytes, decided before it starts.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// What a release says it will free. The verdict is `released` only if the device's number falls by
/// this much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claim {
    /// The memory that the claim counts.
    pub basis: ClaimBasis,
    /// Its size when the release starts.
    pub bytes: Bytes,
}

/// The memory that a claim counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClaimBasis {
    /// The memory of the owners that the release drops: their storages, and their blocks in
    /// allocators.
    Owned,
    /// The memory that allocators keep and no live block uses.
    Cached,
    /// The memory above an earlier level: after the first task was cleaned up.
    Level,
    /// The memory above the target.
    Target,
}

impl Claim {
    /// Creates a claim.
    pub fn new(basis: ClaimBasis, bytes: Bytes) -> Claim {
        Claim { basis, bytes }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.bytes, self.basis)
    }
}

impl ClaimBasis {
    /// Returns the name, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ClaimBasis::Owned => "owned",
            ClaimBasis::Cached => "cached",
            ClaimBasis::Level => "level",
            ClaimBasis::Target => "target",
        }
    }
}

impl fmt::Display for ClaimBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ClaimBasis::Owned => "owned",
            ClaimBasis::Cached => "cached",
            ClaimBasis::Level => "above the level of the first task",
            ClaimBasis::Target => "above the target",
        })
    }
}
