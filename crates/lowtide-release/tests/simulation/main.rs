//! The ladder, simulated: ten thousand small worlds of real pages, in which owners, hooks, settings,
//! allocators, rungs, gauges and the driver fail, panic, hang, lie and come late, each world as its
//! seed says.
//!
//! After every release it is asked past lowtide what really happened: what the kernel has in use, who
//! still holds what, which code was called and how it ended, what is in the pages. The receipt must
//! say the same. `checks.rs` is the list.
//!
//! A failure prints its seed. `LOWTIDE_SEED=N` plays just that one and shows its receipts;
//! `LOWTIDE_SEEDS=N` plays so many; without it the first tenth of them runs, and all of them in a
//! long run (`LOWTIDE_LONG=1`):
//!
//! ```text
//! LOWTIDE_SEED=4711 cargo test -p lowtide-release --test simulation -- --nocapture
//! LOWTIDE_SEEDS=1000000 cargo test -p lowtide-release --test simulation -- --nocapture
//! ```
//!
//! A seed plays the same again, but for one thing: a sleep copies with threads, so that where a
//! driver's call fails in one, which page it was for may differ.

mod checks;
mod clock;
mod deeds;
mod gauge;
mod journal;
mod memory;
mod owners;
mod plan;
mod plugs;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use lowtide_release::{Receipt, RungOutcome, Settling};

use checks::Case;
use lowtide_testing::{Dice, share};
use plan::Plan;
use world::{Asked, World};

/// What came out, how often.
type Tally = BTreeMap<String, u64>;

const COMMAND: &str = "cargo test -p lowtide-release --test simulation";
const SEEDS: u64 = 10_000;
/// From so many on, everything has to have come out at least this often.
const ENOUGH_SEEDS: u64 = 5_000;
const LEAST: u64 = 20;
const EVERYTHING: [&str; 17] = [
    "released",
    "partial",
    "no-effect",
    "pinned",
    "busy",
    "unverified",
    "no-device",
    "failed",
    "rung done",
    "rung skipped",
    "rung failed",
    "rung panicked",
    "rung cut off",
    "rung goes on later",
    "number still falling",
    "call refused by the driver",
    "block came through a sleep",
];

#[test]
fn reported_bytes_are_the_devices_whatever_goes_wrong() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    if let Some(seed) = number("LOWTIDE_SEED") {
        println!("seed {seed}: {:#?}", play(seed, true));
        return;
    }
    let (seeds, began) = (number("LOWTIDE_SEEDS").unwrap_or(share(0..SEEDS).end), Instant::now());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    println!("seeds 0 to {}, on {threads} threads", seeds.saturating_sub(1));
    let tally = play_all(seeds, threads);
    println!("{:.1} s: {tally:#?}", began.elapsed().as_secs_f64());
    for name in EVERYTHING.iter().filter(|_| seeds >= ENOUGH_SEEDS) {
        let times = tally.get(*name).copied().unwrap_or(0);
        assert!(times >= LEAST, "{name} came out {times} times: this simulates too little");
    }
}

fn play_all(seeds: u64, threads: usize) -> Tally {
    let (next, tally, failed) = (AtomicU64::new(0), Mutex::new(Tally::new()), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Tally::new();
                while failed.load(SeqCst) == 0 {
                    let seed = next.fetch_add(1, SeqCst);
                    if seed >= seeds {
                        break;
                    }
                    let Ok(seen) = catch_unwind(AssertUnwindSafe(|| play(seed, false))) else {
                        failed.fetch_add(1, SeqCst);
                        eprintln!("seed {seed} failed; again: LOWTIDE_SEED={seed} {COMMAND}");
                        break;
                    };
                    add(&mut own, seen);
                }
                add(&mut tally.lock().unwrap(), own);
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "seeds failed; each is printed above");
    tally.into_inner().unwrap()
}

fn add(tally: &mut Tally, more: Tally) {
    for (name, times) in more {
        note(tally, &name, times);
    }
}

/// One world, from its making to its end; its receipts are shown where that is wanted.
fn play(seed: u64, show: bool) -> Tally {
    let mut dice = Dice::new(seed);
    let mut world = World::new(&mut dice);
    let mut tally = Tally::new();
    for round in 0..=dice.roll(2) {
        if round > 0 {
            world.live_on(&mut dice);
        }
        release(&mut world, &mut dice, show, &mut tally);
        world.go_on();
    }
    note(&mut tally, "block came through a sleep", world.end());
    tally
}

fn release(world: &mut World, dice: &mut Dice, show: bool, tally: &mut Tally) {
    let plan = Plan::roll(world, dice);
    let props = Arc::clone(&world.props);
    if dice.one_in(8) {
        let pauses = dice.pick(&[0, 1, 5, 1_000_000]);
        props.clock.leave(dice.roll(6), pauses);
    }
    if dice.one_in(4) {
        world.faults.arm(dice);
    }
    if let Asked::Gauge(gauge) = &world.asked {
        gauge.catch_up();
    }
    props.journal.notes().visits.clear();
    let (before, struck) = (world.facts(), world.faults.struck());
    props.in_release.store(true, SeqCst);
    let receipt = world.releaser.release(plan.ask.clone());
    props.in_release.store(false, SeqCst);
    if show {
        println!("{}", receipt.detailed());
    }
    world.faults.disarm();
    let (after, visits) = (world.facts(), props.journal.notes().visits.clone());
    let refused = world.faults.struck() - struck;
    let was_deaf = match &world.asked {
        Asked::Gauge(gauge) => gauge.refused() > 0,
        _ => refused > 0,
    };
    note(tally, "call refused by the driver", refused);
    let go_on = visits.iter().filter(|visit| visit.goes_on).count();
    note(tally, "rung goes on later", go_on as u64);
    let case = Case {
        world,
        plan: &plan,
        before: &before,
        after: &after,
        receipt: &receipt,
        visits: &visits,
        was_deaf,
    };
    case.check();
    count(tally, &receipt);
}

fn count(tally: &mut Tally, receipt: &Receipt) {
    note(tally, &receipt.verdict.to_string(), 1);
    for rung in &receipt.rungs {
        let name = match rung.outcome {
            RungOutcome::Done => "rung done",
            RungOutcome::Skipped { .. } => "rung skipped",
            RungOutcome::Failed { .. } => "rung failed",
            RungOutcome::Panicked { .. } => "rung panicked",
            RungOutcome::CutOff { .. } => "rung cut off",
        };
        note(tally, name, 1);
        note(tally, "number still falling", u64::from(rung.settling == Settling::Falling));
    }
}

fn note(tally: &mut Tally, name: &str, times: u64) {
    if times > 0 {
        *tally.entry(name.to_owned()).or_default() += times;
    }
}
