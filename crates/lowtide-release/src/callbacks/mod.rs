//! Code that is not ours and that a release runs: what it is given, how long it may take, and what
//! happens if it does not end.

mod handle;
mod hooks;
mod left_behind;

pub use handle::{Climb, GoOn};
pub(crate) use handle::{Origin, Ran};
pub use hooks::{Hook, HookCall, HookPoint, Registration, Restore, Setting};
pub(crate) use hooks::{Kept, Round};
pub(crate) use left_behind::{LeftBehind, PartName};
