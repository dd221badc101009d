//! Turns the graph into the answer: holders, cuts, unreachable cycles, and what a shutdown drops.

pub(crate) mod below;
pub(crate) mod cuts;
pub(crate) mod dropped_references;
pub(crate) mod examine;
pub(crate) mod group;
pub(crate) mod in_use;
pub(crate) mod joined;
pub(crate) mod results;
pub(crate) mod rows;
pub(crate) mod shutdown;
pub(crate) mod unreachable;
