//! Waking without the blocks whose backups are bad.
//!
//! A wake refuses a page that does not match its digest, and everything stays asleep. A caller who has
//! the content of some blocks elsewhere, or can do without it, may prefer to have the rest.

use lowtide_device::{Address, Bytes};
use lowtide_types::{LostBlock, WakeReport};

use crate::backups::Backups;
use crate::backups::slab::PAGE;
use crate::lock::limit::Limit;
use crate::pool::Pool;
use crate::state::State;
use crate::state::room::RoomId;
use crate::state::tag::Scope;
use crate::turns::wake_part::WakePart;
use crate::{Error, Result};

/// Whether a wake may lose blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Refused,
    Accepted,
}

impl Pool {
    /// Wakes tags like [`Pool::wake_within`], also where backup pages are bad. Blocks with bytes on such
    /// a page are lost: [`WakeReport::lost`] names each of them, their addresses stay valid, and their
    /// content is undefined. Every byte of all other blocks is right.
    ///
    /// A lost [`Block`](crate::Block) cannot be read until it was filled or written whole. The pool
    /// does not see what is written by address: such a block stays lost until it is freed.
    ///
    /// # Errors
    /// As [`Pool::wake_within`], apart from [`Error::Corrupt`].
    ///
    /// ```
    /// # use lowtide_device::{Bytes, Device, HostOptions};
    /// # use lowtide_pool::{Error, Limit, Pool, Scope};
    /// # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
    /// # let pool = Pool::new(&device)?;
    /// # let block = pool.block(Bytes::mib(5))?;
    /// # pool.sleep(Scope::Whole)?;
    /// match pool.wake(Scope::Whole) {
    ///     Err(error @ Error::Corrupt { .. }) => {
    ///         eprintln!("{error}");
    ///         for block in pool.wake_losing(Scope::Whole, Limit::NONE)?.lost {
    ///             eprintln!("load again: {:#x} of {}, {}", block.address, block.tag, block.size);
    ///         }
    ///     }
    ///     other => drop(other?),
    /// }
    /// # Ok::<(), lowtide_pool::Error>(())
    /// ```
    pub fn wake_losing(&self, scope: Scope<'_>, limit: Limit<'_>) -> Result<WakeReport> {
        self.wake_with(scope, limit, Loss::Accepted)
    }

    /// Returns the blocks on bad pages and forgets the backups of these pages, or refuses.
    pub(crate) fn lose(
        &self,
        bad: &[(&WakePart, u64)],
        backups: &mut Backups,
        loss: Loss,
    ) -> Result<Vec<LostBlock>> {
        if bad.is_empty() {
            return Ok(Vec::new());
        }
        let state = self.state()?;
        if loss == Loss::Refused {
            return Err(state.corrupt(bad));
        }
        let lost = state.blocks_on(bad);
        drop(state);
        // Otherwise a sleep that finds the content of then on the page would keep the bad backup.
        for (part, page) in bad {
            if let Some(saved) = backups.pages(part.room).remove(page) {
                backups.give(saved.location);
            }
        }
        tracing::error!(
            pages = bad.len(),
            blocks = lost.len(),
            "backups were bad; blocks are lost"
        );
        Ok(lost)
    }
}

impl State {
    /// Records lost blocks, when their tags are awake. What was freed meanwhile is nobody's.
    pub(crate) fn record_lost(&mut self, blocks: &[LostBlock]) {
        for LostBlock { address, .. } in blocks {
            if self.room_at(Address(*address)).is_ok() {
                self.lost.insert(*address);
            }
        }
    }

    // The error that names these pages, of which there is one at least.
    fn corrupt(&self, bad: &[(&WakePart, u64)]) -> Error {
        let address = |(part, page): &(&WakePart, u64)| address_of(part, *page);
        let (part, page) = bad[0];
        let block = self.rooms[part.room].arena.live_block_in(&(page..page + PAGE));
        Error::Corrupt {
            tag: self.name_of(part.room),
            block: address_of(part, block.unwrap_or(page)),
            page: address(&bad[0]),
            others: bad[1..].iter().map(address).collect(),
        }
    }

    // The blocks of callers with bytes on these pages, each once, by address.
    fn blocks_on(&self, bad: &[(&WakePart, u64)]) -> Vec<LostBlock> {
        let mut lost = Vec::new();
        let mut live = self.live_ranges();
        live.sort_unstable_by_key(|block| block.start);
        for block in live {
            let is_on = |(part, page): &&(&WakePart, u64)| {
                let start = address_of(part, *page).0;
                block.start < start + PAGE && start < block.end
            };
            if let Some((part, _)) = bad.iter().find(is_on) {
                let (tag, size) = (self.name_of(part.room), Bytes(block.end - block.start));
                lost.push(LostBlock { tag, address: block.start, size });
            }
        }
        lost
    }

    fn name_of(&self, room: RoomId) -> String {
        self.tags[room.tag()].name.to_string()
    }
}

fn address_of(part: &WakePart, offset: u64) -> Address {
    part.reservation.address().plus(Bytes(offset))
}
