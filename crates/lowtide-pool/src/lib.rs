//! An allocator of device memory whose blocks can sleep: their memory leaves the device, their
//! addresses stay, and the same bytes come back with a wake.
//!
//! A [`Pool`] hands out blocks. Each block has a [`Tag`], and a tag has a [`SleepPolicy`]: a sleep
//! saves the content of its blocks to the host, discards it, or leaves it on the device.

mod ahead;
mod alloc;
mod arena;
mod backup;
mod bins;
mod block;
mod blocks;
mod carriers;
mod carry;
mod changes;
mod error;
mod feed;
mod fence;
mod hand;
mod handles;
mod handover;
mod haul;
mod inside;
mod lanes;
mod leaving;
mod limit;
mod live_blocks;
mod losing;
mod memory;
mod miss;
mod monitor;
mod moves;
mod neighbours;
mod piece;
mod places;
mod policy;
mod pool;
mod preparing;
mod pressure;
mod record;
pub mod replay;
mod restoring;
mod retry;
mod ring;
mod room;
mod saving;
mod settle;
mod shares;
mod shelf;
mod slab;
mod sleep;
mod sleep_part;
mod snapshot;
mod spare;
mod state;
mod streams;
mod sync;
mod tag;
mod tag_policy;
mod tags;
pub mod trace;
mod trim;
mod turn;
mod turn_step;
mod unfinished;
mod wake;
mod wake_part;

pub use ahead::{AheadNext, AheadReport};
pub use block::Block;
pub use error::{Error, Result};
pub use fence::{Fence, StreamFence, StreamId};
pub use limit::Limit;
pub use live_blocks::LiveBlocks;
pub use places::Place;
pub use policy::Policy;
pub use pool::{Pool, PoolBuilder};
pub use pressure::{Pressure, PressureAnswer, Subscription};
pub use record::Recording;
pub use state::PoolCounts;
pub use tag::{Scope, Tag};
pub use turn_step::TurnStep;

pub use lowtide_types::{
    LostBlock, Phase, PoolSnapshot, SleepPolicy, SleepReport, TagSnapshot, WakeReport,
};
