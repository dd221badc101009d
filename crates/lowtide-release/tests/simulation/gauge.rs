//! Whoever tells what is in use: at once, late, not always, not at all.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lowtide_device::{Bytes, Device, DeviceId, Error, Result, Usage};
use lowtide_release::Gauge;

use crate::clock::Time;
use crate::journal::Journal;
use lowtide_testing::Dice;

/// A device with others on it is larger.
pub(crate) const SHARED_TOTAL: Bytes = Bytes::mib(264);

/// What a gauge is like.
#[derive(Debug, Clone, Default)]
pub(crate) struct Temper {
    /// Calls, by number, that it does not answer.
    pub(crate) deaf: Range<u64>,
    /// Calls, by number, to which it does not tell this process's part.
    pub(crate) untold: Range<u64>,
    /// What was given back leaves its number at so many bytes per millisecond.
    pub(crate) decay: Option<u64>,
    /// What other processes hold.
    pub(crate) others: u64,
    /// They take and give all the time.
    pub(crate) restless: bool,
}

impl Temper {
    pub(crate) fn roll(dice: &mut Dice) -> Temper {
        let never = u64::MAX..u64::MAX;
        let mut temper = Temper { deaf: never.clone(), untold: never, ..Temper::default() };
        let from = dice.roll(60);
        match dice.roll(9) {
            0 => temper.deaf = 0..u64::MAX,
            1 => temper.deaf = from..from + 1 + dice.roll(20),
            2 => temper.deaf = from..u64::MAX,
            3 => temper.untold = from..from + 1 + dice.roll(200),
            4 => temper.untold = 0..u64::MAX,
            5 | 6 => temper.decay = Some(dice.pick(&[1 << 10, 256 << 10, 16 << 20])),
            _ => {}
        }
        temper.others = dice.pick(&[0, 100 << 20]);
        temper.restless = temper.others > 0
            && temper.deaf.is_empty()
            && temper.untold.is_empty()
            && dice.one_in(4);
        temper
    }
}

pub(crate) struct Moody {
    pub(crate) temper: Temper,
    /// Behind its faults.
    device: Device,
    journal: Arc<Journal>,
    time: Time,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: u64,
    told: u64,
    refused: u64,
    shown: u64,
    at: Duration,
}

impl Moody {
    pub(crate) fn new(
        temper: Temper,
        device: &Device,
        journal: &Arc<Journal>,
        time: &Time,
    ) -> Moody {
        let (device, journal, time) = (device.clone(), Arc::clone(journal), time.clone());
        Moody { temper, device, journal, time, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it did not tell something that it was asked.
    pub(crate) fn refused(&self) -> u64 {
        self.state().refused
    }

    /// Long enough later: its number is the true one.
    pub(crate) fn catch_up(&self) {
        self.state().shown = self.journal.in_use();
    }

    // What it thinks this process holds: more is seen at once, less in its own time.
    fn look(&self, state: &mut State) -> u64 {
        let (truth, now) = (self.journal.in_use(), self.time.now());
        let passed = now.saturating_sub(state.at).as_micros() as u64;
        let gone =
            self.temper.decay.map_or(u64::MAX, |per_ms| per_ms.saturating_mul(passed) / 1000);
        state.shown = state.shown.saturating_sub(gone).max(truth);
        state.at = now;
        state.shown
    }

    fn others_now(&self, asked: u64) -> u64 {
        if self.temper.restless {
            self.temper.others + asked % 7 * 4096
        } else {
            self.temper.others
        }
    }
}

impl Gauge for Moody {
    fn id(&self) -> DeviceId {
        DeviceId::Cuda(0)
    }

    fn usage(&self) -> Result<Usage> {
        let mut state = self.state();
        let asked = state.asked;
        state.asked += 1;
        if self.temper.deaf.contains(&asked) {
            state.refused += 1;
            return Err(Error::Nvml { question: "what is in use", answer: "nothing".to_owned() });
        }
        let in_use = self.look(&mut state) + self.others_now(asked);
        let usage = self.device.usage().inspect_err(|_| state.refused += 1)?;
        let free = SHARED_TOTAL.saturating_sub(Bytes(in_use));
        Ok(Usage { total: SHARED_TOTAL, free, ..usage })
    }

    fn own(&self) -> Option<Bytes> {
        let mut state = self.state();
        let told = state.told;
        state.told += 1;
        if self.temper.untold.contains(&told) || self.temper.deaf.contains(&told) {
            state.refused += 1;
            return None;
        }
        Some(Bytes(self.look(&mut state)))
    }

    fn synchronize(&self) -> Result<()> {
        self.device.synchronize()
    }

    fn others(&self) -> Vec<(String, Bytes)> {
        vec![("pid 1".to_owned(), Bytes(self.temper.others))]
    }
}
