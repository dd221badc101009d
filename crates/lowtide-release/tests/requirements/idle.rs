//! R25, R26, R30, R33: free on idle.

use std::sync::Arc;
use std::time::Duration;

use lowtide_device::Bytes;
use lowtide_pool::{Phase, SleepPolicy, Tag};
use lowtide_release::{
    Decision, HookPoint, Idle, IdleOptions, Idling, Ladder, Receipt, Releaser, Request, RungName,
    RungReceipt, Target, Tick, Verdict, rungs,
};
use lowtide_testing::suite;

use super::ground::{Ground, Hands};
use super::pieces::{Framework, Log, Store};
use super::proofs;

proofs! {
    r25_one_switch_turns_it_on_and_off_changes_nothing needs ["trim"];
    r26_it_needs_all_four_conditions needs ["sleep"];
    r26_memory_of_a_framework_alone_is_something needs ["trim"];
    r30_stronger_steps_only_while_the_target_is_missed needs ["trim", "sleep"];
    r30_several_attempts_until_the_target_is_met needs ["caches"];
    r33_an_idle_process_reaches_fifty_mb_or_says_what_would needs ["trim", "sleep"];
}

const QUIET: Duration = Duration::from_secs(300);

fn policy(ground: &Ground, text: &str) -> Idle {
    Idle::new(text.parse().unwrap(), Arc::new(ground.clock.clone()))
}

fn released(tick: Tick) -> Receipt {
    match tick {
        Tick::Released(receipt) => receipt,
        Tick::No(decision) => panic!("it was time: {decision:?}"),
    }
}

/// The rung of this name in the first attempt.
fn first<'a>(receipt: &'a Receipt, name: &str) -> Option<&'a RungReceipt> {
    receipt.rungs.iter().find(|rung| rung.rung == name)
}

fn r25_one_switch_turns_it_on_and_off_changes_nothing(ground: &Ground) {
    for (said, is_on) in [(None, false), (Some("off"), false), (Some("5m"), true)] {
        let variable =
            |name: &str| said.filter(|_| name == "LOWTIDE_FREE_ON_IDLE").map(str::to_owned);
        let options = IdleOptions::from_env(variable).unwrap();
        let idle = Idle::new(options, Arc::new(ground.clock.clone()));
        let idling = Idling::new(&ground.releaser, &idle);
        drop(idling.work().unwrap());
        drop(ground.block(24));
        ground.clock.advance(QUIET);
        let tick = idling.tick();
        if is_on {
            let receipt = released(tick);
            ground.assert_in_use(0, "switched on");
            // A standard step was enough, so nothing stronger was done.
            assert!(receipt.rung("sleep").is_none(), "{receipt}");
            assert_eq!(ground.pool.phase(Tag::default()).unwrap(), Phase::Awake);
        } else {
            assert!(matches!(tick, Tick::No(Decision::Off)), "{tick:?}");
            ground.assert_in_use(24, "switched off");
        }
    }
}

fn r26_it_needs_all_four_conditions(ground: &Ground) {
    let weights = ground.block(24);
    let off = Idling::new(&ground.releaser, &policy(ground, "off"));
    drop(off.work().unwrap());
    ground.clock.advance(QUIET);
    assert!(matches!(off.tick(), Tick::No(Decision::Off)));

    let idling = Idling::new(&ground.releaser, &policy(ground, "5m"));
    assert!(matches!(idling.tick(), Tick::No(Decision::NothingRan)), "no task has finished");
    let other = idling.work().unwrap();
    drop(idling.work().unwrap());
    ground.clock.advance(QUIET);
    assert!(matches!(idling.tick(), Tick::No(Decision::Active { count: 1 })), "another is active");
    drop(other);
    assert!(matches!(idling.tick(), Tick::No(Decision::Wait { .. })), "it has only just finished");
    ground.assert_in_use(24, "so far nothing was touched");

    ground.clock.advance(QUIET);
    let receipt = released(idling.tick());
    ground.assert_in_use(0, "now everything is given");
    assert_eq!(receipt.verdict, Verdict::Released);
    assert!(receipt.rung("fallback").is_none(), "{receipt}");

    drop(weights);
    drop(idling.work().unwrap());
    ground.pool.trim(Bytes::ZERO).unwrap();
    // A task came back at once, so the policy has become more patient.
    ground.clock.advance(2 * QUIET);
    assert!(matches!(idling.tick(), Tick::No(Decision::NothingToUnload)), "nothing is there");
}

// No pool, and no floor that is known: what the framework's allocator holds is enough of a reason.
fn r26_memory_of_a_framework_alone_is_something(ground: &Ground) {
    let (device, clock) = (Arc::new(ground.device.clone()), Arc::new(ground.clock.clone()));
    let releaser: Releaser = ground.releaser_with(device, clock);
    let framework = Framework::new(ground, "framework");
    let _plugged = releaser.add_allocator(framework.clone());
    let idling = Idling::new(&releaser, &policy(ground, "5m"));
    drop(idling.work().unwrap());
    drop(framework.tensor(24));
    ground.clock.advance(QUIET);
    let receipt = released(idling.tick());
    ground.assert_in_use(0, "it was trimmed");
    let trimmed = first(&receipt, "trim").unwrap();
    ground.assert_same(trimmed.freed_bytes.unwrap(), 24, "trim");
    assert_eq!(receipt.verdict, Verdict::Unverified, "nobody knows the floor: nothing is claimed");
}

