//! How two lanes share the pieces of a copy, which tells how fast the copy engine is.
//!
//! Both take pieces from one queue, so a slow engine takes few. While a driver clears freed memory with that engine,
//! its share is small, and kernels are worth their help. Once its share is that of a rested engine, they only cost:
//! a kernel uses the link a little worse. No clock is needed for that.

use std::sync::{Mutex, PoisonError};

use crate::backups::slab::Form;

/// The number of pieces over which shares are looked at.
const WINDOW: u32 = 128;

/// The least share of a rested engine, in percent of the pieces of a window, by their form: between what was
/// measured on an H200 while memory was cleared and after it (docs/decisions/0005-sleep-and-wake.md).
const fn rested_percent(form: Form) -> u32 {
    match form {
        Form::Raw => 28,
        Form::Packed => 36,
    }
}

/// Who moves the bytes of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mover {
    CopyEngine,
    Kernels,
}

/// The pieces of the present window, and what the last one showed.
#[derive(Default)]
pub(crate) struct Shares(Mutex<Window>);

#[derive(Default)]
struct Window {
    pieces: u32,
    /// Those of the engine.
    engine: u32,
    /// The sum of what a rested engine would have of each piece, in percent.
    rested: u32,
    is_rested: bool,
}

impl Shares {
    /// Counts a piece that a lane takes.
    pub(crate) fn count(&self, mover: Mover, form: Form) {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        window.pieces += 1;
        window.engine += u32::from(mover == Mover::CopyEngine);
        window.rested += rested_percent(form);
        if window.pieces == WINDOW {
            let is_rested = window.engine * 100 >= window.rested;
            *window = Window { is_rested: window.is_rested || is_rested, ..Window::default() };
        }
    }

    /// Returns whether the engine was found to be rested.
    pub(crate) fn is_rested(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(shares: &Shares, engine: u32, form: Form) {
        for piece in 0..WINDOW {
            let mover = if piece < engine { Mover::CopyEngine } else { Mover::Kernels };
            shares.count(mover, form);
        }
    }

    // The shares that were measured on an H200, of 128 pieces.
    #[test]
    fn an_engine_is_rested_once_its_share_is_large() {
        for (form, clearing, rested) in [(Form::Raw, 32, 36), (Form::Packed, 40, 52)] {
            let shares = Shares::default();
            window(&shares, clearing, form);
            assert!(!shares.is_rested(), "{form:?}: it clears memory");
            shares.count(Mover::CopyEngine, form);
            assert!(!shares.is_rested(), "{form:?}: one piece says nothing");
            let shares = Shares::default();
            window(&shares, clearing, form);
            window(&shares, rested, form);
            assert!(shares.is_rested(), "{form:?}: it has cleared the memory");
            window(&shares, 0, form);
            assert!(shares.is_rested(), "{form:?}: for the rest of this copy");
        }
    }
}
