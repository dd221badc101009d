//! The ledger: a breakdown of all device memory in use. It always adds up to the driver's number;
//! memory that nobody accounts for is the line `unknown`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, DeviceId, printable, signed, words};

words! {
    /// A category of memory in the ledger.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum LedgerKind {
        /// Memory in live blocks, by tag or owner.
        Live = "live",
        /// Memory that an allocator keeps and no live block uses.
        Cached = "cached",
        /// Memory of captured graphs.
        Graphs = "graphs",
        /// Memory of libraries: workspaces, sessions, communicators.
        Libraries = "libraries",
        /// The floor: memory that a bare context uses.
        Context = "context",
        /// The context and the libraries of this process together, where no floor is known that would tell
        /// them apart.
        ContextAndLibraries = "context and libraries",
        /// Memory of other processes.
        Others = "others",
    }
}

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerLine {
    /// The category of this memory.
    pub kind: LedgerKind,
    /// The owner, tag, library or process.
    pub name: String,
    /// The size of this memory.
    pub bytes: Bytes,
}

/// A breakdown of all device memory in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// The device that this ledger is about.
    pub device: DeviceId,
    /// Memory in use, as the driver or the kernel reports it.
    pub driver_bytes: Bytes,
    /// The lines that are accounted for.
    pub lines: Vec<LedgerLine>,
    /// The rest. Negative where two lines count the same bytes.
    pub unknown_bytes: i64,
}

impl Ledger {
    /// Builds a ledger from the driver's number and lines; the difference is `unknown`.
    pub fn new(device: DeviceId, driver_bytes: Bytes, mut lines: Vec<LedgerLine>) -> Ledger {
        lines.retain(|line| line.bytes > Bytes::ZERO);
        lines.sort_by(|one, other| (one.kind, other.bytes).cmp(&(other.kind, one.bytes)));
        let known: u64 = lines.iter().map(|line| line.bytes.0).sum();
        let unknown_bytes = driver_bytes.0.cast_signed() - known.cast_signed();
        Ledger { device, driver_bytes, lines, unknown_bytes }
    }

    /// Returns the sum of all lines and of `unknown`: always the driver's number.
    pub fn sum(&self) -> i64 {
        let known: u64 = self.lines.iter().map(|line| line.bytes.0).sum();
        known.cast_signed() + self.unknown_bytes
    }

    /// Returns the breakdown in one line: `64.0 MiB in use (live 64.0 MiB weights)`.
    pub fn line(&self) -> String {
        let lines = self
            .lines
            .iter()
            .map(|LedgerLine { kind, name, bytes }| format!("{kind} {bytes} {}", printable(name)));
        let unknown =
            (self.unknown_bytes != 0).then(|| format!("unknown {}", signed(self.unknown_bytes)));
        let parts: Vec<String> = lines.chain(unknown).collect();
        let breakdown =
            if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        format!("{} in use{breakdown}", self.driver_bytes)
    }

    /// Returns the sum of the lines of one category.
    pub fn of(&self, kind: LedgerKind) -> Bytes {
        self.lines.iter().filter(|line| line.kind == kind).map(|line| line.bytes).sum()
    }
}

/// `live 24.0 MiB weights`.
impl fmt::Display for LedgerLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LedgerLine { kind, name, bytes } = self;
        write!(f, "{kind} {bytes} {}", printable(name))
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.lines.iter().map(|line| line.kind.to_string().len());
        let width = widths.max().unwrap_or_default().max(10);
        for LedgerLine { kind, name, bytes } in &self.lines {
            let name = printable(name);
            writeln!(f, "  {kind:<width$} {:>16}  {name}", bytes.to_string())?;
        }
        writeln!(f, "  {:<width$} {:>16}", "unknown", signed(self.unknown_bytes))?;
        write!(f, "  {:<width$} {:>16}", "in use", self.driver_bytes.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: LedgerKind, mib: u64) -> LedgerLine {
        LedgerLine { kind, name: "x".to_owned(), bytes: Bytes::mib(mib) }
    }

    #[test]
    fn a_line_is_printed_with_its_kind_its_size_and_its_name() {
        let line = LedgerLine { name: "weights\u{1b}".into(), ..line(LedgerKind::Live, 24) };
        assert_eq!(line.to_string(), "live 24.0 MiB weights\\u{1b}");
    }

    #[test]
    fn r47_it_adds_up_and_unknown_is_always_there() {
        let lines = vec![
            line(LedgerKind::Cached, 3),
            line(LedgerKind::Live, 5),
            line(LedgerKind::Graphs, 0),
        ];
        let ledger = Ledger::new(DeviceId::Host, Bytes::mib(10), lines);
        assert_eq!((ledger.unknown_bytes, ledger.sum()), (2 << 20, 10 << 20));
        assert_eq!(ledger.lines.len(), 2, "a line of nothing is no line");
        assert!(ledger.to_string().contains("unknown             2.0 MiB"), "{ledger}");
        let over = Ledger::new(DeviceId::Host, Bytes::mib(10), vec![line(LedgerKind::Live, 12)]);
        assert_eq!((over.unknown_bytes, over.sum()), (-2 << 20, 10 << 20));
        assert!(over.to_string().contains("−2.0 MiB"), "{over}");
        assert_eq!(
            ledger.line(),
            "10.0 MiB in use (live 5.0 MiB x, cached 3.0 MiB x, unknown 2.0 MiB)"
        );
        assert_eq!(Ledger::new(DeviceId::Host, Bytes(0), Vec::new()).line(), "0.0 MiB in use");
        let whole = Ledger::new(DeviceId::Host, Bytes::mib(5), vec![line(LedgerKind::Live, 5)]);
        assert!(whole.to_string().contains("unknown             0.0 MiB"), "{whole}");
    }

    #[test]
    fn r22_captured_graphs_have_a_line_of_their_own() {
        let lines = vec![line(LedgerKind::Live, 5), line(LedgerKind::Graphs, 1)];
        let ledger = Ledger::new(DeviceId::Host, Bytes::mib(6), lines);
        assert_eq!(
            (ledger.of(LedgerKind::Graphs), ledger.of(LedgerKind::Live)),
            (Bytes::mib(1), Bytes::mib(5))
        );
        assert!(ledger.to_string().contains("  graphs              1.0 MiB"), "{ledger}");
    }
}
