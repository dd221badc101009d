//! A pool on a `host` device with a releaser, for one test.

use std::sync::Arc;

use lowtide_device::{Bytes, Device, HostOptions};
use lowtide_pool::{Block, Pool};
use lowtide_release::{Clock, ManualClock, Releaser};

pub(crate) struct World<C = ManualClock> {
    pub(crate) pool: Pool,
    pub(crate) releaser: Releaser,
    pub(crate) clock: C,
}

/// Returns a device of so many MiB.
pub(crate) fn host(mib: u64) -> Device {
    let options = HostOptions { budget: Some(Bytes::mib(mib)), small_pages: true };
    Device::host(options).unwrap()
}

impl<C: Clock + Clone + Default + 'static> World<C> {
    pub(crate) fn new() -> World<C> {
        let (device, clock) = (host(32), C::default());
        let pool = Pool::new(&device).unwrap();
        let releaser = Releaser::new(&device, Arc::new(clock.clone()));
        releaser.add_pool(&pool);
        World { pool, releaser, clock }
    }

    pub(crate) fn block(&self, mib: u64) -> Block {
        self.pool.block(Bytes::mib(mib)).unwrap()
    }
}
