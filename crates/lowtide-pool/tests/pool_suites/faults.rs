//! Faults at the driver: whatever fails, the pool stays whole and nothing is lost.

use std::collections::BTreeMap;

use crate::game::{Game, Ground};
use crate::hands::Hands;
use lowtide_device::{Address, Bytes, Device};
use lowtide_pool::{AheadNext, Limit, Phase, Policy, Pool, Scope, SleepPolicy, StreamId, Tag};
use lowtide_testing::double::{Double, REFUSABLE, REFUSALS};
use lowtide_testing::is_long_run;
use lowtide_testing::noise::{close, noise};
use lowtide_testing::suite::{Case, Target};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("a_random_player_meets_faults", a_random_player_meets_faults),
        Case::new("every_call_of_a_sleep_fails_once", |_| every_call_fails_once(Turn::Sleep)),
        Case::new("every_call_of_a_bounded_sleep_fails_once", |_| {
            every_call_fails_once(Turn::BoundedSleep);
        }),
        Case::new("every_call_of_a_wake_fails_once", |_| every_call_fails_once(Turn::Wake)),
        Case::new(
            "every_call_of_a_backup_ahead_fails_once",
            every_call_of_a_backup_ahead_fails_once,
        ),
        Case::new(
            "a_first_sleep_after_backups_ahead_makes_nothing_anew",
            a_first_sleep_after_backups_ahead_makes_nothing_anew,
        ),
        Case::new(
            "a_large_chunk_that_the_driver_keeps_is_used_all_the_same",
            a_large_chunk_that_the_driver_keeps,
        ),
        Case::new("a_call_that_fails_for_ever_loses_nothing", a_call_that_fails_for_ever),
        Case::new("backups_are_registered_up_to_the_limit", backups_are_registered_up_to_the_limit),
        Case::new("a_refused_registration_fails_no_sleep", a_refused_registration_fails_no_sleep),
        Case::new(
            "memory_that_could_neither_be_opened_nor_unmapped_goes_back_later",
            memory_that_could_neither_be_opened_nor_unmapped_goes_back_later,
        ),
    ]
}

