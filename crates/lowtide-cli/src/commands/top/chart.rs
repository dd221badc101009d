//! A device's memory as stacked bands, in cells of a terminal.

use std::collections::BTreeMap;

use lowtide_types::Bytes;

use crate::commands::look::Band;

/// Returns the sign of a band, which tells it apart without colours.
pub(super) fn sign(band: Band) -> &'static str {
    match band {
        Band::Live => "█",
        Band::Cached => "▓",
        Band::Context => "▒",
        Band::Others => "░",
        Band::Reserved => ":",
        Band::Unknown => "?",
    }
}

/// Returns what each of so many cells shows, from empty memory to full; `None` for memory that is free. A cell shows
/// the band in its middle. A band below zero takes from the one before.
pub(super) fn cells(bands: &BTreeMap<Band, i64>, total: Bytes, count: usize) -> Vec<Option<Band>> {
    let (mut top, mut ends) = (0_i64, Vec::new());
    for (band, bytes) in bands {
        top += bytes;
        ends.push((*band, top));
    }
    let middle = |cell: usize| {
        let part = u128::from(total.0) * (2 * cell as u128 + 1) / (2 * count as u128);
        i64::try_from(part).unwrap_or(i64::MAX)
    };
    let at = |cell| ends.iter().find(|(_, end)| middle(cell) < *end).map(|(band, _)| *band);
    (0..count).map(|cell| at(cell).filter(|_| middle(cell) < top)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bands(sizes: [i64; 6]) -> BTreeMap<Band, i64> {
        Band::ALL.into_iter().zip(sizes).collect()
    }

    #[test]
    fn bands_are_stacked_and_what_is_free_stays_empty() {
        let text = |sizes, count| -> String {
            let cells = cells(&bands(sizes), Bytes(100), count);
            cells.into_iter().map(|cell| cell.map_or("-", sign)).collect()
        };
        assert_eq!(text([30, 20, 10, 20, 10, 10], 10), "███▓▓▒░░:?");
        assert_eq!(text([30, 20, 0, 0, 0, 0], 10), "███▓▓-----");
        assert_eq!(text([0; 6], 4), "----");
        assert_eq!(text([10, 0, 0, 61, 0, 0], 5), "░░░░-", "the middle of a cell decides");
        assert_eq!(text([50, 0, 0, 0, 0, -20], 10), "███-------", "memory that is counted twice");
    }
}
