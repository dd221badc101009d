//! The gate, climbs, owners and receipts: one program, because linking takes longer than most of the tests.

mod by_need;
mod callbacks;
mod climb;
mod forked;
mod gate;
mod gate_threads;
mod idle;
mod left_behind;
mod owners;
mod receipt;
mod world;
