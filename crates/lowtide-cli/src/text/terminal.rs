//! How wide lines may be: as wide as the terminal. Where output goes elsewhere (a file, a pipe) the
//! variable `COLUMNS` decides, and 100 columns without it.

use std::os::fd::AsFd;

use terminal_size::{Height, Width, terminal_size_of};

const WIDTH_WITHOUT_TERMINAL: usize = 100;
/// The least width: with fewer columns, a column of text would be a column of words.
const LEAST_WIDTH: usize = 40;

/// Returns how many columns a line on `stream` may have.
pub(crate) fn width_of(stream: &impl AsFd) -> usize {
    let terminal = terminal_size_of(stream).map(|(Width(columns), _)| usize::from(columns));
    let asked = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(asked).unwrap_or(WIDTH_WITHOUT_TERMINAL).max(LEAST_WIDTH)
}

/// Returns how many lines `stream` shows at once; more than anybody prints where it is no terminal.
pub(super) fn height_of(stream: &impl AsFd) -> usize {
    terminal_size_of(stream).map_or(usize::MAX, |(_, Height(rows))| usize::from(rows))
}
