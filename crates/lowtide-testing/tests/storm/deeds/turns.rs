//! Deeds with whole tags: sleep, wake, trim, and reading the numbers meanwhile.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use lowtide_device::Bytes;
use lowtide_pool::{Limit, Scope, Tag};

use crate::player::Player;
use crate::trail::{fail, note, panic_on_purpose};

/// Some tags of a pool; empty for all of them.
fn roll_tags(player: &mut Player, pool: usize) -> Vec<Tag> {
    let mut tags = Vec::new();
    for _ in 0..player.dice.roll(3) {
        let group = player.world.roll_group(&mut player.dice);
        tags.push(player.world.pool_and_tag(crate::world::Group { pool, ..group }).1);
    }
    tags
}

/// A limit that stops after so many questions, or that panics then.
fn roll_limit(player: &mut Player) -> impl Fn() -> bool + Sync + use<> {
    let asks = AtomicU64::new(player.dice.pick(&[0, 3, 20, u64::MAX, u64::MAX, u64::MAX]));
    let panics = player.dice.one_in(4);
    move || {
        if asks.load(SeqCst) == 0 {
            if panics {
                panic_on_purpose("a limit");
            }
            return false;
        }
        asks.fetch_sub(1, SeqCst);
        true
    }
}

pub(super) fn sleep(player: &mut Player) {
    let index = player.dice.index(2);
    let (tags, go_on) = (roll_tags(player, index), roll_limit(player));
    let scope = if tags.is_empty() { Scope::Whole } else { Scope::Tags(&tags) };
    let world = &player.world;
    let Some(pool) = world.pools().nth(index) else { return };
    note(format_args!("sleep {scope:?} of pool {index}"));
    let _sleeping = world.sleeping();
    let quiet = player.dice.one_in(2);
    let limit = Limit::new(&go_on);
    let slept =
        if quiet { pool.sleep_quiet(scope, limit) } else { pool.sleep_within(scope, limit) };
    world.allowed("sleep", slept);
}

pub(super) fn wake(player: &mut Player) {
    let index = player.dice.index(2);
    let (tags, go_on) = (roll_tags(player, index), roll_limit(player));
    let scope = if tags.is_empty() { Scope::Whole } else { Scope::Tags(&tags) };
    let Some(pool) = player.world.pools().nth(index) else { return };
    note(format_args!("wake {scope:?} of pool {index}"));
    player.world.allowed("wake", pool.wake_within(scope, Limit::new(&go_on)));
}

pub(super) fn trim(player: &mut Player) {
    let (index, keep) = (player.dice.index(2), Bytes(player.dice.roll(8 << 20)));
    let mut chunks = player.dice.pick(&[0, 1, 2, u64::MAX]);
    let Some(pool) = player.world.pools().nth(index) else { return };
    note(format_args!("trim pool {index} to {keep}"));
    let sleeps = player.dice.one_in(4);
    let go_on = || {
        if sleeps {
            let _sleeping = player.world.sleeping();
            player.world.allowed("sleep within a trim", pool.sleep(Scope::Whole));
        }
        chunks = chunks.saturating_sub(1);
        chunks > 0
    };
    player.world.allowed("trim", pool.trim_while(keep, go_on));
}

pub(super) fn numbers(player: &mut Player) {
    for pool in player.world.pools() {
        let snapshot = pool.snapshot();
        let of_tags: Bytes = snapshot.tags.iter().map(|tag| tag.live_bytes).sum();
        if of_tags != snapshot.live_bytes {
            fail(format!("the tags of a snapshot do not add up: {snapshot:?}"));
        }
    }
    if let Some(ledger) = player.world.releaser.ledger()
        && ledger.sum() != ledger.driver_bytes.0.cast_signed()
    {
        fail(format!("the ledger does not add up:\n{ledger}"));
    }
}