fn a_random_player_meets_faults(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let device = Device::cuda(0).unwrap();
    let base = device.usage().unwrap().in_use();
    let mut game = Game::new(&device, 7, true, Ground::Device);
    for turn in 0..3_000 {
        if turn % 5 == 0 {
            let (call, code) = (game.dice.pick(&REFUSABLE), game.dice.pick(&REFUSALS));
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
    /// With a limit, so that what may be lost is held until everything is saved.
    BoundedSleep,
    Wake,
}

impl Turn {
    fn take(self, pool: &Pool) -> lowtide_pool::Result<()> {
        match self {
            Turn::Sleep => pool.sleep(Scope::Whole).map(drop),
            Turn::BoundedSleep => pool.sleep_quiet(Scope::Whole, Limit::new(&|| true)).map(drop),
            Turn::Wake => pool.wake(Scope::Whole).map(drop),
        }
    }
}

/// What is kept in a [`World`]: whole pages of 100 kB, and of 3 and 3 MiB beside each other. Every byte is
/// written, digested, copied and compared many times for each fault, so there are few of them.
const KEPT: Bytes = Bytes::mib(8);
/// A part of that.
const DIRECT: Bytes = Bytes::mib(4);

/// No backups, some of them and all of them are registered with the device; either for as long as
/// they are kept, or anew in every sleep, which then makes all calls that a first one makes. Its chunks
/// are looked at one after the other before they leave, those of the others together.
fn policies() -> [Policy; 3] {
    let policy = |direct_backups, keep_backups| {
        Policy::default().direct_backups(direct_backups).keep_backups(keep_backups)
    };
    let one_by_one =
        policy(DIRECT, false).numbers(|numbers| numbers.checked_at_once = Bytes::mib(2));
    [policy(Bytes::ZERO, true), one_by_one, policy(Bytes(u64::MAX), true)]
}

// All of them with backups that are kept, and with backups that are not.
fn all_policies() -> impl Iterator<Item = Policy> {
    let both = |policy: Policy| [true, false].map(|keep_backups| policy.keep_backups(keep_backups));
    policies().into_iter().flat_map(both)
}

// In what they differ.
fn short(Policy { direct_backups, keep_backups, packing, .. }: &Policy) -> String {
    format!("direct_backups: {direct_backups}, keep_backups: {keep_backups}, packing: {packing}")
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
    fn new(policy: Policy) -> World {
        let device = Device::cuda(0).unwrap();
        let hands = Hands::new(&device);
        let pool = Pool::builder(&device).policy(policy).build().unwrap();
        let kept = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let lost = pool.tag("cache", SleepPolicy::Discard).unwrap();
        let base = device.usage().unwrap().in_use();
        let sizes = [(3 << 20, kept), (100_000, kept), (1 << 20, lost), (3 << 20, kept)];
        let blocks = sizes.map(|(size, tag)| {
            let address = pool.alloc(Bytes(size), StreamId(0), tag).unwrap();
            (address, vec![0; size as usize], tag == lost)
        });
        World { device, base, pool, hands, kept, blocks: blocks.into() }
    }

    // New content everywhere, so that the next sleep has something to do.
    fn fill(&mut self, seed: u64) {
        for (index, (address, bytes, _)) in self.blocks.iter_mut().enumerate() {
            // All but one have pages that pack.
            let fresh = noise(seed * 100 + index as u64, bytes.len());
            *bytes = if index == 1 { fresh } else { close(fresh) };
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
    let packing = policies()[1].packing(true).numbers(|numbers| numbers.compare_each = 1);
    let policies = policies().into_iter().chain([packing]).enumerate();
    // One of them is enough for the part in which a bounded sleep differs.
    let skipped = if turn == Turn::BoundedSleep { 2 } else { 0 };
    let refused: u32 = policies
        .skip(skipped)
        .map(|(index, policy)| every_call_fails_once_with(*double, turn, policy, index))
        .sum();
    // Which calls fail depends on how often a stream was asked. The first of each kind fails with one policy at least.
    assert!(refused > 0, "no failure was ever told");
}

/// The failures to try with the policy of this index, by call and number: one in so many, others with each
/// policy; the first of each kind of call with one in [`FIRSTS`] policies; all of them in a long run.
fn tried(calls: &BTreeMap<String, u64>, index: usize, one_in: usize) -> Vec<(&str, u64)> {
    let is_tried = |number: usize, kind: usize, nth: u64| {
        (number + index).is_multiple_of(one_in)
            || nth == 1 && (kind + index).is_multiple_of(FIRSTS)
            || is_long_run()
    };
    let failures = calls
        .iter()
        .enumerate()
        .flat_map(|(kind, (name, count))| (1..=*count).map(move |nth| (kind, name.as_str(), nth)));
    let tried =
        (1..).zip(failures).filter(|(number, (kind, _, nth))| is_tried(*number, *kind, *nth));
    tried.map(|(_, (_, name, nth))| (name, nth)).collect()
}

/// Every turn is tried with two policies or more that follow each other, so that every kind of call fails with
/// one of them.
const FIRSTS: usize = 2;

// Returns how many failures the turn has told.
fn every_call_fails_once_with(double: Double, turn: Turn, policy: Policy, index: usize) -> u32 {
    let mut world = World::new(policy);
    world.before(turn, 1);
    double.reset_calls();
    turn.take(&world.pool).unwrap();
    let calls: BTreeMap<String, u64> = double.calls().into_iter().collect();
    assert!(calls.len() > 8, "a {turn:?} makes many kinds of calls: {calls:?}");
    let mut refused = 0;
    // The double packs slowly.
    let one_in = if policy.packing { 21 } else { 7 };
    for (seed, (name, nth)) in (2..).zip(tried(&calls, index, one_in)) {
        let code = REFUSALS[usize::from(seed % 2 == 0)];
        world.before(turn, seed);
        let before = world.device.usage().unwrap().in_use();
        double.fail_nth(name, nth, code);
        let outcome = turn.take(&world.pool);
        double.clear_faults();
        let after =
            format!("{name} number {nth} of a {turn:?} failed with {code}, {}", short(&policy));
        let phase = world.pool.phase(world.kept).unwrap();
        if let Err(error) = &outcome {
            refused += 1;
            let as_before = if turn == Turn::Wake { Phase::Asleep } else { Phase::Awake };
            assert_eq!(phase, as_before, "{after}: {error}");
            if turn == Turn::Wake {
                // Gives back what was refused meanwhile.
                drop(world.device.reserve(Bytes::mib(2)).unwrap());
                let left = world.device.usage().unwrap().in_use();
                assert_eq!(left, before, "{after}: what was mapped is taken back");
            }
        }
        if phase == Phase::Awake {
            world.check(turn != Turn::Wake && outcome.is_err(), &after);
        }
        turn.take(&world.pool).unwrap_or_else(|error| panic!("a second try, {after}: {error}"));
        world.pool.check();
        world.pool.wake(Scope::Whole).unwrap();
        world.check(false, &after);
    }
    // Gives back what was refused meanwhile, so that the numbers can be compared.
    drop(world.device.reserve(Bytes::mib(2)).unwrap());
    world.pool.sleep(Scope::Whole).unwrap();
    assert!(world.device.usage().unwrap().in_use() <= world.base + Bytes::mib(4), "nothing stays");
    refused
}

// Steps until nothing is left or one is refused.
fn back_up(pool: &Pool) -> lowtide_pool::Result<()> {
    while pool.back_up_some(Bytes::mib(8))?.next == AheadNext::More {}
    Ok(())
}

fn every_call_of_a_backup_ahead_fails_once(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let packing = policies()[1].packing(true).numbers(|numbers| numbers.compare_each = 1);
    for (index, policy) in [policies()[0], policies()[1], packing].into_iter().enumerate() {
        let mut world = World::new(policy.ahead_most(Bytes::gib(1)));
        let begin = |world: &mut World, seed| {
            world.fill(seed);
            // Backups that are not kept go with a wake: then a step makes all calls of a first one.
            if policy.keep_backups {
                return;
            }
            world.pool.sleep(Scope::Whole).unwrap();
            world.pool.wake(Scope::Whole).unwrap();
        };
        begin(&mut world, 1);
        double.reset_calls();
        back_up(&world.pool).unwrap();
        let calls: BTreeMap<String, u64> = double.calls().into_iter().collect();
        assert!(calls.contains_key("cuMemcpyDtoDAsync_v2"), "{calls:?}");
        let one_in = if policy.packing { 42 } else { 14 };
        let mut refused = 0;
        for (seed, (name, nth)) in (2..).zip(tried(&calls, index, one_in)) {
            let code = REFUSALS[usize::from(seed % 2 == 0)];
            begin(&mut world, seed);
            double.fail_nth(name, nth, code);
            let outcome = back_up(&world.pool);
            double.clear_faults();
            refused += u32::from(outcome.is_err());
            let after = format!("{name} number {nth} failed with {code}, {}", short(&policy));
            world.check(false, &after);
            back_up(&world.pool).unwrap_or_else(|error| panic!("a second try, {after}: {error}"));
            // Gives back what was refused meanwhile.
            drop(world.device.reserve(Bytes::mib(2)).unwrap());
            let in_use = world.device.usage().unwrap().in_use() - world.pool.counts().physical;
            assert!(in_use <= world.base + Bytes::mib(4), "{after}: {in_use}");
            let slept = world.pool.sleep(Scope::Whole).unwrap();
            assert_eq!(slept.copied, Bytes::ZERO, "{after}");
            world.pool.wake(Scope::Whole).unwrap();
            world.check(false, &after);
        }
        assert!(refused > 0, "no failure was ever told");
    }
}

// Streams and kernels are made with the backups, so that a first sleep does not wait for them.
fn a_first_sleep_after_backups_ahead_makes_nothing_anew(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    for packing in [false, true] {
        let policy = policies()[0].packing(packing).ahead_most(Bytes::gib(1));
        let mut world = World::new(policy);
        world.fill(1);
        back_up(&world.pool).unwrap();
        double.reset_calls();
        world.pool.sleep(Scope::Whole).unwrap();
        let calls: BTreeMap<String, u64> = double.calls().into_iter().collect();
        assert!(calls.contains_key("cuMemUnmap"), "{calls:?}");
        for call in ["cuStreamCreate", "cuModuleLoadData"] {
            assert!(!calls.contains_key(call), "packing: {packing}, {call}: {calls:?}");
        }
        world.pool.wake(Scope::Whole).unwrap();
        world.check(false, "a first sleep");
    }
}

// Where another block would get a part of a large chunk, it goes back first; unless the driver refuses.
fn a_large_chunk_that_the_driver_keeps(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let pool = Pool::builder(&Device::cuda(0).unwrap()).build().unwrap();
    let alloc = |size| pool.alloc(Bytes::mib(size), StreamId(0), Tag::default()).unwrap();
    let large = alloc(32);
    pool.free(large, StreamId(0)).unwrap();
    double.fail_nth("cuMemUnmap", 1, REFUSALS[0]);
    let small = alloc(6);
    assert_eq!((small, pool.counts().physical), (large, Bytes::mib(32)));
    pool.check();
    pool.free(small, StreamId(0)).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.counts().physical, Bytes::ZERO);
    double.clear_faults();
}

// A call that fails again and again, until it is cured: then the turn succeeds.
fn a_call_that_fails_for_ever(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let packing = policies()[0].packing(true).numbers(|numbers| numbers.compare_each = 1);
    for (index, policy) in all_policies().chain([packing]).enumerate() {
        // Each kind of sleep with backups of each kind, some of which are kept.
        let is_bounded = (index + index / 2) % 2 == 1;
        let sleep = if is_bounded { Turn::BoundedSleep } else { Turn::Sleep };
        every_call_fails_for_ever(*double, policy, sleep, index);
    }
}

fn every_call_fails_for_ever(double: Double, policy: Policy, sleep: Turn, index: usize) {
    let mut world = World::new(policy);
    // A third of them, others with each policy.
    let is_tried = |number: u64| is_long_run() || (number + index as u64).is_multiple_of(3);
    for (seed, call) in (1..).zip(REFUSABLE).filter(|(number, _)| is_tried(*number)) {
        for turn in [sleep, Turn::Wake] {
            world.before(turn, seed);
            double.fail_always(call, 999);
            let outcome = turn.take(&world.pool);
            double.clear_faults();
            world.pool.check();
            let short = short(&policy);
            let after = format!("{call} failed for ever in a {turn:?}, {short}: {outcome:?}");
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

// How many registrations there are more than before.
fn registered(double: Double, before: usize) -> usize {
    double.live().registrations - before
}

fn backups_are_registered_up_to_the_limit(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    for policy in all_policies() {
        let mut world = World::new(policy);
        let before = double.live().registrations;
        for seed in 1..3 {
            world.fill(seed);
            world.pool.sleep(Scope::Whole).unwrap();
            let asleep = registered(*double, before);
            // A slab of what may be, and slots for the rest; with no rest, no slots.
            match policy.direct_backups {
                Bytes::ZERO => assert!((1..=8).contains(&asleep), "slots: {asleep}"),
                some if some < KEPT => assert!((2..=9).contains(&asleep), "and a slab: {asleep}"),
                _ => assert!((1..=2).contains(&asleep), "a slab of each form: {asleep}"),
            }
            assert_eq!(world.pool.counts().host, KEPT);
            world.pool.wake(Scope::Whole).unwrap();
            world.check(false, "a wake");
            if policy.keep_backups {
                assert!(registered(*double, before) >= asleep, "they are kept");
            } else {
                assert_eq!(registered(*double, before), 0, "what goes is unregistered");
            }
        }
        drop(world.pool);
        assert_eq!(registered(*double, before), 0, "{}", short(&policy));
    }
}

fn a_refused_registration_fails_no_sleep(_: Target) {
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    for direct_backups in [DIRECT, Bytes(u64::MAX)] {
        let mut world = World::new(Policy::default().direct_backups(direct_backups));
        let before = double.live().registrations;
        for (seed, code) in [(1, 2), (2, 999)] {
            world.fill(seed);
            // The first that a sleep makes is for backups; slots come when they are needed.
            double.fail_nth("cuMemHostRegister_v2", 1, code);
            let slept = world.pool.sleep(Scope::Whole).unwrap();
            double.clear_faults();
            assert_eq!((slept.copied, world.pool.counts().host), (KEPT, KEPT));
            assert!((1..=8).contains(&registered(*double, before)), "nothing but slots");
            world.pool.wake(Scope::Whole).unwrap();
            world.check(false, "a registration was refused");
            // Without blocks there are no backups: the next sleep wants new ones.
            drop(world);
            world = World::new(Policy::default().direct_backups(direct_backups));
        }
    }
}

// Found by the storm: such memory stayed mapped for good where the tag never sleeps.
fn memory_that_could_neither_be_opened_nor_unmapped_goes_back_later(_: Target) {
    let double = Double::take();
    double.configure("total=64MiB,context=16MiB,reserved=0MiB");
    let device = Device::cuda(0).unwrap();
    let base = device.usage().unwrap().in_use();
    for policy in [SleepPolicy::Keep, SleepPolicy::Offload] {
        let pool = Pool::new(&device).unwrap();
        let tag = pool.tag("weights", policy).unwrap();
        let stick = || {
            double.fail_nth("cuMemSetAccess", 1, 999);
            double.fail_nth("cuMemUnmap", 1, 999);
            let refused = pool.alloc(Bytes::mib(9), StreamId(0), tag).unwrap_err();
            double.clear_faults();
            assert!(refused.to_string().contains("cuMemSetAccess"), "{refused}");
            pool.check();
            assert!(device.usage().unwrap().in_use() > base, "{policy:?}: it is stuck");
        };
        stick();
        double.fail_nth("cuMemUnmap", 1, 999);
        pool.trim(Bytes::ZERO).unwrap_err();
        pool.check();
        pool.trim(Bytes::ZERO).unwrap();
        pool.check();
        assert_eq!(device.usage().unwrap().in_use(), base, "{policy:?}: a trim takes it");
        stick();
        // Nobody trims, but an allocation needs the room.
        let whole = pool.alloc(Bytes::mib(48), StreamId(0), tag).unwrap();
        pool.check();
        pool.free(whole, StreamId(0)).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        stick();
        pool.sleep(Scope::Whole).unwrap();
        pool.wake(Scope::Whole).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        pool.check();
        assert_eq!(device.usage().unwrap().in_use(), base, "{policy:?}: nothing stays");
    }
}
