//! Replays: a trace is run on a pool, and its memory and time are measured.
//!
//! Blocks can be spread over streams and threads, each block on one of them for its life: block `n`
//! is on stream `n` modulo the streams, and on thread `n` modulo the threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::{Address, Bytes, Device, DryRunCost};
use serde::Serialize;

use crate::trace::Event;
use crate::{Fence, Policy, Pool, Recording, Result, StreamId, Tag};

/// A stream has passed once nothing was freed on it for so many events.
const LAG_EVENTS: u64 = 64;
/// Progress is reported once in so many events, so that it takes no time.
const REPORT_EVENTS: usize = 1024;

/// The page of a dry run.
const PAGE: u64 = 2 << 20;

/// The settings of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The number of streams that blocks are spread over. With one stream, nothing uses a block once
    /// it is freed. With several, streams lag: one has passed when nothing was freed on it during the
    /// last 64 events, or when the pool waited for it.
    pub streams: u32,
    /// The number of threads that blocks are spread over. Each thread replays the events of its
    /// blocks in the trace's order, all at the same time on one pool.
    pub threads: u32,
    /// Turns the pool's recording on; times include that.
    pub record: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { streams: 1, threads: 1, record: false }
    }
}

/// The result of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The number of allocations and frees.
    pub events: usize,
    /// The number of streams that blocks were spread over.
    pub streams: u32,
    /// The number of threads.
    pub threads: u32,
    /// The peak of live bytes, with the sizes that the trace asked for. With several threads, whose
    /// order is not the trace's, as the pool counted it: sizes are then multiples of 256.
    pub live_peak_bytes: Bytes,
    /// The peak of memory taken from the device.
    pub physical_peak_bytes: Bytes,
    /// `physical_peak_bytes` divided by `live_peak_bytes`.
    pub ratio: f64,
    /// The time for one event, driver calls included.
    pub ns_per_op: f64,
    /// The number of driver calls.
    pub driver_calls: u64,
    /// The time that these calls take on an H200, as measured; only in a dry run.
    pub driver_ms: Option<f64>,
    /// The pool's recording, if it was on.
    #[serde(skip)]
    pub recording: Option<Recording>,
}

/// The least memory in which a trace completes.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    /// The least memory in which the trace completes.
    pub fit_bytes: Bytes,
    /// `fit_bytes` divided by the peak of live bytes.
    pub fit_ratio: f64,
}

/// Returns the peak of live bytes of a trace.
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

/// Returns the bytes of all allocations in a trace: what `progress` of a replay adds up to.
pub fn allocated(events: &[Event]) -> Bytes {
    let sizes = events.iter().map(|event| match event {
        Event::Allocate { size, .. } => size.0,
        Event::Free { .. } => 0,
    });
    Bytes(sizes.fold(0, u64::saturating_add))
}

/// Replays a trace on a new pool of `device`. Calls `progress` now and then with the bytes allocated since.
///
/// # Errors
/// Where the device has too little memory for it.
///
/// # Panics
/// If the number of streams or threads is zero.
pub fn replay(
    events: &[Event],
    device: &Device,
    cost: Option<&DryRunCost>,
    policy: Policy,
    options: Options,
    progress: &(dyn Fn(Bytes) + Sync),
) -> Result<Report> {
    let Options { streams, threads, record } = options;
    assert!(streams > 0 && threads > 0, "somebody plays it");
    let lag = (streams > 1).then(|| Arc::new(Lag::new(streams)));
    let mut builder = Pool::builder(device).policy(policy);
    if let Some(lag) = &lag {
        builder = builder.fence(Arc::clone(lag) as Arc<dyn Fence>);
    }
    let pool = builder.build()?;
    if record {
        pool.start_recording()?;
    }
    let calls = device.calls();
    let player = Player { pool: &pool, lag: lag.as_deref(), threads, progress };
    let elapsed = player.play_all(events)?;
    let driver_calls = device.calls() - calls;
    let counts = pool.counts();
    let live = if threads > 1 { counts.live_peak } else { live_peak(events) };
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    Ok(Report {
        events: events.len(),
        streams,
        threads,
        live_peak_bytes: live,
        physical_peak_bytes: counts.physical_peak,
        ratio: ratio(counts.physical_peak, live),
        ns_per_op: elapsed.as_nanos() as f64 / events.len().max(1) as f64,
        driver_calls,
        driver_ms: cost.map(DryRunCost::ms),
        recording: pool.stop_recording()?,
    })
}

