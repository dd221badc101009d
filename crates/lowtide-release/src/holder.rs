//! A holder: who still has what should be gone.

use lowtide_device::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

/// Somebody who still holds memory, by a path that a person can find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Holder {
    /// Where the reference is: `runner.pooling.model`.
    pub path: String,
    /// What it keeps: `runner.model`.
    pub holds: String,
    /// How many references there are by this path.
    pub count: usize,
    /// What goes when the last of them goes, where that is known.
    #[serde(rename = "bytes")]
    #[schemars(with = "Option<u64>")]
    pub held: Option<Bytes>,
    /// What to write so that it lets go, where somebody knows: `del cache["model"]`.
    pub cut: Option<String>,
}
