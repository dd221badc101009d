//! The speeds that `doctor --measure` reports: copies in each direction, digests, and the preparation
//! of host memory. Each is the median of several turns. The first preparation is reported separately:
//! a virtual machine that has just started may have to obtain the memory from its host first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide_device::digest::Keys;
use lowtide_device::headroom::HostHeadroom;
use lowtide_device::{Bytes, Device, DeviceId, HostMemory, Reservation};
use serde::Serialize;

use crate::text::progress::Progress;

const TURNS: usize = 5;
const PAGE: Bytes = Bytes::mib(2);
const MOST: Bytes = Bytes::gib(16);
/// A processor computes digests and copies at a hundredth of the speed.
const MOST_ON_HOST: Bytes = Bytes::mib(256);

/// The speeds of a device, in GiB/s.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Speeds {
    /// The bytes of each turn.
    pub(crate) size_bytes: Bytes,
    /// The number of turns.
    pub(crate) turns: usize,
    /// Copies from the device to the host.
    pub(crate) link_out_gib_s: f64,
    /// Copies from the host to the device.
    pub(crate) link_in_gib_s: f64,
    /// Digests on the device.
    pub(crate) digest_gib_s: f64,
    /// Host memory: allocated, touched and registered.
    pub(crate) prepare_gib_s: f64,
    /// The same, the first time.
    pub(crate) prepare_first_gib_s: f64,
}

/// Measures the speeds of a device.
pub(crate) fn measure(device: &Device) -> anyhow::Result<Speeds> {
    let size = size_for(device)?;
    let planned = Bytes(size.0 * 4 * TURNS as u64);
    let turns = Turns { progress: Progress::of(planned), size };
    turns.progress.say(format!("measuring {}", device.info().id));
    let reservation = filled(device, size)?;
    let (prepare, prepare_first, memory) = turns.prepare(device)?;
    let stream = device.stream()?;
    let (from, to) = ((&reservation, Bytes::ZERO), (&memory, Bytes::ZERO));
    let link_out = turns.median(|| {
        stream.copy_out(from, to, size)?;
        stream.synchronize()
    })?;
    let link_in = turns.median(|| {
        stream.copy_in(to, from, size)?;
        stream.synchronize()
    })?;
    let keys = Keys::of_this_process();
    stream.digest(from, size, keys)?.wait()?; // loads the kernel
    let digest = turns.median(|| stream.digest(from, size, keys)?.wait())?;
    let speed = |time: Duration| size.as_gib() / time.as_secs_f64();
    Ok(Speeds {
        size_bytes: size,
        turns: TURNS,
        link_out_gib_s: speed(link_out),
        link_in_gib_s: speed(link_in),
        digest_gib_s: speed(digest),
        prepare_gib_s: speed(prepare),
        prepare_first_gib_s: speed(prepare_first),
    })
}

// A quarter of what is free, on the device and on this machine.
fn size_for(device: &Device) -> anyhow::Result<Bytes> {
    let most = if device.info().id == DeviceId::Host { MOST_ON_HOST } else { MOST };
    let room = device.usage()?.free.min(HostHeadroom::now().left);
    let size = Bytes(most.0.min(room.0 / 4) / PAGE.0 * PAGE.0);
    anyhow::ensure!(
        size >= PAGE,
        "only {room} free on {} or in this machine; not enough to measure",
        device.info().id
    );
    Ok(size)
}

fn filled(device: &Device, size: Bytes) -> anyhow::Result<Reservation> {
    let reservation = device.reserve(size)?;
    reservation.map(Bytes::ZERO, device.create(size)?).map_err(lowtide_device::Error::from)?;
    reservation.open(Bytes::ZERO, size)?;
    let stream = device.stream()?;
    stream.fill((&reservation, Bytes::ZERO), 0x5a, size)?;
    stream.synchronize()?;
    Ok(reservation)
}

/// Runs work of the same size several times, and counts its bytes.
struct Turns {
    progress: Progress,
    size: Bytes,
}

impl Turns {
    // The median, the first time, and the memory that was prepared last.
    fn prepare(&self, device: &Device) -> anyhow::Result<(Duration, Duration, Arc<HostMemory>)> {
        let mut kept = None;
        let times = self.times(|| {
            kept = None;
            let began = Instant::now();
            kept = Some(device.host_memory(self.size)?);
            Ok(began.elapsed())
        })?;
        Ok((middle(times.clone()), times[0], kept.context("measured at least once")?))
    }

    fn median<T>(
        &self,
        mut work: impl FnMut() -> lowtide_device::Result<T>,
    ) -> anyhow::Result<Duration> {
        let times = self.times(|| {
            let began = Instant::now();
            work()?;
            Ok(began.elapsed())
        })?;
        Ok(middle(times))
    }

    fn times(
        &self,
        mut turn: impl FnMut() -> lowtide_device::Result<Duration>,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(TURNS);
        for _ in 0..TURNS {
            times.push(turn()?);
            self.progress.add(self.size);
        }
        Ok(times)
    }
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
