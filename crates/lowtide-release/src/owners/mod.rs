//! Owners: what has to be dropped, in which order, and which references keep it alive.
//!
//! An engine that shuts down has to drop a dozen objects that refer to each other, while its caller
//! keeps the engine. Dropped in the wrong order, or with one reference forgotten in a wrapper, the
//! memory stays and nothing says why. So each component registers what it owns and declares what it
//! borrows. A shutdown then drops borrowers before what they borrow, and names, by path and count, the
//! references that are left.
//!
//! `report` is plain data; `order` sorts; `table` is what is known; `lent` and `owned` are the references
//! that callers have; `registry` is the public face.

mod lent;
mod order;
mod owned;
mod registry;
mod report;
mod table;

pub use lent::Lent;
pub use owned::Owned;
pub use registry::Owners;
pub use report::{Cycle, DropOutcome, Dropped, HeldPath, NewPaths, Paths, Plan, Planned, Shutdown};
