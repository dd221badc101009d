//! The device's own numbers while one way of a scenario runs: before, at the peak, after.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lowtide::device::Bytes;
use serde::Serialize;

use super::setup::Setup;

/// The usual way, or with lowtide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Today,
    Lowtide,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Today => "today",
            Way::Lowtide => "with lowtide",
        })
    }
}

/// A state that lasts for the time of `--hold`, so that it can be seen from outside.
#[derive(Debug, Clone, Serialize)]
pub(super) struct State {
    way: Way,
    name: &'static str,
    /// The device memory in use.
    bytes: Bytes,
    /// The beginning and the end, in seconds since 1970.
    from_s: f64,
    until_s: f64,
}

/// The device memory in use while one way of a scenario ran.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) before: Bytes,
    pub(super) peak: Bytes,
    pub(super) after: Bytes,
    pub(super) states: Vec<State>,
}

/// Asks the device for the memory in use whenever some was allocated.
pub(super) struct Watch<'a> {
    setup: &'a Setup,
    way: Way,
    before: Bytes,
    peak: Bytes,
    states: Vec<State>,
    began: Instant,
    /// The time for which states were held since.
    held: Duration,
}

impl<'a> Watch<'a> {
    /// Begins with the memory in use now.
    pub(super) fn begin(setup: &'a Setup, way: Way) -> anyhow::Result<Watch<'a>> {
        let (zero, states, began, held) = (Bytes::ZERO, Vec::new(), Instant::now(), Duration::ZERO);
        let mut watch = Watch { setup, way, before: zero, peak: zero, states, began, held };
        watch.before = watch.hold("before")?;
        (watch.began, watch.held) = (Instant::now(), Duration::ZERO);
        Ok(watch)
    }

    /// Returns the memory in use at the beginning.
    pub(super) fn before(&self) -> Bytes {
        self.before
    }

    /// Returns the time since the beginning, without the time for which states were held.
    pub(super) fn worked_s(&self) -> f64 {
        self.began.elapsed().saturating_sub(self.held).as_secs_f64()
    }

    /// Reads the memory in use, for the peak.
    pub(super) fn look(&mut self) -> anyhow::Result<Bytes> {
        let bytes = self.setup.in_use()?;
        self.peak = self.peak.max(bytes);
        Ok(bytes)
    }

    /// Reads the memory in use, and holds the state if this is the peak.
    pub(super) fn look_at_peak(&mut self, is_peak: bool) -> anyhow::Result<()> {
        if is_peak { self.hold("peak") } else { self.look() }.map(drop)
    }

    /// Reads the memory in use, and holds the state for the time of `--hold`.
    pub(super) fn hold(&mut self, name: &'static str) -> anyhow::Result<Bytes> {
        self.look()?;
        let (bytes, way, from_s) = (self.setup.settled()?, self.way, since_1970());
        thread::sleep(self.setup.hold);
        self.held += self.setup.hold;
        self.states.push(State { way, name, bytes, from_s, until_s: since_1970() });
        Ok(bytes)
    }

    /// Ends with the memory in use now.
    pub(super) fn end(mut self) -> anyhow::Result<Observed> {
        let after = self.hold("after")?;
        Ok(self.ended_with(after))
    }

    /// Ends with the memory that was in use after the release, where more was done since.
    pub(super) fn ended_with(self, after: Bytes) -> Observed {
        Observed { before: self.before, peak: self.peak, after, states: self.states }
    }
}

/// Returns the time in seconds since 1970.
pub(super) fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
