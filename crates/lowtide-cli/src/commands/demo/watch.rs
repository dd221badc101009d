//! The device's own numbers over one part of an act: before, at its peak, after.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lowtide::Bytes;
use serde::Serialize;

use super::site::Site;

/// As people do it today, or with lowtide.
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

/// A state that lasted, so that it can be seen from outside.
#[derive(Debug, Clone, Serialize)]
pub(super) struct State {
    way: Way,
    name: &'static str,
    /// In use, says the device.
    bytes: Bytes,
    /// From when to when, in seconds since 1970.
    from_s: f64,
    until_s: f64,
}

/// What the device said over one part of an act.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) before: Bytes,
    pub(super) peak: Bytes,
    pub(super) after: Bytes,
    pub(super) states: Vec<State>,
}

/// Looks at the device whenever something was taken from it.
pub(super) struct Watch<'a> {
    site: &'a Site,
    way: Way,
    before: Bytes,
    peak: Bytes,
    states: Vec<State>,
    began: Instant,
    /// How long states were held since.
    held: Duration,
}

impl<'a> Watch<'a> {
    /// Begins with what is in use now.
    pub(super) fn begin(site: &'a Site, way: Way) -> anyhow::Result<Watch<'a>> {
        let (zero, states, began, held) = (Bytes::ZERO, Vec::new(), Instant::now(), Duration::ZERO);
        let mut watch = Watch { site, way, before: zero, peak: zero, states, began, held };
        watch.before = watch.hold("before")?;
        (watch.began, watch.held) = (Instant::now(), Duration::ZERO);
        Ok(watch)
    }

    pub(super) fn before(&self) -> Bytes {
        self.before
    }

    /// How long work took since the beginning, without the time that states were held.
    pub(super) fn worked_s(&self) -> f64 {
        self.began.elapsed().saturating_sub(self.held).as_secs_f64()
    }

    /// Looks, for the peak.
    pub(super) fn look(&mut self) -> anyhow::Result<Bytes> {
        let bytes = self.site.in_use()?;
        self.peak = self.peak.max(bytes);
        Ok(bytes)
    }

    /// Looks, and stays like this where this is the peak.
    pub(super) fn look_at_peak(&mut self, is_peak: bool) -> anyhow::Result<()> {
        if is_peak { self.hold("peak") } else { self.look() }.map(drop)
    }

    /// Looks, and stays like this for as long as was asked for.
    pub(super) fn hold(&mut self, name: &'static str) -> anyhow::Result<Bytes> {
        self.look()?;
        let (bytes, way, from_s) = (self.site.settled()?, self.way, since_1970());
        thread::sleep(self.site.hold);
        self.held += self.site.hold;
        self.states.push(State { way, name, bytes, from_s, until_s: since_1970() });
        Ok(bytes)
    }

    /// Ends with what is in use now.
    pub(super) fn end(mut self) -> anyhow::Result<Part> {
        let after = self.hold("after")?;
        Ok(Part { before: self.before, peak: self.peak, after, states: self.states })
    }
}

fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
