//! Trouble from outside: neighbours on the device, faults of the driver, callbacks and hooks that
//! misbehave.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use lowtide_device::Bytes;
use lowtide_pool::{Pressure, PressureAnswer, Scope};
use lowtide_release::{Hook, HookPoint, Ladder, Request};
use lowtide_testing::double::Double;
use lowtide_testing::suite::Target;

use crate::clock::SPEED;
use crate::player::Player;
use crate::trail::{note, panic_on_purpose};
use crate::world::{Group, World, lock};

const HOOK_POINTS: [HookPoint; 6] = [
    HookPoint::ToHost,
    HookPoint::Sessions,
    HookPoint::Caches,
    HookPoint::Collect,
    HookPoint::Libraries,
    HookPoint::Fallback,
];

/// Somebody else has memory of the device for a moment.
pub(super) fn neighbour(player: &mut Player) {
    let (world, size) = (&player.world, Bytes::mib(2 + 2 * player.dice.roll(16)));
    let time = Duration::from_millis(player.dice.roll(20));
    note(format_args!("a neighbour takes {size}"));
    if world.target == Target::Double {
        let double = Double::load();
        double.configure(&format!("foreign=4242:{}MiB", size.0 >> 20));
        thread::sleep(time);
        double.configure("foreign=off");
    } else if let Some(chunk) =
        world.allowed("create", world.device.create(size).map_err(lowtide_pool::Error::from))
    {
        thread::sleep(time);
        drop(chunk);
    }
}

/// A call of the driver fails soon, or those that fail now do so no longer.
pub(super) fn fault(player: &mut Player) {
    if !player.world.has_faults {
        return;
    }
    if player.dice.one_in(3) {
        note("faults end");
        player.world.end_faults();
    } else {
        player.world.arm_fault(&mut player.dice);
    }
}

/// The machine has more or less free memory from now on.
pub(super) fn host_budget(player: &mut Player) {
    let free_mib = crate::budget::roll(&mut player.dice);
    note(format_args!("{free_mib} MiB of host memory are free"));
}

/// Registers pressure callbacks with the pools and hooks with the releaser.
pub(crate) fn plug(world: &Arc<World>) {
    let mut subscriptions = Vec::new();
    for (index, pool) in world.pools().enumerate() {
        let weak = Arc::downgrade(world);
        subscriptions.push(pool.on_pressure(move |pressure| {
            weak.upgrade().map_or(PressureAnswer::Nothing, |world| answer(&world, index, pressure))
        }));
    }
    let registrations = HOOK_POINTS.map(|point| {
        let weak = Arc::downgrade(world);
        let hook = Hook::new(format!("hook at {point:?}"), move |call| {
            let Some(world) = weak.upgrade() else { return Ok(Vec::new()) };
            world.hooks.fetch_add(1, SeqCst);
            let _running = Running(&world);
            misbehave(&world)?;
            if lock(&world.dice).one_in(16) {
                let request = Request::new("within", Ladder::cache()).within(&call.climb);
                thread::scope(|scope| scope.spawn(|| world.releaser.release(request)).join())
                    .map_err(|_| "the release within a hook panicked")?;
            }
            Ok(Vec::new())
        });
        world.releaser.add_hook(point, hook.limit(SPEED * Duration::from_millis(10)))
    });
    world.plug(subscriptions, registrations.into());
}

/// A hook that runs, also after it was left behind.
struct Running<'a>(&'a World);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.hooks.fetch_sub(1, SeqCst);
    }
}

fn misbehave(world: &World) -> Result<(), String> {
    let rolled = lock(&world.dice).roll(24);
    match rolled {
        0 => panic_on_purpose("a hook"),
        1 => Err("it failed".to_owned()),
        2 => {
            thread::sleep(Duration::from_millis(30));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Answers pressure: trims the other pool, puts another tag to sleep, or does nothing.
fn answer(world: &World, index: usize, pressure: &Pressure) -> PressureAnswer {
    let (rolled, group) = {
        let mut dice = lock(&world.dice);
        (dice.roll(8), world.roll_group(&mut dice))
    };
    note(format_args!("asked for {} in round {}", pressure.requested, pressure.round));
    match rolled {
        0 | 1 => {
            let (pool, _) = world.pool_and_tag(Group { pool: 1 - index, ..group });
            let trimmed = world.allowed("trim", pool.trim(Bytes::ZERO)).unwrap_or_default();
            if trimmed > Bytes::ZERO { PressureAnswer::Retry } else { PressureAnswer::Nothing }
        }
        2 => {
            let (pool, tag) = world.pool_and_tag(group);
            let _sleeping = world.sleeping();
            let slept = world.allowed("sleep", pool.sleep(Scope::Tags(&[tag])));
            if slept.is_some_and(|slept| slept.freed > Bytes::ZERO) {
                PressureAnswer::Retry
            } else {
                PressureAnswer::Nothing
            }
        }
        3 => PressureAnswer::Retry,
        4 => panic_on_purpose("a pressure callback"),
        5 => {
            let (pool, tag) = world.pool_and_tag(group);
            // Whatever the answer is, it comes, and memory that was given is free again.
            drop(pool.block_tagged(pressure.requested, tag));
            PressureAnswer::Nothing
        }
        _ => PressureAnswer::Nothing,
    }
}
