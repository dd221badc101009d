//! Deeds with the releaser: work behind its gate, and every kind of release.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lowtide_device::Bytes;
use lowtide_release::{
    Ladder, Mode, Request, Resume, RungName, RungOutcome, StageError, Step, Target, Tick, Verdict,
    WhenBusy,
};

use crate::clock::SPEED;
use crate::held::Held;
use crate::player::{Payload, Player};
use crate::receipts::check;
use crate::trail::{fail, note, panic_on_purpose};
use crate::world::{World, lock};

/// The most owners that a thread registers.
const OWNED_MOST: usize = 3;

/// Works behind the gate, as a server's request does.
pub(super) fn work(player: &mut Player) {
    let world = Arc::clone(&player.world);
    if player.dice.one_in(8) {
        return shut_down_at_work(&world);
    }
    let Some(mut working) = world.allowed("work", world.idling.work().map_err(woken)) else {
        return;
    };
    for held in player.held.iter_mut().take(3) {
        note(format_args!("work with {}", held.describe()));
        held.check(&world, &mut player.dice);
        if player.dice.one_in(3) {
            held.write(&world);
        }
        if working.checkpoint() != Step::Go {
            break;
        }
    }
}

/// Asks for a shutdown behind the gate. It would wait for itself, so it is refused.
fn shut_down_at_work(world: &World) {
    let _pass = world.releaser.gate().enter();
    let receipt = world.releaser.shutdown();
    check(world, &receipt);
    if receipt.verdict != Verdict::Busy {
        fail(format!("a shutdown by the holder of a pass:\n{}", receipt.detailed()));
    }
}

pub(super) fn own(player: &mut Player) {
    if player.owned.len() >= OWNED_MOST {
        let owned = player.owned.swap_remove(player.dice.index(OWNED_MOST));
        drop(owned);
        return;
    }
    let (group, size) =
        (player.world.roll_group(&mut player.dice), Held::roll_size(&mut player.dice));
    let Some(held) = Held::new(&player.world, group, size) else { return };
    let payload = Payload { held: Mutex::new(held), panics: player.dice.one_in(8) };
    let name = format!("engine.part{}", player.world.next_number());
    let bytes = |payload: &Payload| lock(&payload.held).size();
    let owned = player.world.releaser.owners().own(&name, payload).bytes(bytes);
    player.owned.push(owned);
}

pub(super) fn look_at_owner(player: &mut Player) {
    let index = player.dice.index(player.owned.len().max(1));
    let Some(owned) = player.owned.get(index) else { return };
    let lent = if player.dice.one_in(2) { owned.lend("engine.guest") } else { None };
    owned.with(|payload| {
        let mut held = lock(&payload.held);
        note(format_args!("look at {} with {}", owned.name(), held.describe()));
        held.check(&player.world, &mut player.dice);
    });
    drop(lent);
}

pub(super) fn empty_cache(player: &mut Player) {
    check(&player.world, &player.world.releaser.empty_cache());
}

pub(super) fn shutdown(player: &mut Player) {
    let request = Request::new("shutdown", Ladder::shutdown());
    climb(player, request);
}

pub(super) fn release(player: &mut Player) {
    let dice = &mut player.dice;
    let ladder = match dice.roll(4) {
        0 => Ladder::gradual(),
        1 => Ladder::whole(),
        _ => Ladder::idle(),
    };
    let some = Bytes::mib(dice.roll(48));
    let mut request = Request::new("release", ladder);
    request.to = dice.pick(&[
        None,
        Some(Target::Floor),
        Some(Target::Under(some)),
        Some(Target::Free(some)),
    ]);
    request.every_rung = dice.one_in(4);
    if dice.one_in(4) {
        let asks = Mutex::new(dice.roll(8));
        request = request.go_on_while(move || {
            let mut asks = lock(&asks);
            *asks = asks.saturating_sub(1);
            *asks > 0
        });
    }
    climb(player, request);
}

fn climb(player: &mut Player, mut request: Request) {
    request.when_busy = match player.dice.roll(3) {
        0 => WhenBusy::Refuse,
        _ => WhenBusy::Wait(SPEED * Duration::from_millis(player.dice.roll(60))),
    };
    note(format_args!("{request:?}"));
    let sleeping = player.world.sleeping();
    if player.dice.one_in(4) {
        let limit = SPEED * Duration::from_millis(player.dice.roll(4));
        request.ladder = request.ladder.limit(&RungName::Sleep, limit);
    }
    let receipt = player.world.releaser.release(request);
    check(&player.world, &receipt);
    if receipt.rungs.iter().any(|rung| matches!(rung.outcome, RungOutcome::CutOff { .. })) {
        // It may end after the release: from now on, what may be discarded may be so at any time.
        std::mem::forget(sleeping);
    }
}

pub(super) fn stage(player: &mut Player) {
    let world = &player.world;
    let (group, size) = (world.roll_group(&mut player.dice), Held::roll_size(&mut player.dice));
    note(format_args!("stage of {size}"));
    let load = || Held::new(world, group, size).ok_or("refused");
    let loaded = match player.dice.roll(2) {
        0 => world.stages.load("model", load),
        _ => world.stages.load_needing("model", size, load),
    };
    match loaded {
        Ok(mut stage) => {
            stage.check(world, &mut player.dice);
            check(world, &stage.finish());
        }
        Err(StageError::Load(why)) => note(why),
        Err(refused) => note(refused),
    }
}

pub(super) fn task(player: &mut Player) {
    let (world, panics) = (Arc::clone(&player.world), player.dice.one_in(4));
    world.stages.task("task", || {
        check_some(player);
        if panics {
            panic_on_purpose("a task");
        }
    });
}

fn check_some(player: &mut Player) {
    let world = Arc::clone(&player.world);
    for held in player.held.iter_mut().take(2) {
        held.check(&world, &mut player.dice);
    }
}

pub(super) fn pause(player: &mut Player) {
    let mode = player.dice.pick(&[Mode::Abort, Mode::Retract, Mode::InPlace, Mode::Drain]);
    let limit = SPEED * Duration::from_millis(player.dice.roll(40));
    note(format_args!("pause {mode:?} within {limit:?}"));
    let Ok(paused) = player.world.pauses.pause(mode, limit) else { return };
    if let Some(receipt) = paused.receipt() {
        check(&player.world, receipt);
    }
    thread::sleep(Duration::from_millis(player.dice.roll(3)));
    check_some(player);
    let resumed = paused
        .resume(Resume { empty_cache: player.dice.one_in(2), collect: player.dice.one_in(2) });
    if let Some(receipt) = &resumed.receipt {
        check(&player.world, receipt);
    }
}

/// One tick of the idle policy.
pub(crate) fn tick(world: &World) {
    note("tick");
    let _sleeping = world.sleeping();
    if let Tick::Released(receipt) = world.idling.tick() {
        check(world, &receipt);
    }
}

/// Returns why a pool did not wake: nothing else has to come back here.
fn woken(error: lowtide_release::RestoreError) -> lowtide_pool::Error {
    match error {
        lowtide_release::RestoreError::Wake(error) => error,
        error => fail(format!("work: {error}")),
    }
}
