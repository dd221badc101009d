//! Holders: the references that keep memory alive which a release was meant to free.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, printable};

/// A reference that keeps memory alive, by a path that a person can find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    /// The place of the reference: `runner.pooling.model`.
    pub path: String,
    /// The object it keeps alive: `runner.model`.
    pub holds: String,
    /// The number of references by this path.
    pub count: usize,
    /// The place in the source where the reference was taken, where that is known: `src/c.rs:44`.
    #[serde(default)]
    pub since: Option<String>,
    /// The memory that is freed with the last of them, where that is known.
    #[serde(rename = "bytes")]
    pub held: Option<Bytes>,
    /// The statement that removes the reference, where one is known: `del cache["model"]`.
    pub cut: Option<String>,
}

impl Holder {
    /// Returns ` since src/c.rs:44`, or nothing where the place is not known.
    pub fn since_text(&self) -> String {
        self.since.as_ref().map_or_else(String::new, |since| format!(" since {since}"))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { path, holds, count, held, .. } = self;
        let references = if *count == 1 { "reference" } else { "references" };
        let (path, holds) = (printable(path), printable(holds));
        write!(f, "{path} holds {holds}{}, {count} {references}", self.since_text())?;
        held.map_or(Ok(()), |held| write!(f, ", {held}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_says_what_it_holds_how_often_and_how_much() {
        let mut holder = Holder {
            path: "runner.pooling.model".to_owned(),
            holds: "runner.model".to_owned(),
            count: 2,
            since: None,
            held: Some(Bytes::mib(48)),
            cut: None,
        };
        let text = "runner.pooling.model holds runner.model, 2 references, 48.0 MiB";
        assert_eq!(holder.to_string(), text);
        (holder.count, holder.held) = (1, None);
        assert_eq!(holder.to_string(), "runner.pooling.model holds runner.model, 1 reference");
        holder.since = Some("src/c.rs:44".to_owned());
        let text = "runner.pooling.model holds runner.model since src/c.rs:44, 1 reference";
        assert_eq!(holder.to_string(), text);
    }
}
