//! The ledger: where every byte is that the driver reports in use, with what nobody could be named
//! for as a line of its own. It always adds up to the driver's number.

use std::fmt;

use lowtide_device::{Bytes, DeviceId};
use schemars::JsonSchema;
use serde::Serialize;

/// What a line of the ledger speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// In blocks that callers have, by tag or owner.
    Live,
    /// Held by an allocator and in nobody's block.
    Cached,
    /// Of captured graphs.
    Graphs,
    /// Of libraries: workspaces, sessions, communicators.
    Libraries,
    /// What a bare context costs: the floor.
    Context,
    /// Of other processes.
    Others,
}

/// A part of what is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Line {
    /// What it is.
    pub kind: Kind,
    /// Whose it is.
    pub name: String,
    /// How much.
    #[schemars(with = "u64")]
    pub bytes: Bytes,
}

/// Where every byte in use is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ledger {
    /// The device.
    #[schemars(with = "String")]
    pub device: DeviceId,
    /// In use, says the driver or the kernel.
    #[schemars(with = "u64")]
    pub driver_bytes: Bytes,
    /// Whose it is, where that is known.
    pub lines: Vec<Line>,
    /// The rest. Negative where lines speak of the same bytes twice.
    pub unknown_bytes: i64,
}

impl Ledger {
    /// Lines and the driver's number; what they do not explain is unknown.
    pub fn new(device: DeviceId, driver_bytes: Bytes, mut lines: Vec<Line>) -> Ledger {
        lines.retain(|line| line.bytes > Bytes::ZERO);
        lines.sort_by(|one, other| (one.kind, other.bytes).cmp(&(other.kind, one.bytes)));
        let known: u64 = lines.iter().map(|line| line.bytes.0).sum();
        let unknown_bytes = driver_bytes.0.cast_signed() - known.cast_signed();
        Ledger { device, driver_bytes, lines, unknown_bytes }
    }

    /// All lines and what is unknown: the driver's number, always.
    pub fn sum(&self) -> i64 {
        let known: u64 = self.lines.iter().map(|line| line.bytes.0).sum();
        known.cast_signed() + self.unknown_bytes
    }

    /// What lines of a kind come to.
    pub fn of(&self, kind: Kind) -> Bytes {
        self.lines.iter().filter(|line| line.kind == kind).map(|line| line.bytes).sum()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Live => "live",
            Kind::Cached => "cached",
            Kind::Graphs => "graphs",
            Kind::Libraries => "libraries",
            Kind::Context => "context",
            Kind::Others => "others",
        })
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Line { kind, name, bytes } in &self.lines {
            writeln!(f, "  {kind:<10} {:>16}  {name}", bytes.to_string())?;
        }
        writeln!(f, "  {:<10} {:>16}", "unknown", signed(self.unknown_bytes))?;
        write!(f, "  {:<10} {:>16}", "in use", self.driver_bytes.to_string())
    }
}

/// A difference, with its sign where it is negative.
pub(crate) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "−" } else { "" };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn line(kind: Kind, mib: u64) -> Line {
        Line { kind, name: "x".to_owned(), bytes: Bytes::mib(mib) }
    }

    #[test]
    fn r47_it_adds_up_and_unknown_is_always_there() {
        let lines = vec![line(Kind::Cached, 3), line(Kind::Live, 5), line(Kind::Graphs, 0)];
        let ledger = Ledger::new(DeviceId::Host, Bytes::mib(10), lines);
        assert_eq!((ledger.unknown_bytes, ledger.sum()), (2 << 20, 10 << 20));
        assert_eq!(ledger.lines.len(), 2, "a line of nothing is no line");
        assert!(ledger.to_string().contains("unknown             2.0 MiB"), "{ledger}");
        let over = Ledger::new(DeviceId::Host, Bytes::mib(10), vec![line(Kind::Live, 12)]);
        assert_eq!((over.unknown_bytes, over.sum()), (-2 << 20, 10 << 20));
        assert!(over.to_string().contains("−2.0 MiB"), "{over}");
        let whole = Ledger::new(DeviceId::Host, Bytes::mib(5), vec![line(Kind::Live, 5)]);
        assert!(whole.to_string().contains("unknown             0.0 MiB"), "{whole}");
    }

    #[test]
    fn r22_captured_graphs_have_a_line_of_their_own() {
        let lines = vec![line(Kind::Live, 5), line(Kind::Graphs, 1)];
        let ledger = Ledger::new(DeviceId::Host, Bytes::mib(6), lines);
        assert_eq!(
            (ledger.of(Kind::Graphs), ledger.of(Kind::Live)),
            (Bytes::mib(1), Bytes::mib(5))
        );
        assert!(ledger.to_string().contains("  graphs              1.0 MiB"), "{ledger}");
    }
}
