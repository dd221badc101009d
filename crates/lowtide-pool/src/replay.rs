//! Replaying a trace: what a pool makes of it.

use std::time::{Duration, Instant};

use lowtide_device::{Address, Bytes, Device, Tally};
use serde::Serialize;

use crate::trace::Event;
use crate::{Error, Policy, Pool, Result, Tag};

/// What a replay came to.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Allocations and frees.
    pub events: usize,
    /// The most that was live at once, as the trace asked for it.
    pub live_peak_bytes: Bytes,
    /// The most memory that was taken from the device.
    pub physical_peak_bytes: Bytes,
    /// The one over the other.
    pub ratio: f64,
    /// Time for one event, the device's part included.
    pub ns_per_op: f64,
    /// Calls of the device.
    pub driver_calls: Option<u64>,
    /// What they take, where no driver is called: as measured on an H200.
    pub driver_ms: Option<f64>,
}

/// The least memory in which a trace completes.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    /// That much.
    pub fit_bytes: Bytes,
    /// Over the most that was live at once.
    pub fit_ratio: f64,
}

/// The most that is live at once.
pub fn live_peak(events: &[Event]) -> Bytes {
    let mut sizes = Vec::new();
    let (mut live, mut peak) = (0u64, 0u64);
    for event in events {
        match event {
            Event::Allocate { size, .. } => {
                sizes.push(size.0);
                live = live.saturating_add(size.0);
                peak = peak.max(live);
            }
            Event::Free { block, .. } => live = live.saturating_sub(sizes[*block as usize]),
        }
    }
    Bytes(peak)
}

/// Replays a trace on a device.
///
/// # Errors
/// Where the device has no room for it.
pub fn replay(
    events: &[Event],
    device: &Device,
    tally: Option<&Tally>,
    policy: Policy,
) -> Result<Report> {
    let pool = Pool::new(device, policy, None)?;
    let elapsed = run(events, &pool)?;
    let (live, physical) = (live_peak(events), pool.counts().physical_peak);
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    Ok(Report {
        events: events.len(),
        live_peak_bytes: live,
        physical_peak_bytes: physical,
        ratio: ratio(physical, live),
        ns_per_op: elapsed.as_nanos() as f64 / events.len().max(1) as f64,
        driver_calls: tally.map(Tally::calls),
        driver_ms: tally.map(Tally::ms),
    })
}

fn run(events: &[Event], pool: &Pool) -> Result<Duration> {
    let mut addresses: Vec<Address> = Vec::new();
    let began = Instant::now();
    for event in events {
        match event {
            Event::Allocate { size, stream, .. } => {
                addresses.push(pool.alloc(*size, *stream, Tag::default())?);
            }
            Event::Free { block, stream } => pool.free(addresses[*block as usize], *stream)?,
        }
    }
    Ok(began.elapsed())
}

/// Finds the least memory in which a trace completes, to a page, on books alone.
///
/// # Errors
/// Where it does not even complete with four times what is live.
pub fn fit(events: &[Event], policy: Policy, mut progress: impl FnMut()) -> Result<Fit> {
    const PAGE: u64 = 2 << 20;
    let live = live_peak(events);
    let mut completes = |pages: u64| -> Result<bool> {
        progress();
        let (device, _) = Device::books(Bytes(pages * PAGE));
        match run(events, &Pool::new(&device, policy, None)?) {
            Ok(_) => Ok(true),
            Err(Error::Device(error)) if error.is_out_of_memory() => Ok(false),
            Err(error) => Err(error),
        }
    };
    // A trace that completes with less need not complete with a little more, so this finds a
    // border, not all of them; the search begins where nothing can complete.
    let (mut too_little, mut enough) =
        ((live.0 / PAGE).saturating_sub(1), live.0.div_ceil(PAGE) * 4 + 64);
    while too_little + 1 < enough {
        let middle = too_little.midpoint(enough);
        if completes(middle)? {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    let fit_bytes = Bytes(enough * PAGE);
    Ok(Fit { fit_bytes, fit_ratio: ratio(fit_bytes, live) })
}

fn ratio(of: Bytes, to: Bytes) -> f64 {
    of.as_gib() / to.as_gib().max(f64::MIN_POSITIVE)
}
