//! The end of a world: everything is checked and freed at a quiet moment, and the device must be where it
//! began.

use std::sync::Arc;

use lowtide_device::Bytes;
use lowtide_pool::{Error, Limit, Phase, Pool, Scope, SleepPolicy};
use lowtide_testing::double::{Double, Live};
use lowtide_testing::suite::Target;

use crate::figures;
use crate::held::Held;
use crate::sabotage::{self, Sabotage};
use crate::trail::{fail, note};
use crate::world::{Group, POLICIES, World, lock};

impl World {
    /// Checks and frees everything at a quiet moment: no thread but this one uses the world.
    pub(crate) fn end(self: Arc<World>, mut held: Vec<Held>) {
        note("the world ends");
        // A sleep that was cut off and left behind keeps the gate closed until it ends.
        drop(self.releaser.gate().enter());
        self.end_faults();
        crate::budget::restore();
        figures::with(|figures| figures.faults += self.struck());
        if self.target == Target::Double {
            Double::load().configure("foreign=off");
        }
        drop(std::mem::take(&mut *lock(&self.plugged)));
        held.append(&mut lock(&self.market));
        self.sweep();
        self.check_numbers();
        self.check_asleep();
        self.check_blocks(held);
        let receipt = self.releaser.shutdown();
        crate::receipts::check(&self, &receipt);
        if sabotage::is(Sabotage::Leak) {
            self.leak();
        }
        for pool in self.pools() {
            note("the last trim");
            pool.trim(Bytes::ZERO).unwrap_or_else(|error| fail(format!("the last trim: {error}")));
            let counts = pool.counts();
            if counts.blocks > 0 || counts.physical > Bytes::ZERO {
                let (faults, snapshot) = (self.has_faults, pool.snapshot());
                fail(format!("a pool without a holder has memory; faults {faults}: {snapshot:#?}"));
            }
        }
        self.sweep();
        let in_use = self.in_use();
        if in_use != self.base {
            fail(format!("{} in use at the end, {} at the beginning", in_use, self.base));
        }
        let target = self.target;
        let Ok(world) = Arc::try_unwrap(self).map_err(drop) else {
            fail("somebody still has the world");
        };
        drop(world);
        if target == Target::Double {
            let live = Double::load().live();
            let nothing = Live { stack_depth: live.stack_depth, ..Default::default() };
            if live != nothing {
                fail(format!("the driver still has objects of a world that has ended: {live:?}"));
            }
        }
    }

    // Not before: a block that stays may be in the way of another, which is noticed first then.
    fn leak(&self) {
        let (pool, tag) = self.pool_and_tag(Group { pool: 0, tag: POLICIES.len() - 1 });
        match pool.block_tagged(Bytes(1), tag) {
            Ok(block) => drop(block.into_address()),
            Err(error) => fail(format!("nothing to leak: {error}")),
        }
    }

    fn in_use(&self) -> Bytes {
        self.real.usage().unwrap_or_else(|error| fail(error)).in_use()
    }

    /// Has the device take back what its driver refused before.
    fn sweep(&self) {
        let page = self.device.info().page;
        drop(self.device.reserve(page).unwrap_or_else(|error| fail(error)));
        if self.device.leftovers() > 0 {
            fail(format!("{} leftovers stay without a fault", self.device.leftovers()));
        }
    }

    /// Checks that the pools' numbers, the ledger and the device agree.
    fn check_numbers(&self) {
        note("check the numbers");
        self.pools().for_each(Pool::check);
        let physical: Bytes = self.pools().map(|pool| pool.counts().physical).sum();
        let in_use = self.in_use();
        if in_use != self.base + physical {
            let base = self.base;
            fail(format!(
                "{in_use} in use, but {base} at the beginning and {physical} of the pools"
            ));
        }
        let ledger = self.releaser.ledger().unwrap_or_else(|| fail("no ledger"));
        if ledger.sum() != ledger.driver_bytes.0.cast_signed() || ledger.driver_bytes != in_use {
            fail(format!("the ledger does not add up to {in_use}:\n{ledger}"));
        }
    }

    /// Puts everything to sleep, where there is host memory for it: only `Keep` tags stay.
    fn check_asleep(&self) {
        for pool in self.pools() {
            note("the last sleep");
            let _sleeping = self.sleeping();
            match pool.sleep_within(Scope::Whole, Limit::NONE) {
                Ok(_) => {}
                Err(Error::BackupLimit { .. }) => return,
                Err(error) => fail(format!("the last sleep: {error}")),
            }
        }
        let kept: Bytes = self
            .pools()
            .flat_map(|pool| pool.snapshot().tags)
            .filter(|tag| tag.policy == SleepPolicy::Keep)
            .map(|tag| tag.physical_bytes)
            .sum();
        let in_use = self.in_use();
        if in_use != self.base + kept {
            fail(format!("{in_use} in use while all is asleep, of which {kept} are kept"));
        }
        self.check_numbers();
    }

    /// Wakes one tag after another, checks every byte and frees the blocks. What is awake goes first, so
    /// that there is room for the rest.
    fn check_blocks(&self, mut held: Vec<Held>) {
        let mut groups: Vec<Group> = self.groups().collect();
        groups.sort_by_key(|group| {
            let (pool, tag) = self.pool_and_tag(*group);
            pool.phase(tag).unwrap_or_else(|error| fail(error)) != Phase::Awake
        });
        for group in groups {
            note(format_args!("the last check of {group:?}"));
            let (pool, tag) = self.pool_and_tag(group);
            if let Err(error) = pool.wake(Scope::Tags(&[tag])) {
                let World { has_faults, has_strays, .. } = self;
                let policy = self.policy(group.pool);
                fail(format!(
                    "the last wake of {group:?}: {error}; faults {has_faults}, strays {has_strays}, \
                     {policy:?}"
                ));
            }
            let own: Vec<Held> = held.extract_if(.., |held| held.group == group).collect();
            for mut held in own {
                if !held.check_all(self) {
                    fail(format!("{} could not be read", held.describe()));
                }
                held.free();
            }
            pool.check();
            pool.trim(Bytes::ZERO).unwrap_or_else(|error| fail(format!("a last trim: {error}")));
        }
    }
}
