//! Blocks of a `host` device with bytes that are known, for tests that put them to sleep.
#![allow(unsafe_code, reason = "writes to blocks by their addresses")]
#![allow(dead_code, reason = "not every program uses all of it")]

use std::ptr::with_exposed_provenance_mut;
use std::slice;

use lowtide_device::{Address, Bytes, Device, HostOptions};
use lowtide_pool::{Policy, Pool, StreamId, Tag};

pub(crate) const PAGE: Bytes = Bytes::mib(2);
pub(crate) const STREAM: StreamId = StreamId(0);

pub(crate) fn host(budget: Bytes) -> Device {
    Device::host(HostOptions { budget: Some(budget), small_pages: true }).unwrap()
}

pub(crate) fn pool_on(device: &Device, policy: Policy) -> Pool {
    Pool::builder(device).policy(policy).build().unwrap()
}

pub(crate) fn in_use(device: &Device) -> Bytes {
    device.usage().unwrap().in_use()
}

/// What must hold between turns, and what the pool says is what the device says.
pub(crate) fn check(pool: &Pool) {
    pool.check();
    assert_eq!(in_use(pool.device()), pool.counts().physical);
}

/// A block with bytes that nobody else has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
    pub(crate) seed: u64,
}

impl Written {
    pub(crate) fn new(pool: &Pool, size: Bytes, tag: Tag, seed: u64) -> Written {
        let written = Written { address: pool.alloc(size, STREAM, tag).unwrap(), size, seed };
        written.write();
        written
    }

    pub(crate) fn write(&self) {
        for (part, index) in self.bytes().chunks_mut(8).zip(0..) {
            part.copy_from_slice(&word(self.seed, index)[..part.len()]);
        }
    }

    pub(crate) fn assert_is_whole(&self) {
        let is_right = |(part, index): (&[u8], u64)| *part == word(self.seed, index)[..part.len()];
        if self.bytes().chunks(8).zip(0..).all(is_right) {
            return;
        }
        let wrong = self.bytes().iter().zip(0..).find(|(byte, at)| **byte != noise(self.seed, *at));
        panic!("{self:?} has other bytes: {wrong:?} with its offset");
    }

    // Only while its tag is awake and nobody else touches it.
    pub(crate) fn bytes<'a>(self) -> &'a mut [u8] {
        let at = with_exposed_provenance_mut::<u8>(self.address.0 as usize);
        // SAFETY: a live block of a `host` device whose tag is awake: mapped, open, and this
        // thread's alone. The borrow ends before the test puts the tag to sleep.
        unsafe { slice::from_raw_parts_mut(at, self.size.as_usize()) }
    }
}

// Eight bytes: never zero, and others for every seed. Those of odd seeds are values of bf16 that lie close
// together, so that their pages pack.
fn word(seed: u64, index: u64) -> [u8; 8] {
    let mixed = (seed << 32 | index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x2545_f491_4f6c_dd1d) | 0x0101_0101_0101_0101;
    let is_odd = seed % 2 == 1;
    let mixed = if is_odd { mixed & 0x83ff_83ff_83ff_83ff | 0x3c00_3c00_3c00_3c00 } else { mixed };
    mixed.to_le_bytes()
}

/// Returns the byte at this offset.
pub(crate) fn noise(seed: u64, at: u64) -> u8 {
    word(seed, at / 8)[at as usize % 8]
}

// They once were the same, so that no test noticed when a block got the bytes of another one.
#[test]
fn other_seeds_are_other_bytes() {
    for (one, other) in [(2, 4), (20, 22), (1, 3), (1, 2)] {
        let same = (0..100_000).filter(|at| noise(one, *at) == noise(other, *at)).count();
        assert!(same < 20_000, "{same} bytes of {one} and {other}");
    }
}
