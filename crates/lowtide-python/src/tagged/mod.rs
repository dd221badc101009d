//! Tagged memory: torch allocates inside `lowtide.tag(…)` from a pool of lowtide, so that this memory can
//! sleep and wake in the same process, under the same addresses.
//!
//! torch calls the two C functions in `entries.rs` for the segments of a `MemPool`. The tag is the one that
//! is in force on the calling thread (`scope.rs`). There is one pool for each device (`pools.rs`).
//! `ahead.rs` makes backups while the program runs.
//!
//! Python and torch may hold their locks while the C functions run. So nothing here waits for the
//! interpreter while it holds a lock of its own.

pub(crate) mod ahead;
pub(crate) mod ahead_threads;
pub(crate) mod entries;
pub(crate) mod error;
pub(crate) mod pools;
pub(crate) mod scope;
pub(crate) mod turns;
