//! What is asked of a release: a ladder, a target, attempts, patience.

use std::sync::Arc;
use std::time::Duration;

use lowtide_device::Bytes;
use lowtide_release::{Ladder, Request, Rung, RungName, Target, WhenBusy, rungs};

use crate::journal::Watched;
use crate::plugs::Own;
use crate::world::{BUDGET, World};
use lowtide_testing::Dice;

pub(crate) struct Plan {
    pub(crate) ask: Request,
    pub(crate) names: Vec<String>,
    /// How long each may take.
    pub(crate) limits: Vec<Duration>,
    pub(crate) attempts: u32,
    /// Whether every rung of the ladder touches only what nobody has.
    pub(crate) lets_work_go_on: bool,
    /// Whether the gate stays shut to it.
    pub(crate) is_kept_out: bool,
}

impl Plan {
    pub(crate) fn roll(world: &mut World, dice: &mut Dice) -> Plan {
        let attempts = 1 + dice.roll(4) as u32;
        let mut ladder = standard_ladder(world, dice);
        for number in 0..dice.roll(3) {
            let rung = own(world, &format!("own{number}"), dice);
            ladder = ladder.then(rung);
        }
        let mut swapped = None;
        if dice.one_in(4) {
            // Somebody's own rung in the place of one that may be there.
            let name = dice.pick(&NAMES);
            let rung = own(world, name, dice);
            if dice.one_in(2) {
                ladder = ladder.replace(&name.into(), &rung);
                swapped = Some(name);
            } else {
                world.releaser.replace_rung(rung);
            }
        }
        let names: Vec<String> = ladder.names().iter().map(ToString::to_string).collect();
        let mut limits: Vec<Duration> = names.iter().map(|name| limit(name)).collect();
        if dice.one_in(3) && !names.is_empty() {
            let (at, limit) = (dice.index(names.len()), Duration::from_millis(dice.roll(8)));
            ladder = ladder.limit(&names[at].as_str().into(), limit);
            limits[at] = limit;
        }
        let when_busy = dice.pick(&[
            WhenBusy::Refuse,
            WhenBusy::Wait(Duration::from_secs(1)),
            WhenBusy::Wait(Duration::from_secs(60)),
        ]);
        let patience = match when_busy {
            WhenBusy::Refuse => Duration::ZERO,
            WhenBusy::Wait(limit) => limit,
        };
        let touches_nothing =
            |name: &String| matches!(name.as_str(), "collect" | "trim") && swapped != Some(name);
        let lets_work_go_on = names.iter().all(touches_nothing);
        let is_kept_out = world.crowd_the_gate(dice, patience) && !lets_work_go_on;
        let mut ask = Request::new("simulation", ladder.attempts(attempts));
        ask.when_busy = when_busy;
        ask.to = target(dice);
        ask.every_rung = dice.one_in(8);
        Plan { ask, names, limits, attempts, lets_work_go_on, is_kept_out }
    }
}

const NAMES: [&str; 12] = [
    "quiesce",
    "drop",
    "to_host",
    "sessions",
    "caches",
    "collect",
    "trim",
    "libraries",
    "fraction",
    "sleep",
    "context_reset",
    "fallback",
];

// The limits of the ladder's own rungs.
fn limit(name: &str) -> Duration {
    Duration::from_secs(if matches!(name, "sleep" | "fallback") { 600 } else { 60 })
}

fn watched(world: &World, rung: Arc<dyn Rung>, is_real: bool) -> Arc<dyn Rung> {
    Arc::new(Watched { rung, is_real, journal: Arc::clone(&world.props.journal) })
}

fn own(world: &mut World, name: &str, dice: &mut Dice) -> Arc<dyn Rung> {
    let parts: Vec<_> =
        (0..=dice.roll(2)).map(|part| world.doer(format!("{name}/{part}"), dice)).collect();
    watched(world, Arc::new(Own::new(name, Own::roll_expectation(dice), parts)), false)
}

fn standard_ladder(world: &World, dice: &mut Dice) -> Ladder {
    let ladder = match dice.roll(16) {
        0 => Ladder::whole(),
        1 | 2 => Ladder::idle(),
        3..7 => Ladder::shutdown(),
        7..10 => Ladder::cache(),
        _ => {
            // A sleep costs more than all else, and the ladders above have it.
            let rarely = |name: &str| matches!(name, "sleep" | "fallback");
            let mut names = NAMES.to_vec();
            names.retain(|name| dice.one_in(if rarely(name) { 4 } else { 2 }));
            if dice.one_in(4) {
                dice.shuffle(&mut names);
            }
            let names: Vec<RungName> = names.into_iter().map(RungName::from).collect();
            Ladder::of_names(&names).unwrap()
        }
    };
    ladder.names().into_iter().fold(ladder, |ladder, name| {
        ladder.replace(&name, &watched(world, rungs::of_name(&name).unwrap(), true))
    })
}

fn target(dice: &mut Dice) -> Option<Target> {
    let some = Bytes(dice.roll(16 << 20));
    match dice.roll(6) {
        0 | 1 => None,
        2 => Some(Target::Under(Bytes::ZERO)),
        3 => Some(Target::Under(some)),
        4 => Some(Target::Free(BUDGET.saturating_sub(some))),
        _ => Some(Target::Floor),
    }
}