fn r30_stronger_steps_only_while_the_target_is_missed(ground: &Ground) {
    let (releaser, log) = (&ground.releaser, Log::default());
    let context = Store::new(ground, "context", 8);
    let _plugged = releaser.add_hook(HookPoint::ContextReset, context.hook(&log));
    releaser.set_disposable(true);
    let floor = releaser.inventory().floor().unwrap();
    let _weights = ground.block(40);
    drop(ground.block(24));
    let to = |mib| {
        let ask = Request::new("idle", Ladder::idle()).to(Target::Under(floor + Bytes::mib(mib)));
        releaser.release(ask)
    };
    let names = |receipt: &Receipt| -> Vec<RungName> {
        receipt.rungs.iter().map(|rung| rung.rung.clone()).collect()
    };
    let upto = |rung: RungName| {
        let mut names = Ladder::idle().names();
        names.truncate(1 + names.iter().position(|name| *name == rung).unwrap());
        names
    };
    let receipt = to(52);
    ground.assert_in_use(48, "what was cached was enough");
    assert_eq!((receipt.verdict, names(&receipt)), (Verdict::Released, upto(RungName::Trim)));
    let receipt = to(12);
    ground.assert_in_use(8, "the weights sleep");
    assert_eq!((receipt.verdict, names(&receipt)), (Verdict::Released, upto(RungName::Sleep)));
    assert_eq!(log.take(), [""; 0], "the context was not reset, though it might have been");
}

fn r30_several_attempts_until_the_target_is_met(ground: &Ground) {
    let (releaser, log) = (&ground.releaser, Log::default());
    // A cache that clears itself bit by bit.
    let cache = Store::new(ground, "cache", 16).and(ground, 16).and(ground, 16).and(ground, 16);
    let _plugged = releaser.add_hook(HookPoint::Caches, cache.hook(&log));
    let floor = releaser.inventory().floor().unwrap();
    let ladder = Ladder::of(vec![Arc::new(rungs::CACHES), Arc::new(rungs::Trim)]).attempts(5);
    let ask = Request::new("cache", ladder).to(Target::Under(floor + Bytes::mib(20)));
    let receipt = releaser.release(ask);
    ground.assert_in_use(16, "under the target");
    assert_eq!(receipt.verdict, Verdict::Released);
    assert_eq!(log.take(), ["cache"; 3], "no oftener than it took");
    assert_eq!(receipt.rungs.last().map(|rung| rung.attempt), Some(3));
}

fn r33_an_idle_process_reaches_fifty_mb_or_says_what_would(ground: &Ground) {
    // On a GPU as it is written; elsewhere at a scale that a test machine has memory for.
    let on_gpu = ground.target == suite::Target::Cuda;
    let scale = if on_gpu { 1 } else { 32 };
    let weights = ground.tagged("weights", SleepPolicy::Offload, 4096 / scale);
    let kv = ground.tagged("kv", SleepPolicy::Discard, 1536 / scale);
    drop(ground.tagged("workspace", SleepPolicy::Discard, 512 / scale));
    ground.assert_in_use(6144 / scale, "about 6 GB");
    let hands = Hands::new(ground);
    hands.write(&ground.pool, &weights, 33);

    let target = Target::Under(Bytes(50_000_000 / scale));
    let idling = Idling::new(&ground.releaser, &policy(ground, "5m")).to(target);
    drop(idling.work().unwrap());
    ground.clock.advance(QUIET);
    let receipt = released(idling.tick());
    // What the copies of so much have added to a context stays.
    let left = ground.in_use() - if on_gpu { 8 << 20 } else { 0 };
    assert!(left <= 0, "nothing of it is left on the device: {left}");
    let slept = first(&receipt, "sleep").unwrap().freed_bytes.unwrap();
    ground.assert_same(slept, (4096 + 1536) / scale, "sleep");
    let trimmed = first(&receipt, "trim").unwrap().freed_bytes.unwrap();
    ground.assert_same(trimmed, 512 / scale, "trim");
    if ground.target == suite::Target::Host {
        let in_use = ground.device.usage().unwrap().in_use();
        assert!(in_use <= Bytes(50_000_000 / scale), "{in_use}");
        assert_eq!(receipt.verdict, Verdict::Released);
    } else {
        // A bare context is larger; the ladder says what would go further.
        assert_eq!(receipt.verdict, Verdict::Partial);
        let further = "only a suspended or ended process frees it";
        assert!(receipt.advice.iter().any(|line| line.contains(further)), "{receipt}");
    }
    // The process lives, and the next task finds its weights.
    let task = idling.work().unwrap();
    hands.assert_is_whole(&ground.pool, &weights, 33);
    drop((task, kv));
}
