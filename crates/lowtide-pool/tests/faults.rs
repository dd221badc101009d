//! Faults at the driver: whatever fails, the pool stays whole and nothing is lost.

mod dice;
mod game;
mod hands;

use std::collections::BTreeMap;
use std::process::ExitCode;

use game::{Game, Ground};
use hands::{Hands, noise};
use lowtide_device::{Address, Bytes, Device};
use lowtide_pool::{Phase, Policy, Pool, Scope, SleepPolicy, StreamId, Tag};
use lowtide_testing::double::Double;
use lowtide_testing::suite::{self, Case, Target};

fn main() -> ExitCode {
    let cases = vec![
        Case::new("a_random_player_meets_faults", a_random_player_meets_faults),
        Case::new("every_call_of_a_sleep_fails_once", |_| every_call_fails_once(Turn::Sleep)),
        Case::new("every_call_of_a_wake_fails_once", |_| every_call_fails_once(Turn::Wake)),
        Case::new("a_call_that_fails_for_ever_loses_nothing", a_call_that_fails_for_ever),
    ];
    suite::main("pool_faults", Target::Double, cases)
}

fn a_random_player_meets_faults(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let device = Device::cuda(0).unwrap();
    let base = device.usage().unwrap().in_use();
    let mut game = Game::new(&device, 7, true, Ground::Device);
    for turn in 0..3_000 {
        if turn % 5 == 0 {
            let calls = [
                "cuMemCreate",
                "cuMemMap",
                "cuMemSetAccess",
                "cuMemUnmap",
                "cuMemRelease",
                "cuMemcpyDtoHAsync_v2",
                "cuMemcpyHtoDAsync_v2",
                "cuEventSynchronize",
                "cuLaunchKernel",
                "cuCtxSynchronize",
            ];
            let code = [2, 999][game.dice.roll(2) as usize];
            let call = calls[game.dice.roll(calls.len() as u64) as usize];
            double.fail_nth(call, 1 + game.dice.roll(3), code);
        }
        game.step(24, 12 << 20);
        double.clear_faults();
        game.check();
        // Gives back what was refused meanwhile, so that the numbers can be compared.
        drop(device.reserve(Bytes::mib(2)).unwrap());
        game.check_device(base);
    }
    assert!(game.slept > 0, "nothing ever slept");
    game.finish(base);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Sleep,
    Wake,
}

impl Turn {
    fn take(self, pool: &Pool) -> lowtide_pool::Result<()> {
        match self {
            Turn::Sleep => pool.sleep(Scope::Whole).map(drop),
            Turn::Wake => pool.wake(Scope::Whole).map(drop),
        }
    }
}

/// A pool with content that is known.
struct World {
    device: Device,
    base: Bytes,
    pool: Pool,
    hands: Hands,
    kept: Tag,
    /// Address, content, and whether it may be lost.
    blocks: Vec<(Address, Vec<u8>, bool)>,
}

impl World {
    fn new() -> World {
        let device = Device::cuda(0).unwrap();
        let hands = Hands::new(&device);
        let pool = Pool::new(&device, Policy::default(), None).unwrap();
        let kept = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let lost = pool.tag("cache", SleepPolicy::Discard).unwrap();
        let base = device.usage().unwrap().in_use();
        let sizes = [(5 << 20, kept), (100_000, kept), (3 << 20, lost), (7 << 20, kept)];
        let blocks = sizes.map(|(size, tag)| {
            let address = pool.alloc(Bytes(size), StreamId(0), tag).unwrap();
            (address, vec![0; size as usize], tag == lost)
        });
        World { device, base, pool, hands, kept, blocks: blocks.into() }
    }

    // New content everywhere, so that the next sleep has something to do.
    fn fill(&mut self, seed: u64) {
        for (index, (address, bytes, _)) in self.blocks.iter_mut().enumerate() {
            *bytes = noise(seed * 100 + index as u64, bytes.len());
            self.hands.write(&self.pool, *address, 0, bytes);
        }
    }

    fn check(&self, lost_too: bool, after: &str) {
        self.pool.check();
        for (address, bytes, may_be_lost) in &self.blocks {
            if *may_be_lost && !lost_too {
                continue;
            }
            let found = self.hands.read(&self.pool, *address, 0, bytes.len());
            assert!(found == *bytes, "{address:?} changed after {after}");
        }
    }

    // Into the state that the turn begins with.
    fn before(&mut self, turn: Turn, seed: u64) {
        self.pool.wake(Scope::Whole).unwrap();
        self.fill(seed);
        if turn == Turn::Wake {
            self.pool.sleep(Scope::Whole).unwrap();
        }
    }
}

fn every_call_fails_once(turn: Turn) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let mut world = World::new();
    world.before(turn, 1);
    double.reset_calls();
    turn.take(&world.pool).unwrap();
    let calls: BTreeMap<String, u64> = double.calls().into_iter().collect();
    assert!(calls.len() > 8, "a {turn:?} makes many kinds of calls: {calls:?}");
    let (mut seed, mut refused) = (1, 0);
    for (name, count) in calls {
        for nth in 1..=count {
            seed += 1;
            let code = [2, 999][usize::from(seed % 2 == 0)];
            world.before(turn, seed);
            double.fail_nth(&name, nth, code);
            let outcome = turn.take(&world.pool);
            double.clear_faults();
            let after = format!("{name} number {nth} of a {turn:?} failed with {code}");
            let phase = world.pool.phase(world.kept).unwrap();
            if let Err(error) = &outcome {
                refused += 1;
                let as_before = if turn == Turn::Sleep { Phase::Awake } else { Phase::Asleep };
                assert_eq!(phase, as_before, "{after}: {error}");
            }
            if phase == Phase::Awake {
                world.check(turn == Turn::Sleep && outcome.is_err(), &after);
            }
            turn.take(&world.pool).unwrap_or_else(|error| panic!("a second try, {after}: {error}"));
            world.pool.check();
            world.pool.wake(Scope::Whole).unwrap();
            world.check(false, &after);
        }
    }
    assert!(refused > 0, "no failure was ever told");
    // Gives back what was refused meanwhile, so that the numbers can be compared.
    drop(world.device.reserve(Bytes::mib(2)).unwrap());
    world.pool.sleep(Scope::Whole).unwrap();
    assert!(world.device.usage().unwrap().in_use() <= world.base + Bytes::mib(4), "nothing stays");
}

// A call that fails again and again, until it is cured: then the turn succeeds.
fn a_call_that_fails_for_ever(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let mut world = World::new();
    let calls = [
        "cuMemUnmap",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemCreate",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuEventSynchronize",
        "cuEventRecord",
        "cuLaunchKernel",
        "cuStreamSynchronize",
    ];
    for (seed, call) in (1..).zip(calls) {
        for turn in [Turn::Sleep, Turn::Wake] {
            world.before(turn, seed);
            double.fail_always(call, 999);
            let outcome = turn.take(&world.pool);
            double.clear_faults();
            world.pool.check();
            let after = format!("{call} failed for ever in a {turn:?}: {outcome:?}");
            println!("{after}");
            if world.pool.phase(world.kept).unwrap() == Phase::Awake {
                world.check(false, &after);
            }
            turn.take(&world.pool).unwrap_or_else(|error| panic!("a second try, {after}: {error}"));
            world.pool.wake(Scope::Whole).unwrap();
            world.check(false, &after);
        }
    }
}
