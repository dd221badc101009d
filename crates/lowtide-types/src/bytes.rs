//! Sizes, with a unit whenever a person reads or writes one.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use crate::debug_as;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number of bytes. Printed in MiB, and in no other unit; a plain number in JSON.
///
/// ```
/// use lowtide_types::Bytes;
/// let size: Bytes = "1.5GiB".parse().unwrap();
/// assert_eq!(size, Bytes::mib(1536));
/// assert_eq!(size.to_string(), "1,536.0 MiB");
/// assert_eq!("50 MB".parse(), Ok(Bytes::new(50_000_000)));
/// ```
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The size of nothing: zero bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Returns a size of `n` bytes.
    pub const fn new(n: u64) -> Bytes {
        Bytes(n)
    }

    /// Returns a size of `n` KiB.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// Returns a size of `n` MiB.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// Returns a size of `n` GiB.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// Returns the difference, or zero where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Returns whether the size is a multiple of `unit`.
    pub const fn is_multiple_of(self, unit: Bytes) -> bool {
        self.0.is_multiple_of(unit.0)
    }

    /// Converts to a length in memory.
    ///
    /// # Panics
    /// If it does not fit this machine's address space; sizes that come from outside are
    /// checked against a device's total long before.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).expect("a length that was checked fits the address space")
    }

    /// Converts to GiB, for speeds.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / f64::from(1 << 30)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tenths of MiB in whole numbers: no rounding up to a size that is not there.
        let tenths = (u128::from(self.0) * 10) >> 20;
        if tenths == 0 && self.0 > 0 {
            return f.pad(&format!("0.{:03} MiB", (self.0 * 1000) >> 20));
        }
        let whole = (tenths / 10).to_string();
        let mut text = String::with_capacity(whole.len() + 8);
        for (i, digit) in whole.chars().enumerate() {
            if i > 0 && (whole.len() - i).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&format!("{text}.{} MiB", tenths % 10))
    }
}

/// Formats a difference in bytes, with its sign where it is negative.
///
/// ```
/// assert_eq!(lowtide_types::signed(-3 << 20), "−3.0 MiB");
/// ```
pub fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "−" } else { "" };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}

debug_as!(Bytes, |it| "{} B", it.0);

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes::ZERO, Add::add)
    }
}

/// A text that is not a size.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseBytesError {
    /// It is something else.
    #[error("{text:?} is not a size; write a number with a unit: 512MiB, 1.5GiB or 50 MB")]
    NoSize {
        /// The text that was parsed.
        text: String,
    },
    /// It has no unit and is not zero: "512" is hardly ever meant as 512 bytes.
    #[error("{text:?} has no unit; write {text}MiB, or {text}B for bytes")]
    NoUnit {
        /// The text that was parsed.
        text: String,
    },
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the product is checked to lie in the range of u64"
    )]
    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let trimmed = text.trim();
        let bad = || ParseBytesError::NoSize { text: text.to_owned() };
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '_');
        let digits = trimmed.find(|c: char| !is_number(c)).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number = number.replace('_', "");
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            _ => return Err(bad()),
        };
        let value = number.parse::<f64>().map_err(|_| bad())? * scale as f64;
        if unit.is_empty() && value > 0.0 {
            return Err(ParseBytesError::NoUnit { text: trimmed.to_owned() });
        }
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Bytes).ok_or_else(bad);
        }
        if (0.0..u64::MAX as f64).contains(&value) { Ok(Bytes(value as u64)) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_with_a_unit_and_never_rounds_up() {
        assert_eq!(Bytes::ZERO.to_string(), "0.0 MiB");
        assert_eq!(Bytes(512).to_string(), "0.000 MiB");
        assert_eq!(Bytes::kib(4).to_string(), "0.003 MiB");
        assert_eq!(Bytes(Bytes::mib(2).0 - 1).to_string(), "1.9 MiB");
        assert_eq!(Bytes::gib(140).to_string(), "143,360.0 MiB");
    }

    #[test]
    fn reads_what_people_write_and_refuses_the_rest() {
        assert_eq!("512MiB".parse(), Ok(Bytes::mib(512)));
        assert_eq!(" 2 g ".parse(), Ok(Bytes::gib(2)));
        assert_eq!("4096B".parse(), Ok(Bytes(4096)));
        assert_eq!("0".parse(), Ok(Bytes::ZERO));
        assert_eq!("0.5k".parse(), Ok(Bytes(512)));
        assert_eq!("50 MB".parse(), Ok(Bytes(50_000_000)));
        assert_eq!("6GB".parse(), Ok(Bytes(6_000_000_000)));
        assert_eq!("1.5kB".parse(), Ok(Bytes(1500)));
        assert_eq!("50_000_000 B".parse(), Ok(Bytes(50_000_000)));
        for bare in ["512", " 1.5 ", "50_000_000"] {
            let text = bare.trim().to_owned();
            assert_eq!(bare.parse::<Bytes>(), Err(ParseBytesError::NoUnit { text }));
        }
        for bad in [
            "",
            "MiB",
            "_",
            "1.2MBit",
            "1,5GiB",
            "-1MiB",
            "1.2.3g",
            "12 parsecs",
            "99999999999TiB",
            "1e400",
            "1.5e9TiB",
        ] {
            let error = bad.parse::<Bytes>().unwrap_err();
            assert!(error.to_string().contains("512MiB"), "{error}");
        }
    }
}