/// Plays events on a pool.
struct Player<'a> {
    pool: &'a Pool,
    lag: Option<&'a Lag>,
    threads: u32,
    progress: &'a (dyn Fn(Bytes) + Sync),
}

impl Player<'_> {
    fn play_all(&self, events: &[Event]) -> Result<Duration> {
        if self.threads == 1 {
            let began = Instant::now();
            return self.play(events).map(|()| began.elapsed());
        }
        let hands = deal(events, self.threads);
        // Nobody begins before everybody is there.
        let gate = RwLock::new(());
        let play = |hand: &[Event]| {
            drop(gate.read());
            let began = Instant::now();
            self.play(hand).map(|()| (began, Instant::now()))
        };
        thread::scope(|scope| {
            let (closed, play) = (gate.write(), &play);
            let start = |hand| {
                let started = thread::Builder::new().spawn_scoped(scope, move || play(hand));
                let operation = "starting a thread of the replay";
                started.map_err(|source| lowtide_device::Error::Os { operation, source })
            };
            // Those that have started play to their end, even if another could not start.
            let players: Result<Vec<_>, _> = hands.iter().map(|hand| start(hand)).collect();
            drop(closed);
            let players = players?;
            let times =
                players.into_iter().map(|player| player.join().expect("a player does not panic"));
            let times: Vec<(Instant, Instant)> = times.collect::<Result<_>>()?;
            let first = times.iter().map(|(began, _)| *began).min();
            let last = times.iter().map(|(_, ended)| *ended).max();
            Ok(last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first))
        })
    }

    // One thread's events. Its blocks come in order, so the place of one follows from its number.
    fn play(&self, events: &[Event]) -> Result<()> {
        let mut addresses: Vec<Address> = Vec::new();
        for part in events.chunks(REPORT_EVENTS) {
            for event in part {
                match *event {
                    Event::Allocate { block, size, stream } => {
                        let stream = self.lag.map_or(stream, |lag| lag.allocated(block));
                        addresses.push(self.pool.alloc(size, stream, Tag::default())?);
                    }
                    Event::Free { block, stream } => {
                        let stream = self.lag.map_or(stream, |lag| lag.freed(block));
                        self.pool.free(addresses[(block / self.threads) as usize], stream)?;
                    }
                }
            }
            (self.progress)(allocated(part));
        }
        Ok(())
    }
}

// Each thread's events, in the order of the trace.
fn deal(events: &[Event], threads: u32) -> Vec<Vec<Event>> {
    let mut hands = vec![Vec::new(); threads as usize];
    for event in events {
        let (Event::Allocate { block, .. } | Event::Free { block, .. }) = event;
        hands[(block % threads) as usize].push(*event);
    }
    hands
}

/// Streams that lag behind. Their clock counts events, so that a replay on one thread is the same
/// every time.
struct Lag {
    now: AtomicU64,
    /// The time of the last free on each stream; zero is long ago.
    freed: Vec<AtomicU64>,
}

impl Lag {
    fn new(streams: u32) -> Lag {
        let freed = (0..streams).map(|_| AtomicU64::new(0)).collect();
        Lag { now: AtomicU64::new(LAG_EVENTS), freed }
    }

    fn stream_of(&self, block: u32) -> StreamId {
        StreamId(u64::from(block) % self.freed.len() as u64)
    }

    /// Counts an event: a block is allocated on its stream.
    fn allocated(&self, block: u32) -> StreamId {
        self.now.fetch_add(1, Relaxed);
        self.stream_of(block)
    }

    /// Counts an event: a block is freed on its stream.
    fn freed(&self, block: u32) -> StreamId {
        let (now, stream) = (self.now.fetch_add(1, Relaxed) + 1, self.stream_of(block));
        self.freed[stream.0 as usize].store(now, Relaxed);
        stream
    }
}

impl Fence for Lag {
    fn has_passed(&self, stream: StreamId) -> bool {
        let freed = self.freed[stream.0 as usize].load(Relaxed);
        self.now.load(Relaxed).saturating_sub(freed) >= LAG_EVENTS
    }

    fn wait(&self, stream: StreamId) -> lowtide_device::Result<()> {
        self.freed[stream.0 as usize].store(0, Relaxed);
        Ok(())
    }
}

