//! How often a fault strikes, for every kind of device with faults.

use crate::Dice;

/// When a fault strikes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strikes {
    /// So many calls get through first.
    pub(crate) spared: u64,
    /// Then so many do not. `None`: every call, until the fault is ended.
    pub(crate) times: Option<u64>,
}

impl Strikes {
    /// Rolls a fault that strikes soon. Few calls are spared: in a storm, faults are ended again before
    /// many calls of one kind were made.
    pub(crate) fn roll(dice: &mut Dice) -> Strikes {
        let times = dice.pick(&[Some(1), Some(2), Some(3), None]);
        Strikes { spared: dice.roll(6), times }
    }

    /// Counts a call. Returns whether it is struck.
    pub(crate) fn strike(&mut self) -> bool {
        if self.spared > 0 {
            self.spared -= 1;
            return false;
        }
        match &mut self.times {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_spares_some_calls_and_then_strikes_as_often_as_it_says() {
        let struck = |mut strikes: Strikes| [(); 6].map(|()| strikes.strike());
        let some = struck(Strikes { spared: 1, times: Some(2) });
        assert_eq!(some, [false, true, true, false, false, false]);
        let all = struck(Strikes { spared: 2, times: None });
        assert_eq!(all, [false, false, true, true, true, true]);
    }
}
