//! A child of the storm: one world after another until its time is over.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_testing::Dice;

use crate::arguments::ChildArguments;
use crate::player::{self, Player};
use crate::sabotage::Sabotage;
use crate::trail::{self, Recorded, fail};
use crate::world::World;
use crate::{budget, deeds, figures, sabotage};

/// How often a child reports its figures, so that those of a child that is killed are known.
const REPORTS_EVERY: Duration = Duration::from_millis(100);

/// Plays worlds and prints the figures so far, one line of JSON after another.
pub(crate) fn run(arguments: &ChildArguments) -> ExitCode {
    trail::watch_panics(arguments.seed);
    sabotage::choose(arguments.sabotage);
    if let Some(home) = std::env::var_os("HOME")
        && let Err(error) = prepare(home.as_ref())
    {
        fail(format!("its folder cannot be used: {error}"));
    }
    let (seed, until, target) = (arguments.seed, Instant::now() + arguments.time, arguments.on);
    let worlds = thread::spawn(move || {
        let mut dice = Dice::new(seed);
        while Instant::now() < until {
            let (seed, time) = (dice.roll(1 << 40), Duration::from_millis(100 + dice.roll(900)));
            let threads = 2 + dice.roll(7);
            let left = until.saturating_duration_since(Instant::now());
            play(World::new(seed, target), seed, threads, time.min(left));
        }
    });
    while !worlds.is_finished() {
        thread::sleep(REPORTS_EVERY);
        trail::fail_if_one_hangs();
        report();
    }
    report();
    ExitCode::SUCCESS
}

fn prepare(home: &Path) -> std::io::Result<()> {
    if sabotage::is(Sabotage::File) {
        std::fs::write(home.join("left behind"), "")?;
    }
    if sabotage::is(Sabotage::Process) {
        std::process::Command::new("sleep").arg("30").spawn()?;
    }
    budget::pretend(home)
}

fn report() {
    let line = figures::with(|figures| figures.to_json());
    // A supervisor that is gone needs no figures.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn play(world: Arc<World>, seed: u64, threads: u64, time: Duration) {
    deeds::plug(&world);
    let held = thread::scope(|scope| {
        let name = |number| format!("player {number}");
        let players: Vec<_> = (0..threads)
            .map(|number| {
                let player = Player::new(&world, seed ^ (number + 1) << 48);
                let named = thread::Builder::new().name(name(number));
                let spawned = named.spawn_scoped(scope, move || player.play(&name(number)));
                spawned.unwrap_or_else(|error| fail(error))
            })
            .collect();
        let idle = scope.spawn(|| player::tick(&world));
        thread::sleep(time);
        world.is_over.store(true, SeqCst);
        let held = players.into_iter().map(|player| player.join().unwrap_or_default());
        let held: Vec<_> = held.flatten().collect();
        let _ = idle.join();
        held
    });
    let _recorded = Recorded::new("the end of a world");
    while world.hooks.load(SeqCst) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    world.end(held);
    figures::with(|figures| figures.worlds += 1);
}
