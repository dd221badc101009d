//! Tagged memory: torch allocates inside `lowtide.tag(…)` from a pool of lowtide, so that this memory can
//! sleep and wake in the same process, under the same addresses.
//!
//! torch calls the two C functions in `entries.rs` for the segments of a `MemPool`. The tag is the one that
//! is in force on the calling thread (`scope.rs`). There is one pool for each device (`home.rs`).
//! `ahead.rs` makes backups while the program runs.
//!
//! Python and torch may hold their locks while the C functions run. So nothing here waits for the
//! interpreter while it holds a lock of its own.

mod ahead;
mod ahead_threads;
mod entries;
mod error;
mod home;
mod scope;
mod turns;

pub(crate) use ahead::{tags_ahead, tags_ahead_end, tags_ahead_state};
pub(crate) use error::TagError;
pub(crate) use scope::TagScope;
pub(crate) use turns::{TagStatus, tag_at, tag_refusal, tags, tags_sleep, tags_wake};
