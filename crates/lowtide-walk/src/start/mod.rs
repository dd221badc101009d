//! Where a walk begins: the question, the roots, and the objects that the collector lists.

pub(crate) mod collector;
pub(crate) mod frames;
pub(crate) mod frozen;
pub(crate) mod question;
pub(crate) mod roots;
