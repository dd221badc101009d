//! How two lanes share the pieces of a copy, which tells how fast the copy engine is.
//!
//! Both take pieces from one queue, so a slow engine takes few. While a driver clears freed memory with that engine,
//! its share is small, and kernels are worth their help. Once its share is that of a rested engine, they only cost:
//! a kernel uses the link a little worse. No clock is needed for that.

use std::sync::{Mutex, PoisonError};

use crate::haul::Mover;

/// The number of pieces over which shares are looked at.
const WINDOW: u32 = 128;

/// The least share of a rested engine, in percent of the pieces of a window. Measured on an H200: see
/// docs/decisions/0022-a-wake-at-once.md.
const RESTED_PERCENT: u32 = 28;

/// The pieces of the present window, and what the last one showed.
#[derive(Default)]
pub(crate) struct Shares(Mutex<Window>);

#[derive(Default)]
struct Window {
    engine: u32,
    kernels: u32,
    is_rested: bool,
}

impl Shares {
    /// Counts a piece that a lane takes.
    pub(crate) fn count(&self, mover: Mover) {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match mover {
            Mover::CopyEngine => window.engine += 1,
            Mover::Kernels => window.kernels += 1,
        }
        if window.engine + window.kernels == WINDOW {
            let is_rested = window.engine * 100 >= WINDOW * RESTED_PERCENT;
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

    fn window(shares: &Shares, engine: u32) {
        for piece in 0..WINDOW {
            let mover = if piece < engine { Mover::CopyEngine } else { Mover::Kernels };
            shares.count(mover);
        }
    }

    #[test]
    fn an_engine_is_rested_once_its_share_is_large() {
        let shares = Shares::default();
        window(&shares, WINDOW / 5);
        assert!(!shares.is_rested(), "it clears memory");
        shares.count(Mover::CopyEngine);
        assert!(!shares.is_rested(), "one piece says nothing");
        let shares = Shares::default();
        window(&shares, WINDOW / 5);
        window(&shares, WINDOW / 3);
        assert!(shares.is_rested(), "it has cleared the memory");
        window(&shares, 0);
        assert!(shares.is_rested(), "for the rest of this copy");
    }
}
