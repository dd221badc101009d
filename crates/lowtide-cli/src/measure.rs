//! What `doctor --measure` measures: the link each way, the digest, and how fast host memory is
//! prepared. Medians of several turns; the first preparation apart, since a machine that has just
//! started may have to find the memory first.

use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::ProgressBar;
use lowtide_device::digest::Keys;
use lowtide_device::headroom::HostHeadroom;
use lowtide_device::{Bytes, Device, DeviceId, HostMemory, Reservation};
use serde::Serialize;

use crate::progress;

const TURNS: usize = 5;
const PAGE: Bytes = Bytes::mib(2);
const MOST: Bytes = Bytes::gib(16);
/// A processor digests and copies a hundredth as fast.
const MOST_ON_HOST: Bytes = Bytes::gib(1);

/// Speeds, in GiB/s.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measured {
    /// How much was copied, digested and prepared each turn.
    pub(crate) size_bytes: Bytes,
    /// How often.
    pub(crate) turns: usize,
    /// From the device to the host.
    pub(crate) link_out_gib_s: f64,
    /// From the host to the device.
    pub(crate) link_in_gib_s: f64,
    /// Digests on the device.
    pub(crate) digest_gib_s: f64,
    /// Host memory: taken, touched and registered.
    pub(crate) prepare_gib_s: f64,
    /// The same, the first time.
    pub(crate) prepare_first_gib_s: f64,
}

/// Measures a device.
pub(crate) fn measure(device: &Device) -> anyhow::Result<Measured> {
    let size = size_for(device)?;
    let bar = progress::steps(4 * TURNS as u64);
    bar.set_message(format!("measuring {} with {size}", device.info().id));
    let reservation = filled(device, size)?;
    let (prepare, prepare_first, memory) = prepare(device, size, &bar)?;
    let stream = device.stream()?;
    let (from, to) = ((&reservation, Bytes::ZERO), (&memory, Bytes::ZERO));
    let link_out = median(&bar, || {
        stream.copy_out(from, to, size)?;
        stream.synchronize()
    })?;
    let link_in = median(&bar, || {
        stream.copy_in(to, from, size)?;
        stream.synchronize()
    })?;
    let keys = Keys::of_this_process();
    stream.digest(from, size, keys)?.wait()?; // loads the kernel
    let digest = median(&bar, || stream.digest(from, size, keys)?.wait())?;
    bar.finish_and_clear();
    let speed = |time: Duration| size.as_gib() / time.as_secs_f64();
    Ok(Measured {
        size_bytes: size,
        turns: TURNS,
        link_out_gib_s: speed(link_out),
        link_in_gib_s: speed(link_in),
        digest_gib_s: speed(digest),
        prepare_gib_s: speed(prepare),
        prepare_first_gib_s: speed(prepare_first),
    })
}

// As much as fits beside what others use, on both sides.
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

fn prepare(
    device: &Device,
    size: Bytes,
    bar: &ProgressBar,
) -> anyhow::Result<(Duration, Duration, std::sync::Arc<HostMemory>)> {
    let mut kept = None;
    let times = turns(bar, || {
        kept = None;
        let began = Instant::now();
        kept = Some(device.host_memory(size)?);
        Ok(began.elapsed())
    })?;
    Ok((middle(times.clone()), times[0], kept.context("measured at least once")?))
}

fn median<T>(
    bar: &ProgressBar,
    mut work: impl FnMut() -> lowtide_device::Result<T>,
) -> anyhow::Result<Duration> {
    let times = turns(bar, || {
        let began = Instant::now();
        work()?;
        Ok(began.elapsed())
    })?;
    Ok(middle(times))
}

fn turns(
    bar: &ProgressBar,
    mut turn: impl FnMut() -> lowtide_device::Result<Duration>,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        times.push(turn()?);
        bar.inc(1);
    }
    Ok(times)
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
