//! Stray writes: a thread writes to a block by its address while its tag falls asleep.
//!
//! Whenever one comes, the tag sleeps and its pages have the bytes before the write or after it, or the
//! sleep fails and everything is awake. The end of the world wakes every tag and reads every byte.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use lowtide_device::{Bytes, Stream};
use lowtide_pool::{Scope, SleepPolicy};

use crate::held::Stray;
use crate::player::Player;
use crate::trail::note;
use crate::world::World;

/// The most writes beside one sleep.
const WRITES_MOST: usize = 64;

/// Puts the tag of a block to sleep and writes to the block meanwhile.
pub(super) fn stray(player: &mut Player) {
    let world = Arc::clone(&player.world);
    if !world.has_strays {
        return;
    }
    let stream = world.device.stream().map_err(lowtide_pool::Error::from);
    let Some(stream) = world.allowed("stream", stream) else { return };
    let mut offload =
        player.held.iter_mut().filter(|held| held.group.policy() == SleepPolicy::Offload);
    let Some(held) = offload.find(|held| held.size() > Bytes::ZERO) else { return };
    let stray = Stray::roll(held.size(), &mut player.dice);
    // A write in flight keeps its memory from going. One that has ended is found by its digest.
    let waits = player.dice.one_in(2);
    let (pool, tag) = world.pool_and_tag(held.group);
    note(format_args!("sleep beside {stray:?} of {}", held.describe()));
    let slept = thread::scope(|scope| {
        let sleep = scope.spawn(|| {
            let _sleeping = world.sleeping();
            pool.sleep(Scope::Tags(&[tag]))
        });
        for turn in 0..WRITES_MOST {
            if sleep.is_finished() || !held.write_stray(&world, &stream, (&stray, turn)) {
                break;
            }
            if waits {
                synchronize(&world, &stream);
            }
        }
        // Any panic but one on purpose has ended the process by now: a pressure callback's, here.
        sleep.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    world.allowed("sleep beside a stray write", slept);
    synchronize(&world, &stream);
    // Work that the stream does not confirm may still run: then this waits.
    drop(stream);
}

fn synchronize(world: &World, stream: &Stream) {
    let synchronized = stream.synchronize().map_err(lowtide_pool::Error::from);
    world.allowed("synchronize", synchronized);
}
