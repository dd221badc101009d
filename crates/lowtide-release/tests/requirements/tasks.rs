//! R11–R15: after inference, between tasks.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowtide_device::Bytes;
use lowtide_pool::{Fence, Pool, StreamId, Tag};
use lowtide_release::{Hook, HookPoint, Stages, Verdict};

use super::ground::Ground;
use super::pieces::{Framework, Log, Watched};
use super::proofs;

proofs! {
    r11_what_dies_in_the_second_collection_is_back_too needs ["collect", "trim"];
    r11_collections_go_on_until_nothing_more_comes_back needs ["collect"];
    r11_the_next_task_needs_no_collector_to_be_trimmed needs ["trim"];
    r12_every_task_leaves_the_device_as_it_was needs ["collect", "trim"];
    r13_frames_are_back_before_the_next_task_begins needs ["collect", "trim"];
    r13_frames_that_a_stream_still_reads_are_waited_for needs ["trim"];
    r14_what_an_allocator_holds_and_what_is_free_are_apart needs ["trim"];
    r15_the_share_of_cleaning_is_small_and_told needs ["trim"];
}

/// A host language's heap: what nobody refers to any more lives until a collection finds it.
#[derive(Clone, Default)]
struct Heap {
    garbage: Arc<Mutex<Vec<Garbage>>>,
}

/// The round of collections that finds it, and the thing.
type Garbage = (u32, Box<dyn Any + Send>);

impl Heap {
    /// Something that this round finds, and none before.
    fn lose(&self, round: u32, thing: impl Any + Send) {
        self.garbage.lock().unwrap().push((round, Box::new(thing)));
    }

    fn collector(&self, log: &Log) -> Hook {
        let (heap, log) = (self.clone(), log.clone());
        Hook::new("collector", move |call| {
            let round = call.round;
            log.note(format!("collect {round}"));
            let mut garbage = heap.garbage.lock().unwrap();
            let before = garbage.len();
            garbage.retain(|(found_in, _)| *found_in != round);
            let found = before - garbage.len();
            Ok((found > 0).then(|| format!("{found} objects").into()).into_iter().collect())
        })
    }
}

/// A framework that notes when it is trimmed, and is part of every release.
fn framework(ground: &Ground, log: &Log) -> Arc<Framework> {
    let log = log.clone();
    let framework = Framework::noting(ground, "framework", move || log.note("trim"));
    ground.releaser.add_allocator(framework.clone()).keep();
    framework
}

fn r11_what_dies_in_the_second_collection_is_back_too(ground: &Ground) {
    let (heap, log) = (Heap::default(), Log::default());
    let framework = framework(ground, &log);
    let _plugged = ground.releaser.add_hook(HookPoint::Collect, heap.collector(&log));
    heap.lose(1, framework.tensor(24));
    let receipt = ground.releaser.empty_cache();
    ground.assert_in_use(0, "the weights are dead");
    ground.assert_freed(&receipt, 24);
    let rounds = ["collect 0", "trim", "collect 1", "trim", "collect 2", "trim"];
    assert_eq!(
        log.take(),
        [&rounds[..], &["trim"]].concat(),
        "one after the other, then once more"
    );
}

fn r11_collections_go_on_until_nothing_more_comes_back(ground: &Ground) {
    let (heap, log) = (Heap::default(), Log::default());
    let framework = framework(ground, &log);
    let _plugged = ground.releaser.add_hook(HookPoint::Collect, heap.collector(&log));
    for round in 0..5 {
        heap.lose(round, framework.tensor(8));
    }
    let receipt = ground.releaser.empty_cache();
    ground.assert_in_use(0, "five rounds brought something");
    ground.assert_same(receipt.rung("collect").unwrap().freed_bytes.unwrap(), 40, "collect");
    let collected = log.take().iter().filter(|what| what.starts_with("collect")).count();
    assert_eq!(collected, 6, "the sixth brought nothing");
}

fn r11_the_next_task_needs_no_collector_to_be_trimmed(ground: &Ground) {
    drop(framework(ground, &Log::default()).tensor(24));
    let receipt = ground.releaser.empty_cache();
    ground.assert_in_use(0, "trimmed");
    let names: Vec<_> = receipt.rungs.iter().map(|rung| rung.rung.as_str()).collect();
    assert_eq!(names, ["collect", "trim"]);
}

