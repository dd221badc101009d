//! Where a walk begins: the question, the roots, and the objects that the collector lists.

pub(crate) mod collector_lists;
pub(crate) mod frames;
pub(crate) mod frozen;
pub(crate) mod interpreter;
pub(crate) mod links;
pub(crate) mod of_type;
pub(crate) mod question;
pub(crate) mod roots;
pub(crate) mod variables;
