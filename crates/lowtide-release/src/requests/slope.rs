//! R43: reserved memory over repeated resumes, and a warning if it grows.
//!
//! Every weight update leaves a little more behind, nobody notices, and days later there is no memory
//! left. One reading says nothing, so a window of them is examined: a line is fitted, and the growth
//! has to be large enough, steady, and still going on. Memory that comes and goes, and memory that was
//! loaded once and stays, is not a trend.

use std::collections::VecDeque;
use std::fmt;

use lowtide_types::Bytes;
use serde::Serialize;

/// The number of readings that are examined.
const WINDOW: usize = 32;

/// With fewer readings there is no trend.
const LEAST_SAMPLES: usize = 8;

/// Growth below a device page does not count.
const PAGE: Bytes = Bytes::mib(2);

/// The trend of reserved memory. `Display` is its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, schemars::JsonSchema)]
pub struct Trend {
    /// The memory that each update adds, by the fitted line; negative if memory shrinks.
    pub per_update_bytes: i64,
    /// The number of readings that the trend is from.
    pub samples: usize,
    /// Whether memory grows steadily, and by more than noise.
    pub rising: bool,
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trend { per_update_bytes, samples, rising } = *self;
        if samples < LEAST_SAMPLES {
            return write!(f, "not known yet: {samples} of {LEAST_SAMPLES} samples");
        }
        let per_update = Bytes(per_update_bytes.unsigned_abs());
        match per_update_bytes {
            0 => write!(f, "steady over {samples} updates")?,
            1.. => write!(f, "{per_update} more per update over {samples} updates")?,
            _ => write!(f, "{per_update} less per update over {samples} updates")?,
        }
        f.write_str(if rising { ", rising" } else { "" })
    }
}

/// A warning that reserved memory grows with every update. `Display` is its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct TrendWarning {
    /// The memory that each update adds.
    #[serde(rename = "per_update_bytes")]
    pub per_update: Bytes,
    /// The number of updates that this is from.
    pub updates: usize,
    /// Reserved memory after the last update.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Bytes,
}

impl fmt::Display for TrendWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reserved memory grows by {} with every update, over {} updates: weights of earlier \
             updates are still held, or updates are resumed without emptying the cache",
            self.per_update, self.updates
        )
    }
}

/// Watches reserved memory, one reading for each resume.
///
/// ```
/// use lowtide_release::Slope;
/// use lowtide_types::Bytes;
///
/// let mut slope = Slope::default();
/// let readings = (0..12).map(|update| Bytes::gib(4) + Bytes::mib(16 * update));
/// let warnings: Vec<_> = readings.filter_map(|reserved| slope.add(reserved)).collect();
/// assert_eq!(warnings.len(), 1); // one is enough for a window of 32 readings
/// assert_eq!(slope.trend().per_update_bytes, 16 << 20);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Slope {
    samples: VecDeque<Bytes>,
    /// Readings until it may warn again.
    silent: usize,
}

impl Slope {
    /// Adds the reading after one more update. Returns a warning if memory grows, at most once for a
    /// window of readings.
    pub fn add(&mut self, reserved: Bytes) -> Option<TrendWarning> {
        if self.samples.len() == WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(reserved);
        self.silent = self.silent.saturating_sub(1);
        let trend = self.trend();
        if !trend.rising || self.silent > 0 {
            return None;
        }
        self.silent = WINDOW;
        let per_update = Bytes(trend.per_update_bytes.unsigned_abs());
        Some(TrendWarning { per_update, updates: trend.samples, reserved })
    }

    /// Returns the trend over the readings of the window.
    pub fn trend(&self) -> Trend {
        let samples: Vec<i128> = self.samples.iter().map(|bytes| i128::from(bytes.0)).collect();
        let (rise, run) = fitted(&samples);
        let per_update = rise.checked_div(run).unwrap_or(0);
        Trend {
            per_update_bytes: per_update.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            samples: samples.len(),
            rising: samples.len() >= LEAST_SAMPLES && is_rising(&samples, rise, run),
        }
    }
}

/// Returns the slope of the least-squares line, exactly, as a quotient.
fn fitted(samples: &[i128]) -> (i128, i128) {
    let (mut n, mut sum, mut by_place, mut places, mut squares) = (0, 0, 0, 0, 0);
    for sample in samples {
        sum += sample;
        by_place += n * sample;
        places += n;
        squares += n * n;
        n += 1;
    }
    (n * by_place - places * sum, n * squares - places * places)
}