fn r12_every_task_leaves_the_device_as_it_was(ground: &Ground) {
    let (heap, log) = (Heap::default(), Log::default());
    let (framework, stages) = (framework(ground, &log), Stages::new(&ground.releaser));
    // A task that ends gives back by itself what its library cached.
    let task = stages.load("captions", || Ok::<_, ()>(framework.tensor(16))).unwrap();
    drop(task);
    ground.assert_in_use(0, "captions");
    assert_eq!(log.take(), ["trim"]);
    // With a host language, what its collector finds too.
    let _plugged = ground.releaser.add_hook(HookPoint::Collect, heap.collector(&log));
    for name in ["questions", "documents"] {
        let task = stages.load(name, || Ok::<_, ()>(framework.tensor(16))).unwrap();
        heap.lose(0, framework.tensor(8));
        ground.assert_in_use(24, name);
        drop(task);
        ground.assert_in_use(0, name);
        assert_eq!(log.take().first().map(String::as_str), Some("collect 0"), "{name}");
    }
    let report = stages.report();
    assert!(report.stages.iter().all(|task| task.receipt.verdict == Verdict::Released));
}

fn r13_frames_are_back_before_the_next_task_begins(ground: &Ground) {
    let (heap, log) = (Heap::default(), Log::default());
    let (framework, stages) = (framework(ground, &log), Stages::new(&ground.releaser));
    let mut collector = None;
    for name in ["video", "images", "more video"] {
        let load = || {
            ground.assert_in_use(0, name);
            Ok::<_, ()>(framework.tensor(8))
        };
        let task = stages.load(name, load).unwrap();
        drop((framework.tensor(40), framework.tensor(24)));
        // The second task is of a language with a collector, and leaves its frames to it.
        if name == "images" {
            collector = Some(ground.releaser.add_hook(HookPoint::Collect, heap.collector(&log)));
            heap.lose(1, framework.tensor(16));
        }
        drop(task);
        stages.between(name);
    }
    drop(collector);
    ground.assert_in_use(0, "after the last");
}

/// Says that a stream is at work until the device has been waited for.
struct AtWork(Arc<AtomicBool>);

impl Fence for AtWork {
    fn has_passed(&self, _: StreamId) -> bool {
        self.0.load(SeqCst)
    }

    fn wait(&self, _: StreamId) -> lowtide_device::Result<()> {
        Ok(())
    }
}

fn r13_frames_that_a_stream_still_reads_are_waited_for(ground: &Ground) {
    let passed = Arc::new(AtomicBool::new(false));
    let fence = Arc::new(AtWork(Arc::clone(&passed)));
    let pool = Pool::builder(&ground.device).fence(fence).build().unwrap();
    let device = Watched::new(ground, move || passed.store(true, SeqCst));
    let releaser = ground.releaser_with(device, Arc::new(ground.clock.clone()));
    releaser.add_pool(&pool);
    drop(pool.block_on(Bytes::mib(24), StreamId(7), Tag::default()).unwrap());
    pool.trim(Bytes::ZERO).unwrap();
    ground.assert_in_use(24, "work in flight still uses them");
    Stages::new(&releaser).between("video");
    ground.assert_in_use(0, "its end was waited for");
}

fn r14_what_an_allocator_holds_and_what_is_free_are_apart(ground: &Ground) {
    let _live = ground.block(16);
    drop(ground.block(24));
    let free = ground.device.usage().unwrap().free;
    let receipt = ground.releaser.empty_cache();
    let (before, after) = (receipt.before, receipt.after);
    assert_eq!((before.allocated, before.reserved), (Bytes::mib(16), Bytes::mib(40)));
    assert_eq!((after.allocated, after.reserved), (Bytes::mib(16), Bytes::mib(16)));
    assert_eq!(before.free, Some(free), "and what the device has free is the device's to say");
    assert_eq!(after.free, Some(ground.device.usage().unwrap().free));
    let json = serde_json::to_value(&receipt).unwrap();
    for (key, bytes) in [("reserved_bytes", 40 << 20), ("driver_free_bytes", free.0)] {
        assert_eq!(json["before"][key], bytes, "{key} is a column of its own");
    }
}

fn r15_the_share_of_cleaning_is_small_and_told(ground: &Ground) {
    let clock = ground.clock.clone();
    let framework = Framework::noting(ground, "framework", move || {
        clock.advance(Duration::from_millis(100));
    });
    ground.releaser.add_allocator(framework.clone()).keep();
    let stages = Stages::new(&ground.releaser);
    for task in ["video", "images"] {
        drop(framework.tensor(24));
        ground.clock.advance(Duration::from_secs(10));
        stages.between(task);
        ground.assert_in_use(0, task);
    }
    let report = stages.report();
    // Two trims of 100 ms, and the moments in which the numbers settled.
    assert!((0.2..0.3).contains(&report.cleaning_s), "{report:?}");
    let whole = ground.clock.clone();
    let whole = lowtide_release::Clock::now(&whole).as_secs_f64();
    assert!((report.cleaning_share - report.cleaning_s / whole).abs() < 1e-9, "{report:?}");
    assert!(report.cleaning_share < 0.02, "{report:?}");
}
