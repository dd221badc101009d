//! Rungs as data: their names, how each ended, what it touched.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Bytes;

/// The name of a rung: one way to free memory.
///
/// ```
/// use lowtide_types::RungName;
/// assert_eq!(RungName::from("context_reset"), RungName::ContextReset);
/// assert_eq!(RungName::from("polish").to_string(), "polish"); // a rung of your own
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RungName {
    /// Closes the gate and waits for all work on the device.
    Quiesce,
    /// Drops owners, wrappers first.
    Drop,
    /// Frees workspaces of libraries, communicators and leftovers of other processes.
    Libraries,
    /// Clears registered caches, compile caches and stored tracebacks.
    Caches,
    /// Runs the host language's garbage collector.
    Collect,
    /// Returns the cached memory of every known allocator to the driver.
    Trim,
    /// Moves models to host memory.
    ToHost,
    /// Closes sessions of inference runtimes.
    Sessions,
    /// Lowers the share of the device that an allocator may take, trims, and restores it.
    Fraction,
    /// Moves pool chunks off the device; their addresses stay.
    Sleep,
    /// Destroys the context and makes a new one, in a process that may lose everything.
    ContextReset,
    /// Runs the hooks that are registered as a last resort.
    Fallback,
    /// Takes whole processes off the device; they live on.
    Suspend,
    /// Ends processes, with all that they started.
    Exit,
    /// A rung of a caller's own.
    Custom(Cow<'static, str>),
}

impl RungName {
    /// Every rung that lowtide brings.
    pub const ALL: [RungName; 14] = [
        RungName::Quiesce,
        RungName::Drop,
        RungName::Libraries,
        RungName::Caches,
        RungName::Collect,
        RungName::Trim,
        RungName::ToHost,
        RungName::Sessions,
        RungName::Fraction,
        RungName::Sleep,
        RungName::ContextReset,
        RungName::Fallback,
        RungName::Suspend,
        RungName::Exit,
    ];

    /// Returns the name as it stands in receipts.
    pub fn as_str(&self) -> &str {
        match self {
            RungName::Quiesce => "quiesce",
            RungName::Drop => "drop",
            RungName::Libraries => "libraries",
            RungName::Caches => "caches",
            RungName::Collect => "collect",
            RungName::Trim => "trim",
            RungName::ToHost => "to_host",
            RungName::Sessions => "sessions",
            RungName::Fraction => "fraction",
            RungName::Sleep => "sleep",
            RungName::ContextReset => "context_reset",
            RungName::Fallback => "fallback",
            RungName::Suspend => "suspend",
            RungName::Exit => "exit",
            RungName::Custom(name) => name,
        }
    }
}

impl From<&str> for RungName {
    fn from(name: &str) -> RungName {
        let known = RungName::ALL.into_iter().find(|rung| rung.as_str() == name);
        known.unwrap_or_else(|| RungName::Custom(Cow::Owned(name.to_owned())))
    }
}

impl fmt::Display for RungName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl PartialEq<str> for RungName {
    fn eq(&self, name: &str) -> bool {
        self.as_str() == name
    }
}

impl PartialEq<&str> for RungName {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

impl Serialize for RungName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for RungName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RungName, D::Error> {
        Ok(RungName::from(&*Cow::<'de, str>::deserialize(deserializer)?))
    }
}

impl JsonSchema for RungName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RungName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// The end of one rung.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RungOutcome {
    /// The rung ran to its end.
    Done,
    /// The rung did not apply.
    Skipped {
        /// The reason, in words.
        why: String,
    },
    /// The rung, or a part of it, failed.
    Failed {
        /// The reason, in words.
        why: String,
    },
    /// A part of the rung panicked.
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// The rung exceeded its time limit. It was left behind and may still be running.
    CutOff {
        /// The time limit that it exceeded.
        limit_ms: u64,
    },
}

impl fmt::Display for RungOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RungOutcome::Done => f.write_str("done"),
            RungOutcome::Skipped { why } => write!(f, "skipped: {why}"),
            RungOutcome::Failed { why } => write!(f, "failed: {why}"),
            RungOutcome::Panicked { message } => write!(f, "panicked: {message}"),
            RungOutcome::CutOff { limit_ms } => write!(f, "cut off after {limit_ms} ms"),
        }
    }
}

/// Something that a rung acted on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Touch {
    /// The name of the object.
    pub what: String,
    /// Its size by its own account. What was freed is what the device reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

impl Touch {
    /// Creates an entry for an object of this size.
    pub fn sized(what: impl Into<String>, bytes: Bytes) -> Touch {
        Touch { what: what.into(), bytes: Some(bytes) }
    }
}

impl<T: Into<String>> From<T> for Touch {
    fn from(what: T) -> Touch {
        Touch { what: what.into(), bytes: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_they_are_written() {
        for name in RungName::ALL {
            assert_eq!(RungName::from(name.as_str()), name);
            assert!(!matches!(name, RungName::Custom(_)));
        }
        let own = RungName::from("polish");
        let json = serde_json::to_string(&own).unwrap();
        assert_eq!((json.as_str(), serde_json::from_str(&json).unwrap()), ("\"polish\"", own));
    }
}
