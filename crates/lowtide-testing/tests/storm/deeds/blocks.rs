//! Deeds with blocks: allocate, write, check, free, leave to another thread.

use lowtide_device::Bytes;
use lowtide_pool::StreamId;

use crate::held::Held;
use crate::player::Player;
use crate::trail::{fail, note};
use crate::world::{Group, POLICIES, lock};

/// The most blocks that a thread keeps.
const HELD_MOST: usize = 8;

pub(super) fn alloc(player: &mut Player) {
    if player.held.len() >= HELD_MOST {
        return;
    }
    let (group, size) =
        (player.world.roll_group(&mut player.dice), Held::roll_size(&mut player.dice));
    note(format_args!("alloc {} bytes in {group:?}", size.0));
    let held = Held::new(&player.world, group, size);
    player.held.extend(held);
}

pub(super) fn free(player: &mut Player) {
    if !player.held.is_empty() {
        let index = player.dice.index(player.held.len());
        player.held.swap_remove(index).free();
    }
}

pub(super) fn check(player: &mut Player) {
    let world = std::sync::Arc::clone(&player.world);
    let index = player.dice.index(player.held.len().max(1));
    if let Some(held) = player.held.get_mut(index) {
        note(format_args!("check {}", held.describe()));
        held.check(&world, &mut player.dice);
    }
}

pub(super) fn rewrite(player: &mut Player) {
    let world = std::sync::Arc::clone(&player.world);
    if let Some(held) = player.pick_held() {
        note(format_args!("rewrite {}", held.describe()));
        held.write(&world);
    }
}

pub(super) fn hand_over(player: &mut Player) {
    if let Some(held) = player.held.pop() {
        lock(&player.world.market).push(held);
    }
}

pub(super) fn take_over(player: &mut Player) {
    let taken = lock(&player.world.market).pop();
    let Some(mut held) = taken else { return };
    note(format_args!("take over {}", held.describe()));
    held.check(&player.world, &mut player.dice);
    player.held.push(held);
}

/// Gives a stream work on a block of a `Keep` tag and frees the block on that stream at once. The next
/// user of that memory must not see the work.
pub(super) fn stream(player: &mut Player) {
    let world = &player.world;
    let tag = POLICIES.len() - 1;
    let (pool, tag) = world.pool_and_tag(Group { pool: player.dice.index(2), tag });
    let size = Bytes(1 + player.dice.roll(2 << 20));
    let stream = world.device.stream().map_err(lowtide_pool::Error::from);
    let Some(stream) = world.allowed("stream", stream) else { return };
    let id = StreamId(stream.id());
    let Some(block) = world.allowed("alloc", pool.block_on(size, id, tag)) else { return };
    let (reservation, at) = match pool.place_of(block.address()) {
        Ok(place) => place,
        Err(error) => fail(format!("a live block has no place: {error}")),
    };
    let filled = stream.fill((&reservation, at), 0xee, size).map_err(lowtide_pool::Error::from);
    world.allowed("fill", filled);
    let synchronized = stream.synchronize().map_err(lowtide_pool::Error::from);
    // The pool has no fence, so a free means that nothing uses the block. Work that the stream does not
    // confirm may still run, and then the block may not be freed before the stream is gone.
    if world.allowed("synchronize", synchronized).is_none() {
        drop(stream);
    }
    drop(block);
}
