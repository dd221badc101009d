//! Where live blocks were allocated, so that a block that nobody frees can be found.
//!
//! Only blocks that free themselves ([`Block`](crate::Block)) are recorded: it costs one entry in a
//! hash table when such a block is made and when it goes. `Pool::alloc` and `Pool::free` record nothing.

use std::collections::HashMap;
use std::panic::Location;

use lowtide_device::Address;

use crate::lock::sync::{Mutex, MutexGuard};

/// A place in a program's source.
pub type Place = &'static Location<'static>;

/// The places of live blocks, by address.
#[derive(Default)]
pub(crate) struct Places {
    by_address: Mutex<HashMap<u64, Place>>,
}

impl Places {
    pub(crate) fn add(&self, address: Address, place: Place) {
        self.by_address().insert(address.0, place);
    }

    /// Forgets a block. Called before it is freed: afterwards its address may be another block's.
    pub(crate) fn remove(&self, address: Address) {
        self.by_address().remove(&address.0);
    }

    pub(crate) fn by_address(&self) -> MutexGuard<'_, HashMap<u64, Place>> {
        // An entry is added or removed in one step, so a panic leaves nothing half-done.
        self.by_address.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
