//! The cost of cutting a reference.

/// Whether a reference may be cut, and at what cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutCost {
    /// It may be cut at this cost, which is at least 1. If every reference costs 1, the smallest cut
    /// is the one with the fewest references.
    Cost(u32),
    /// It cannot be cut, or nobody should.
    Never,
}