fn is_rising(samples: &[i128], rise: i128, run: i128) -> bool {
    let steps = samples.len() - 1;
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let median = sorted[samples.len() / 2];
    let falls = samples.windows(2).map(|pair| pair[0] - pair[1]).filter(|fall| *fall > 0);
    let (falling, fallen) = falls.fold((0, 0), |(count, sum), fall| (count + 1, sum + fall));

    // The line's growth over the window, times `run`.
    let growth = rise * steps as i128;
    let matters = growth > run * (median / 100).max(PAGE.0.into());
    // Noise falls about as much as it climbs, even where it climbs more often.
    let steady = falling * 4 <= steps && fallen * 2 * run <= growth;
    matters && steady && lows_rise(samples)
}

/// Returns whether the lowest reading rises from each third of the window to the next. One jump, a
/// warm-up that is over, or memory that comes and goes also fits a rising line, but not this.
fn lows_rise(samples: &[i128]) -> bool {
    let (first, second) = (samples.len() / 3, samples.len() * 2 / 3);
    let thirds = [&samples[..first], &samples[first..second], &samples[second..]];
    let lows = thirds.map(|third| third.iter().min());
    lows[0] < lows[1] && lows[1] < lows[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 4 << 30;

    fn of(samples: impl IntoIterator<Item = u64>) -> Slope {
        let mut slope = Slope::default();
        for sample in samples {
            slope.add(Bytes(sample));
        }
        slope
    }

    /// Whether it was rising after any of these.
    fn ever_rising(samples: impl IntoIterator<Item = u64>) -> bool {
        let mut slope = Slope::default();
        samples.into_iter().any(|sample| {
            slope.add(Bytes(sample));
            slope.trend().rising
        })
    }

    fn mib(n: u64) -> u64 {
        n << 20
    }

    #[test]
    fn r43_memory_that_grows_with_every_update_is_rising() {
        let slope = of((0..20).map(|i| BASE + mib(24) * i));
        let wanted = Trend { per_update_bytes: 24 << 20, samples: 20, rising: true };
        assert_eq!(slope.trend(), wanted);
        // It is so from the first moment on that anything is said.
        for samples in 0..12 {
            let trend = of((0..samples).map(|i| BASE + mib(24) * i)).trend();
            assert_eq!((trend.samples, trend.rising), (samples as usize, samples >= 8));
        }
    }

    #[test]
    fn r43_a_staircase_is_rising_wherever_the_window_begins() {
        for every in 1..=9 {
            for offset in 0..every {
                let stairs = (0..32).map(|i| BASE + mib(64) * ((i + offset) / every));
                assert!(of(stairs).trend().rising, "every {every}, offset {offset}");
            }
        }
    }

    #[test]
    fn r43_flat_memory_is_flat() {
        assert!(!ever_rising(std::iter::repeat_n(BASE, 100)));
        assert_eq!(of([BASE; 40]).trend(), Trend { samples: 32, ..Trend::default() });
        assert_eq!(of([]).trend(), Trend::default());
        assert_eq!(of([BASE]).trend(), Trend { samples: 1, ..Trend::default() });
    }

    #[test]
    fn r43_one_jump_is_not_rising_wherever_it_is() {
        for jump in 1..80 {
            let samples = (0..80).map(|i| BASE + if i < jump { 0 } else { mib(1024) });
            assert!(!ever_rising(samples), "at {jump}");
        }
    }

    #[test]
    fn r43_a_warm_up_that_is_over_is_not_rising() {
        let warm = [10, 12, 13].map(|gib| gib << 30);
        assert!(!ever_rising(warm.into_iter().chain(std::iter::repeat_n(13 << 30, 60))));
    }

    #[test]
    fn r43_memory_that_comes_and_goes_is_not_rising() {
        for period in 2..=7 {
            assert!(!ever_rising((0..100).map(|i| BASE + mib(64) * (i % period))), "{period}");
        }
    }

    #[test]
    fn r43_noise_is_not_rising() {
        let (mut early, mut late) = (0, 0);
        for seed in 1..=500_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut slope = Slope::default();
            for _ in 0..200 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                slope.add(Bytes(BASE + mib(state % 256)));
                let trend = slope.trend();
                let rising = usize::from(trend.rising);
                *if trend.samples < 16 { &mut early } else { &mut late } += rising;
            }
        }
        // Eight readings are in order by chance once in a thousand times, sixteen never.
        assert!(early <= 2 && late == 0, "{early} {late}");
    }

    #[test]
    fn r43_shrinking_is_said_and_not_warned_about() {
        let trend = of((0..20).map(|i| BASE - mib(24) * i)).trend();
        assert_eq!((trend.per_update_bytes, trend.rising), (-(24 << 20), false));
    }

    #[test]
    fn r43_growth_has_to_be_worth_a_word() {
        // A page over the window, where a hundredth of the median is less.
        for (total, rising) in [(PAGE.0, false), (PAGE.0 + 31, true)] {
            let trend = of((0..32).map(|i| mib(100) + total * i / 31)).trend();
            assert_eq!(trend.rising, rising, "{total} of 100 MiB");
        }
        // A hundredth of the median, where that is more than a page.
        for (total, rising) in [(BASE / 101, false), (BASE / 98, true)] {
            let trend = of((0..32).map(|i| BASE + total * i / 31)).trend();
            assert_eq!(trend.rising, rising, "{total} of 4 GiB");
        }
    }

    #[test]
    fn r43_growth_has_to_be_steady() {
        // A leak with dips: of thirty-one steps, a quarter may fall, and that is seven.
        for (dips, rising) in [(0, true), (7, true), (8, false)] {
            let dip = |i| if i % 3 == 2 && i / 3 < dips { mib(30) } else { 0 };
            let leak = (0..32).map(|i| BASE + mib(20) * i - dip(i));
            assert_eq!(of(leak).trend().rising, rising, "{dips}");
        }
        // Four dips that together take half of the growth, or more than that.
        for (deep, rising) in [(mib(95), true), (mib(115), false)] {
            let leak = (0..32).map(|i| BASE + mib(20) * i - if i % 8 == 7 { deep } else { 0 });
            assert_eq!(of(leak).trend().rising, rising, "{deep}");
        }
    }

    #[test]
    fn r43_what_was_long_ago_is_forgotten() {
        let mut slope = of((0..32).map(|i| BASE + mib(64) * i));
        assert!(slope.trend().rising);
        for _ in 0..32 {
            slope.add(Bytes(BASE));
        }
        assert_eq!(slope.trend(), Trend { samples: 32, ..Trend::default() });
    }

    #[test]
    fn r43_a_window_has_one_warning_that_says_how_much() {
        let mut slope = Slope::default();
        let add = |i| slope.add(Bytes(BASE + mib(24) * i)).map(|warning| (i, warning));
        let warnings: Vec<_> = (0..80).filter_map(add).collect();
        let at: Vec<u64> = warnings.iter().map(|(i, _)| *i).collect();
        assert_eq!(at, [7, 39, 71]);
        let (per_update, reserved) = (Bytes::mib(24), Bytes(BASE + mib(24) * 7));
        assert_eq!(warnings[0].1, TrendWarning { per_update, updates: 8, reserved });
        let text = warnings[0].1.to_string();
        assert!(text.starts_with("reserved memory grows by 24.0 MiB with every update"), "{text}");
    }

    #[test]
    fn extreme_readings_do_not_overflow() {
        let trend = of((0..32).map(|i| if i < 16 { 0 } else { u64::MAX })).trend();
        assert!(trend.per_update_bytes > 0 && !trend.rising);
        assert_eq!(of([0, u64::MAX]).trend().per_update_bytes, i64::MAX);
    }

    #[test]
    fn a_trend_says_how_much_and_over_how_many_updates() {
        let text = |samples: Vec<u64>| of(samples).trend().to_string();
        let rising = text((0..10).map(|i| BASE + mib(12) * i).collect());
        assert_eq!(rising, "12.0 MiB more per update over 10 updates, rising");
        assert_eq!(text(vec![BASE; 10]), "steady over 10 updates");
        let falling = text((0..8).map(|i| BASE - mib(3) * i).collect());
        assert_eq!(falling, "3.0 MiB less per update over 8 updates");
        assert_eq!(text(vec![mib(9), mib(6)]), "not known yet: 2 of 8 samples");
    }

    #[test]
    fn a_trend_is_plain_data() {
        let trend = serde_json::to_value(of([5, 4]).trend()).unwrap();
        let wanted = serde_json::json!({"per_update_bytes": -1, "samples": 2, "rising": false});
        assert_eq!(trend, wanted);
    }
}
