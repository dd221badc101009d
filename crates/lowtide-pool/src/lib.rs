//! An allocator of device memory whose blocks can sleep: their memory leaves the device, their
//! addresses stay, and the same bytes come back with a wake.
//!
//! A [`Pool`] hands out blocks. Each block has a [`Tag`], and a tag has a [`SleepPolicy`]: a sleep
//! saves the content of its blocks to the host, discards it, or leaves it on the device.

mod ahead;
mod backups;
mod copy;
mod error;
mod lock;
mod policy;
mod pool;
mod state;
pub mod trace;
mod turns;

pub use ahead::{AheadNext, AheadReport};
pub use error::{Error, Result, TurnStep};
pub use lock::limit::Limit;
#[doc(hidden)]
pub use policy::Numbers;
pub use policy::Policy;
pub use pool::block::Block;
pub use pool::fence::{Fence, StreamFence, StreamId};
pub use pool::pressure::{Pressure, PressureAnswer, Subscription};
pub use pool::snapshot::LiveBlocks;
pub use pool::{Pool, PoolBuilder};
pub use state::PoolCounts;
pub use state::tags::{Scope, Tag};
pub use trace::record::Recording;
pub use trace::replay;

pub use lowtide_types::{
    LostBlock, Phase, PoolSnapshot, SleepPolicy, SleepReport, TagSnapshot, WakeReport,
};
