//! A thread of a world: it does one random deed after another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use lowtide_release::Owned;
use lowtide_testing::Dice;

use crate::deeds::{self, DEEDS};
use crate::figures;
use crate::held::Held;
use crate::sabotage::{self, Sabotage};
use crate::trail::{Recorded, note};
use crate::world::World;

/// What an owner of the registry has.
pub(crate) struct Payload {
    pub(crate) held: Mutex<Held>,
    pub(crate) panics: bool,
}

impl Drop for Payload {
    fn drop(&mut self) {
        if self.panics {
            crate::trail::panic_on_purpose("the drop of an owner");
        }
    }
}

pub(crate) struct Player {
    pub(crate) world: Arc<World>,
    pub(crate) dice: Dice,
    pub(crate) held: Vec<Held>,
    pub(crate) owned: Vec<Owned<Payload>>,
}

impl Player {
    pub(crate) fn new(world: &Arc<World>, seed: u64) -> Player {
        let (world, dice) = (Arc::clone(world), Dice::new(seed));
        Player { world, dice, held: Vec::new(), owned: Vec::new() }
    }

    /// Plays until the world is over. Returns the blocks that are left.
    pub(crate) fn play(mut self, name: &str) -> Vec<Held> {
        let _recorded = Recorded::new(name);
        let all: u64 = DEEDS.iter().map(|(.., weight)| weight).sum();
        while !self.world.is_over() {
            let mut rolled = self.dice.roll(all);
            let chosen = DEEDS.iter().find(|(.., weight)| {
                let is_it = rolled < *weight;
                rolled = rolled.saturating_sub(*weight);
                is_it
            });
            let Some((name, deed, _)) = chosen else { continue };
            note(name);
            figures::operation(name);
            assert!(!sabotage::is(Sabotage::Panic), "sabotage");
            // Any panic but one on purpose has ended the process by now.
            let _ = catch_unwind(AssertUnwindSafe(|| deed(&mut self)));
        }
        note("owners go");
        for owned in self.owned.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(owned)));
        }
        self.held
    }

    /// Returns one of its blocks.
    pub(crate) fn pick_held(&mut self) -> Option<&mut Held> {
        let index = self.dice.index(self.held.len().max(1));
        self.held.get_mut(index)
    }
}

/// Ticks the idle policy until the world is over.
pub(crate) fn tick(world: &World) {
    let _recorded = Recorded::new("idle");
    while !world.is_over() {
        deeds::tick(world);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
