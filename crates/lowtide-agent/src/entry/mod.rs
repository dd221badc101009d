//! The program's way in: how it finds the driver's functions, and the functions that stand in for them.

mod allocations;
mod contexts;
mod handles;
mod hooks;
mod lookup;
mod numbers;
mod pointers;
mod sharing;
mod trampolines;
mod unknown;
