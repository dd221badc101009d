//! Virtual memory that the program makes itself: `cuMemCreate`, `cuMemMap` and their family.
//!
//! A handle of the program is a block of a pool, which can sleep, and one chunk with the properties that the
//! program asked for. The program gets a number of ours for it, because the driver gives another handle when the
//! memory is made anew. What the program maps is the chunk's real handle, beside the mapping that the pool has
//! of it. Before a sleep the program's mappings are taken away; after a wake they are made again, at the same
//! addresses and with the same access.

mod block;
mod mappings;
mod tables;

pub(crate) use tables::VirtualMemory;
