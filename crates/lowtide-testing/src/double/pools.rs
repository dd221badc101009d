//! The driver's own pools, as far as the agent needs them: what was freed in the order of a stream stays
//! taken from the device until somebody trims the pool. So does a real pool with a release threshold.

use super::code::INVALID_VALUE;
use super::entry::entry;
use super::objects::RegionKind;
use super::pointers::Out;
use super::settings::MAX_DEVICES;
use super::tables;

/// The handle of device 0's default pool; the others follow.
const FIRST_POOL: u64 = 0xb001_0000;

entry! {
    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) {
        let index = usize::try_from(device).ok().filter(|index| *index < MAX_DEVICES);
        pool.put(FIRST_POOL + index.ok_or(INVALID_VALUE)? as u64)
    }

    // At once: the double has no order of streams for it.
    fn cuMemAllocAsync(at: Out<u64>, bytes: u64, _stream: u64) {
        super::plain::allocate(&at, bytes)?;
        tables::lock().pooled.insert(at.get()?, false);
        Ok(())
    }

    fn cuMemFreeAsync(at: u64, _stream: u64) {
        let mut state = tables::lock();
        state.healthy_owner(at)?;
        let region = state.regions.get(&at).ok_or(INVALID_VALUE)?;
        if !matches!(region.kind, RegionKind::Plain(..)) || state.pooled.get(&at) == Some(&true) {
            return Err(INVALID_VALUE);
        }
        state.pooled.insert(at, true);
        Ok(())
    }

    // Whatever is to be left: the double keeps nothing.
    fn cuMemPoolTrimTo(pool: u64, _left: usize) {
        let mut state = tables::lock();
        let is_of_pool = |state: &tables::Tables, at: &u64| match &state.regions[at].kind {
            RegionKind::Plain(owner, _) => FIRST_POOL + owner.device as u64 == pool,
            _ => false,
        };
        let freed = state.pooled.iter().filter(|(_, freed)| **freed).map(|(at, _)| *at);
        let freed: Vec<u64> = freed.filter(|at| is_of_pool(&state, at)).collect();
        for at in freed {
            state.free_plain(at)?;
        }
        Ok(())
    }
}
