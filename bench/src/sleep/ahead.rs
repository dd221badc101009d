//! Backups ahead of the first sleep, and what they cost a program that launches small work one after the other.

use std::time::{Duration, Instant};

use anyhow::ensure;
use lowtide::{AheadShare, AheadThread};
use lowtide_device::{Bytes, Device, Reservation, Stream};
use lowtide_pool::{AheadNext, Pool};
use serde::{Deserialize, Serialize};

/// The time for which the loop runs alone, before and after.
const ALONE: Duration = Duration::from_secs(1);
/// The number of launches between two waits for the stream.
const BETWEEN_WAITS: u32 = 64;
/// What one launch fills: so little that the launch itself takes longer.
const FILLED: Bytes = Bytes::kib(4);

/// The measurements of one process.
#[derive(Serialize, Deserialize)]
pub(super) struct Ahead {
    /// From the start until nothing was left to back up.
    pub(super) backed_up_s: f64,
    /// Launches per second, alone and meanwhile.
    pub(super) launches_alone: f64,
    pub(super) launches_meanwhile: f64,
}

/// Backs up everything in a share of the time, while a loop launches.
pub(super) fn measure(pool: &Pool, share_percent: u32) -> anyhow::Result<Ahead> {
    let device = pool.device();
    device.prepare_digests()?;
    let work = Work::new(device)?;
    // The first launches of a process are slow.
    work.launch_while(|so_far| so_far < ALONE / 5)?;
    let alone = || work.launch_while(|so_far| so_far < ALONE).map(|(launches, _)| launches);
    let before = alone()?;
    let ahead = AheadThread::start(pool, AheadShare::percent(share_percent.into())?)?;
    let has_more = || ahead.last().is_none_or(|report| report.next == AheadNext::More);
    let (launches_meanwhile, backed_up_s) = work.launch_while(|_| has_more())?;
    let last = ahead.last().map(|report| report.next);
    ensure!(last == Some(AheadNext::Nothing), "not everything could be backed up: {last:?}");
    drop(ahead);
    // A GPU's clocks drift, so the rate alone is taken from both sides.
    let launches_alone = f64::midpoint(before, alone()?);
    Ok(Ahead { backed_up_s, launches_alone, launches_meanwhile })
}

/// A loop that launches small work.
struct Work {
    memory: Reservation,
    stream: Stream,
}

impl Work {
    fn new(device: &Device) -> anyhow::Result<Work> {
        let size = device.info().page;
        let (memory, stream) = (device.reserve(size)?, device.stream()?);
        memory.map(Bytes::ZERO, device.create(size)?).map_err(lowtide_device::Error::from)?;
        memory.open(Bytes::ZERO, size)?;
        Ok(Work { memory, stream })
    }

    // Launches for as long as it is told to; returns launches per second, and the seconds.
    fn launch_while(&self, go_on: impl Fn(Duration) -> bool) -> anyhow::Result<(f64, f64)> {
        let (began, mut launches) = (Instant::now(), 0u32);
        while launches == 0 || go_on(began.elapsed()) {
            for _ in 0..BETWEEN_WAITS {
                self.stream.fill((&self.memory, Bytes::ZERO), 1, FILLED)?;
            }
            self.stream.synchronize()?;
            launches = launches.saturating_add(BETWEEN_WAITS);
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok((f64::from(launches) / seconds, seconds))
    }
}
