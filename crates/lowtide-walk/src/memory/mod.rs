//! Device memory: what Python reports of tensors, and the graph with a node for each piece of memory.

pub(crate) mod heap;
pub(crate) mod nodes;
pub(crate) mod reported;
