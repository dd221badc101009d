//! Holders: the references that keep memory alive which a release was meant to free.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A reference that keeps memory alive, by a path that a person can find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    /// The place of the reference: `runner.pooling.model`.
    pub path: String,
    /// The object it keeps alive: `runner.model`.
    pub holds: String,
    /// The number of references by this path.
    pub count: usize,
    /// The memory that is freed with the last of them, where that is known.
    #[serde(rename = "bytes")]
    pub held: Option<Bytes>,
    /// The statement that removes the reference, where one is known: `del cache["model"]`.
    pub cut: Option<String>,
}
