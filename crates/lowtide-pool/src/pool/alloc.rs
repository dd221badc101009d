//! Allocation and free. A hit takes the lock, finds a block and calls no driver; a miss is in
//! `miss.rs`.

use lowtide_device::{Address, Bytes};
use lowtide_types::Phase;

use crate::lock::limit::Limit;
use crate::policy::GRAIN;
use crate::policy::Policy;
use crate::pool::Pool;
use crate::pool::fence::StreamId;
use crate::state::BlockRequest;
use crate::state::tags::{Scope, Tag};
use crate::{Error, Result};

impl Pool {
    /// Allocates a block of at least this size and returns its address, which stays the same until
    /// the block is freed, through every sleep. It is a multiple of 256, or of 128 for blocks of
    /// up to 4 KiB. [`Pool::block`] returns a block that frees itself.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device is out of memory even after every free chunk was moved
    /// and every callback was asked; [`Error::LargerThanDevice`] and [`Error::NoAddresses`] where
    /// there are no addresses for this size; [`Error::Asleep`] where the tag is asleep; where the policy
    /// wakes it, the errors of [`Pool::wake`]; [`Error::InsideFence`] where the pool's fence allocates
    /// and no cached block fits; [`Error::InsideLimit`] where a limit allocates and that would wait.
    pub fn alloc(&self, size: Bytes, stream: StreamId, tag: Tag) -> Result<Address> {
        self.alloc_within(size, stream, tag, Limit::NONE)
    }

    /// Allocates like [`Pool::alloc`]. The limit is asked while the allocation waits: for the end of
    /// a sleep or a wake of its tag, for streams, and for the driver calls of other threads.
    ///
    /// # Errors
    /// As [`Pool::alloc`]; [`Error::Stopped`] where the limit said to stop.
    pub fn alloc_within(
        &self,
        size: Bytes,
        stream: StreamId,
        tag: Tag,
        limit: Limit<'_>,
    ) -> Result<Address> {
        let align = Policy::alignment_of(size);
        let grains = size.0.max(1).div_ceil(align).saturating_mul(align / GRAIN);
        let Ok(grains) = u32::try_from(grains) else {
            return Err(Error::no_addresses(size, self.shared.device.info()));
        };
        let limit = limit.asked_by(&self.shared.monitor);
        loop {
            let mut state = self.state()?;
            let known = state.tags.get(tag)?;
            match known.phase() {
                Phase::Awake => {}
                Phase::Turning => {
                    let has_turned =
                        |tags: &mut crate::state::tags::Tags| tags[tag].phase() != Phase::Turning;
                    drop(self.shared.monitor.wait_until(state, limit, has_turned)?);
                    continue;
                }
                Phase::Asleep if self.shared.policy.wake_on_alloc => {
                    drop(state);
                    self.wake_within(Scope::Tags(&[tag]), limit)?;
                    continue;
                }
                Phase::Asleep => return Err(Error::Asleep { tag: known.name.to_string() }),
            }
            let request =
                BlockRequest { arena_id: state.arena_for(tag, grains), grains, align, stream, tag };
            let found = match state.hit(&request) {
                Some(address) => Some(address),
                None => state.take(&request, false),
            };
            if let Some(address) = found {
                if let Some(recorder) = &mut state.recorder {
                    recorder.allocated(address, size, stream);
                }
                return Ok(address);
            }
            drop(state);
            // `None` where the tag began to turn meanwhile.
            if let Some(address) = self.miss(&request, limit)? {
                if let Some(recorder) = &mut self.state()?.recorder {
                    recorder.allocated(address, size, stream);
                }
                return Ok(address);
            }
        }
    }

    /// Frees a block, asleep or awake. Work that was given to `stream` before may still use it;
    /// other streams are not given its memory until the fence says that the stream has passed.
    ///
    /// # Errors
    /// [`Error::UnknownBlock`] where no live block begins at this address.
    pub fn free(&self, address: Address, stream: StreamId) -> Result<()> {
        let mut state = self.state()?;
        state.give_back(address, stream)?;
        if let Some(recorder) = &mut state.recorder {
            recorder.freed(address, stream);
        }
        if state.streams.is_crowded() {
            drop(state);
            match self.settle_streams(false, Limit::NONE) {
                // The block is free. The next crowd is settled by somebody else.
                Err(Error::InsideFence) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }
}
