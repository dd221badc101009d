//! The nodes that a cut is to make unreachable.

use std::ops::Range;

use crate::order::Rank;
use crate::tree::Tree;

/// Ranks that are to be cut off, none of which dominates another.
///
/// Whatever they dominate is reached only through them, so no path to them leads over it.
#[derive(Default)]
pub(crate) struct Sinks {
    /// In the order of positions in the dominator tree.
    ranks: Vec<Rank>,
    /// The positions of what each dominates.
    spans: Vec<Range<u32>>,
}

impl Sinks {
    /// Takes those of the ranks that no other of them dominates.
    pub(crate) fn new(tree: &Tree, ranks: impl IntoIterator<Item = Rank>) -> Sinks {
        let mut ranks: Vec<Rank> = ranks.into_iter().collect();
        ranks.sort_unstable_by_key(|rank| tree.start(*rank));
        let mut sinks = Sinks::default();
        for rank in ranks {
            let span = tree.span(rank);
            if sinks.spans.last().is_none_or(|last| last.end <= span.start) {
                sinks.spans.push(span);
                sinks.ranks.push(rank);
            }
        }
        sinks
    }

    pub(crate) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Returns whether one of the sinks dominates `rank`, or is it.
    pub(crate) fn dominate(&self, tree: &Tree, rank: Rank) -> bool {
        let start = tree.start(rank);
        let after = self.spans.partition_point(|span| span.start <= start);
        after > 0 && self.spans[after - 1].contains(&start)
    }

    /// Returns the nearest rank that dominates all sinks and is none of them. `None` if there are no
    /// sinks.
    pub(crate) fn source(&self, tree: &Tree) -> Option<Rank> {
        let (first, last) = (*self.ranks.first()?, *self.ranks.last()?);
        let mut source = tree.above(first);
        // A rank that dominates the first and the last position dominates all between them.
        while !tree.dominates(source, last) {
            source = tree.above(source);
        }
        Some(source)
    }
}
