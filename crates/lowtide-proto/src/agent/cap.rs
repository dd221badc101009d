//! The most device memory that a program may have.

use std::str::FromStr;

use lowtide_types::Bytes;

/// The most memory that a program may have on each device (`lowtide run --memory`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryCap {
    /// So much.
    Bytes(Bytes),
    /// So many hundredths of the device.
    Percent(f64),
}

impl MemoryCap {
    /// Returns what that is of a device.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a number of bytes, to the nearest thousand"
    )]
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            MemoryCap::Bytes(bytes) => bytes.min(total),
            MemoryCap::Percent(part) => Bytes((total.0 as f64 / 100.0 * part) as u64),
        }
    }
}

impl FromStr for MemoryCap {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryCap, String> {
        let wrong = || format!("{text:?} is neither a size such as 40GiB nor a part such as 30%");
        if let Some(number) = text.trim().strip_suffix('%') {
            let part =
                number.trim().parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 100.0);
            return part.map(MemoryCap::Percent).ok_or_else(wrong);
        }
        let bytes = text.parse::<Bytes>().map_err(|_| wrong())?;
        if bytes > Bytes::ZERO { Ok(MemoryCap::Bytes(bytes)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_a_size_or_a_part() {
        let of = |text: &str| text.parse().map(|cap: MemoryCap| cap.of(Bytes::gib(80)));
        assert_eq!(of("40GiB"), Ok(Bytes::gib(40)));
        assert_eq!(of("300 GiB"), Ok(Bytes::gib(80)));
        assert_eq!(of("25%"), Ok(Bytes::gib(20)));
        for wrong in ["", "0", "40", "0%", "101%", "x%", "-1GiB", "nan%"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
