//! The gate, owners and receipts: one program, because linking takes longer than most of the tests.
#![cfg(not(feature = "loom"))]

mod gate;
mod owners;
mod receipt;
