//! Blocks of a `host` device with bytes that are known, for tests that put them to sleep.
#![allow(unsafe_code, reason = "writes to blocks by their addresses")]
#![allow(dead_code, reason = "not every program uses all of it")]

use std::ptr::with_exposed_provenance_mut;
use std::slice;

use lowtide_device::{Address, Bytes, Device, HostOptions};
use lowtide_pool::{Policy, Pool, Scope, StreamId, Tag};
use lowtide_testing::noise::words;

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

/// Expects that these blocks have their bytes, and what must hold between turns.
pub(crate) fn check_whole(pool: &Pool, blocks: &[Written]) {
    blocks.iter().for_each(Written::assert_is_whole);
    check(pool);
}

/// Wakes all tags, and expects the same.
pub(crate) fn wake_whole(pool: &Pool, blocks: &[Written]) {
    pool.wake(Scope::Whole).unwrap();
    check_whole(pool, blocks);
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
        words::fill(self.seed, self.bytes());
    }

    pub(crate) fn assert_is_whole(&self) {
        let wrong = words::first_wrong(self.seed, self.bytes());
        assert_eq!(wrong, None, "{self:?} has other bytes: the offset, and the byte there");
    }

    // Only while its tag is awake and nobody else touches it.
    pub(crate) fn bytes<'a>(self) -> &'a mut [u8] {
        let at = with_exposed_provenance_mut::<u8>(self.address.0 as usize);
        // SAFETY: a live block of a `host` device whose tag is awake: mapped, open, and this
        // thread's alone. The borrow ends before the test puts the tag to sleep.
        unsafe { slice::from_raw_parts_mut(at, self.size.as_usize()) }
    }
}