/// Returns how many replays [`fit`] makes at most.
pub fn fit_replays(events: &[Event]) -> u32 {
    let (too_little, enough) = fit_range(live_peak(events));
    1 + u64::BITS - (enough - too_little).leading_zeros()
}

// The search begins where nothing can complete, and ends at four times what is live.
fn fit_range(live: Bytes) -> (u64, u64) {
    ((live.0 / PAGE).saturating_sub(1), live.0.div_ceil(PAGE) * 4 + 64)
}

/// Finds the least memory in which a trace completes, to a page, in dry runs. Calls `progress` after
/// each replay.
///
/// # Errors
/// Where it does not even complete with four times the peak of live bytes.
pub fn fit(events: &[Event], policy: Policy, mut progress: impl FnMut()) -> Result<Fit> {
    let live = live_peak(events);
    let mut completes = |pages: u64| -> Result<bool> {
        let (device, _) = Device::dry_run(Bytes(pages * PAGE));
        let pool = Pool::builder(&device).policy(policy).build()?;
        let played = Player { pool: &pool, lag: None, threads: 1, progress: &|_| () }.play(events);
        progress();
        match played {
            Ok(()) => Ok(true),
            Err(error) if error.is_out_of_memory() => Ok(false),
            Err(error) => Err(error),
        }
    };
    // A trace that completes with less need not complete with a little more, so this finds a
    // border, not all of them.
    let (mut too_little, mut enough) = fit_range(live);
    // Most traces complete with a little more than what is live, so that is tried first.
    let mut tried = too_little + (too_little / 16).max(1);
    while too_little + 1 < enough {
        if completes(tried)? {
            enough = tried;
        } else {
            too_little = tried;
        }
        tried = too_little.midpoint(enough);
    }
    let fit_bytes = Bytes(enough * PAGE);
    Ok(Fit { fit_bytes, fit_ratio: ratio(fit_bytes, live) })
}

fn ratio(of: Bytes, to: Bytes) -> f64 {
    of.as_gib() / to.as_gib().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_passed_a_while_after_its_last_free_or_when_it_is_waited_for() {
        let (lag, even, odd) = (Lag::new(2), StreamId(0), StreamId(1));
        assert!(lag.has_passed(even), "nothing was given to it");
        assert_eq!((lag.freed(6), lag.freed(7)), (even, odd));
        assert!(!lag.has_passed(even) && !lag.has_passed(odd));
        lag.wait(odd).unwrap();
        assert!(!lag.has_passed(even) && lag.has_passed(odd));
        for _ in 2..LAG_EVENTS {
            lag.allocated(8);
        }
        assert!(!lag.has_passed(even), "one event more");
        lag.allocated(8);
        assert!(lag.has_passed(even));
    }

    #[test]
    fn progress_adds_up_to_all_allocations() {
        let stream = StreamId(0);
        let pair = |block| {
            let size = Bytes(1 + u64::from(block) * 512);
            [Event::Allocate { block, size, stream }, Event::Free { block, stream }]
        };
        let events: Vec<Event> = (0..2 * REPORT_EVENTS as u32).flat_map(pair).collect();
        for threads in [1, 3] {
            let done = AtomicU64::new(0);
            let count = |bytes: Bytes| {
                done.fetch_add(bytes.0, Relaxed);
            };
            let (device, cost) = Device::dry_run(Bytes::gib(1));
            let options = Options { threads, ..Options::default() };
            replay(&events, &device, Some(&cost), Policy::default(), options, &count).unwrap();
            assert_eq!(Bytes(done.into_inner()), allocated(&events), "threads: {threads}");
        }
        let mut replays = 0;
        fit(&events, Policy::default(), || replays += 1).unwrap();
        assert!((1..=fit_replays(&events)).contains(&replays), "{replays}");
    }

    #[test]
    fn every_event_is_dealt_to_its_blocks_thread_in_order() {
        let stream = StreamId(0);
        let allocate = |block| Event::Allocate { block, size: Bytes(1), stream };
        let free = |block| Event::Free { block, stream };
        let events = [allocate(0), allocate(1), free(0), allocate(2), free(2), free(1)];
        let hands = deal(&events, 2);
        assert_eq!(hands[0], [allocate(0), free(0), allocate(2), free(2)]);
        assert_eq!(hands[1], [allocate(1), free(1)]);
    }
}
