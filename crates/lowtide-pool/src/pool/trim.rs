//! Trim: cached memory goes back to the device.

use std::slice;

use std::ops::Range;

use lowtide_device::{Bytes, Reservation};

use crate::Result;
use crate::lock::limit::Limit;
use crate::pool::Pool;
use crate::pool::moves::FreeChunk;
use crate::state::State;

impl Pool {
    /// Gives cached memory back to the device until no more than `keep` is cached, and returns how
    /// much that was. A chunk goes only as a whole: it stays while a byte of it is live.
    ///
    /// # Errors
    /// What the device refused; what was given back until then stays given back. Of a broken pool only
    /// what is surely free goes back, and the error says that it is broken.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.trim_while(keep, || true)
    }

    /// Returns how much a trim would give back: the chunks of awake tags without a live byte. Blocks
    /// whose stream has not passed count as free, because a trim waits for it.
    /// Zero where the pool refuses all work.
    pub fn trimmable(&self) -> Bytes {
        let Ok(mut state) = self.state() else { return Bytes::ZERO };
        state.clear_shelves();
        let arenas = state.awake_arenas();
        arenas.into_iter().map(|arena_id| Bytes(state.arenas[arena_id].without_live_bytes())).sum()
    }

    /// Trims for as long as `go_on` returns `true`. It is asked before each chunk, the largest first.
    /// Nothing is held while it is asked: it may allocate, free, sleep or wake.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use lowtide_device::{Bytes, Device};
    /// # use lowtide_pool::Pool;
    /// # let pool = Pool::new(&Device::dry_run(Bytes::gib(1)).0)?;
    /// let until = Instant::now() + Duration::from_millis(5);
    /// let given_back = pool.trim_while(Bytes::ZERO, || Instant::now() < until)?;
    /// # Ok::<(), lowtide_pool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::trim`].
    pub fn trim_while(&self, keep: Bytes, mut go_on: impl FnMut() -> bool) -> Result<Bytes> {
        if let Err(refused) = self.health() {
            self.give_back_what_is_surely_free();
            return Err(refused);
        }
        self.settle_streams(false, Limit::NONE)?;
        let mut state = self.state()?;
        state.clear_shelves();
        let enough = state.cached_awake().saturating_sub(keep);
        let free = state.free_chunks(u64::MAX);
        drop(state);
        let mut given_back = Bytes::ZERO;
        for chunk in free {
            if given_back >= enough || !go_on() {
                break;
            }
            given_back += self.give_chunk_back(chunk)?;
        }
        if given_back < enough && self.state()?.has_stuck() && go_on() {
            given_back += self.give_stuck_back()?;
        }
        self.state()?.end_trim();
        tracing::debug!(%given_back, "trimmed");
        Ok(given_back)
    }

    /// Tries again to give back what could be neither opened nor unmapped. Returns how much went.
    ///
    /// # Errors
    /// What the device refused first; the others are tried, too.
    pub(crate) fn give_stuck_back(&self) -> Result<Bytes> {
        let _change = self.shared.monitor.change("a trim");
        let claimed = self.state()?.claim_stuck();
        let (mut given_back, mut refused) = (Bytes::ZERO, Ok(()));
        for stuck in &claimed {
            let freed = stuck.unmap().map(|chunk| chunk.size());
            self.state()?.settle_stuck(stuck, freed.is_ok());
            match freed {
                Ok(size) => given_back += size,
                Err(error) => refused = refused.and(Err(error)),
            }
        }
        if !claimed.is_empty() {
            self.shared.monitor.notify();
        }
        refused?;
        Ok(given_back)
    }

    // Zero where the chunk is no longer free. The memory is gone when this returns.
    fn give_chunk_back(&self, chunk: FreeChunk) -> Result<Bytes> {
        let _change = self.shared.monitor.change("a trim");
        let claimed = self.state()?.claim(chunk);
        let Some(claimed) = claimed else { return Ok(Bytes::ZERO) };
        let freed = claimed.unmap().map(|chunk| chunk.size());
        self.state()?.settle_moves(slice::from_ref(&claimed), usize::from(freed.is_ok()));
        self.shared.monitor.notify();
        Ok(freed?)
    }

    // Memory of a broken pool: staging buffers, and chunks without a block of a caller.
    fn give_back_what_is_surely_free(&self) {
        let Some(mut state) = self.shared.monitor.lock_as_it_is() else { return };
        let (free, streams) = (state.surely_free(), state.copy_streams.take());
        drop(state);
        drop(streams);
        for (reservation, Range { start, end }) in free {
            match reservation.unmap(Bytes(start), Bytes(end - start)) {
                Ok(chunks) => drop(chunks),
                Err(error) => {
                    tracing::warn!(%error, "memory of a broken pool stays until it is dropped");
                }
            }
        }
    }
}

impl State {
    // What the device layer has mapped and no caller has a block on. The one table that this relies on
    // is that of the callers' blocks, and only where it agrees with the counts. Nothing is sure while a
    // turn is under way, or where streams may still use what was freed.
    fn surely_free(&self) -> Vec<(Reservation, Range<u64>)> {
        let live: Vec<Range<u64>> = self.live_ranges();
        let bytes: u64 = live.iter().map(|block| block.end - block.start).sum();
        let agrees = (bytes, live.len() as u64) == (self.counts().live.0, self.counts().blocks);
        if !agrees || self.tags.has_turn() || !self.frees_at_once() {
            return Vec::new();
        }
        let mut free = Vec::new();
        for (_, arena) in self.arenas.iter() {
            let reservation = &arena.reservation;
            let base = reservation.address().0;
            for mapping in reservation.mappings() {
                let (start, end) = (base + mapping.range.start, base + mapping.range.end);
                if !live.iter().any(|block| block.start < end && start < block.end) {
                    free.push((reservation.clone(), mapping.range));
                }
            }
        }
        free
    }
}
