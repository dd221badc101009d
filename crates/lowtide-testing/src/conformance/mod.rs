//! One conformance suite for devices, written once, run for `host`, for the driver double and for
//! a real GPU.
//!
//! A case is given a way to make a device and asserts what every device does. Cases run one after
//! another: they look at what the device says is in use.

mod copies;
mod digests;
mod fixture;
mod handed_over;
mod mappings;
mod memory;
mod neighbours;
mod packing;
mod streams;

use crate::suite::{Case, Target};

/// Returns every case that applies to a target.
pub fn cases(target: Target) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(memory::CASES);
    cases.extend(mappings::CASES);
    cases.extend(copies::CASES);
    cases.extend(digests::CASES);
    cases.extend(packing::CASES);
    cases.extend(streams::CASES);
    if target != Target::Host {
        cases.extend(neighbours::CASES);
        cases.extend(handed_over::CASES);
    }
    cases.into_iter().map(|(name, run)| Case::new(name, run)).collect()
}
