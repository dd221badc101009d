//! The time now, in data and for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the seconds since 1970.
pub(crate) fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Returns a moment's time of day: `09:05:07 UTC`.
pub(crate) fn time_of_day(at_s: f64) -> String {
    let second = Duration::try_from_secs_f64(at_s).unwrap_or_default().as_secs() % (24 * 60 * 60);
    format!("{:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_has_hours_minutes_and_seconds() {
        assert_eq!(time_of_day(0.0), "00:00:00 UTC");
        assert_eq!(time_of_day(1_795_112_645.9), "18:24:05 UTC");
        assert!(since_1970() > 1.7e9);
    }
}
