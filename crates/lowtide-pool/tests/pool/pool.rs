//! What a pool does with blocks and tags, and what it tells of itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;

use lowtide_device::{Address, Bytes, Device};
use lowtide_pool::trace::{self, Event};
use lowtide_pool::{
    Error, Fence, Phase, Policy, Pool, PoolSnapshot, Scope, SleepPolicy, StreamId, Tag, replay,
};
use lowtide_testing::Dice;
use serde_json::Value;

use crate::game::grain;
use crate::written::host;

const STREAM: StreamId = StreamId(0);

fn books(total: Bytes) -> (Device, Pool) {
    let (device, _) = Device::dry_run(total);
    let pool = Pool::new(&device).unwrap();
    (device, pool)
}

fn in_use(device: &Device) -> Bytes {
    device.usage().unwrap().in_use()
}

/// Streams that are done when a function says so. It is called for a wait, too, which takes no time.
pub(crate) struct Says<F>(pub(crate) F);

impl<F: Fn() -> bool + Send + Sync> Fence for Says<F> {
    fn has_passed(&self, _stream: StreamId) -> bool {
        (self.0)()
    }

    fn wait(&self, _stream: StreamId) -> lowtide_device::Result<()> {
        (self.0)();
        Ok(())
    }
}

#[test]
fn a_block_frees_itself_unless_it_is_left_to_somebody_else() {
    let (_device, pool) = books(Bytes::mib(64));
    let block = pool.block(Bytes(700)).unwrap();
    assert_eq!((block.size(), block.stream()), (Bytes(700), STREAM));
    assert_eq!((pool.counts().blocks, pool.counts().live), (1, Bytes(768)));
    let address = block.address();
    drop(block);
    assert_eq!((pool.counts().blocks, pool.counts().live), (0, Bytes::ZERO));
    assert!(matches!(pool.free(address, STREAM), Err(Error::UnknownBlock { .. })));

    let left = pool.block(Bytes(700)).unwrap().into_address();
    assert_eq!(pool.counts().blocks, 1, "it is the caller's now");
    pool.free(left, STREAM).unwrap();
    assert_eq!(pool.counts().blocks, 0);
    pool.check();
}

#[test]
fn a_block_is_freed_on_the_stream_that_used_it_last() {
    let (device, _) = Device::dry_run(Bytes::mib(64));
    let pool = Pool::builder(&device).fence(Arc::new(Says(|| false))).build().unwrap();
    let (first, last) = (StreamId(1), StreamId(2));
    let mut block = pool.block_on(Bytes::mib(4), first, Tag::default()).unwrap();
    block.set_stream(last);
    assert_eq!(block.stream(), last);
    let address = block.address();
    drop(block);
    let other = pool.alloc(Bytes::mib(4), first, Tag::default()).unwrap();
    assert_ne!(other, address, "its last stream may still be using it");
    assert_eq!(pool.alloc(Bytes::mib(4), last, Tag::default()).unwrap(), address);
    pool.check();
}

#[test]
fn a_block_outlives_the_handle_of_its_pool() {
    let (device, pool) = books(Bytes::mib(64));
    let block = pool.block(Bytes::mib(4)).unwrap();
    drop(pool);
    assert_eq!(in_use(&device), Bytes::mib(4));
    drop(block);
    assert_eq!(in_use(&device), Bytes::ZERO, "the pool went with its last block");
}

#[test]
fn a_free_of_what_is_not_live_is_an_error() {
    let (_device, pool) = books(Bytes::mib(64));
    let small = pool.alloc(Bytes(5000), STREAM, Tag::default()).unwrap();
    let large = pool.alloc(Bytes::mib(3), STREAM, Tag::default()).unwrap();
    let before = pool.counts();
    let nobodys =
        [0, 512, u64::MAX, small.0 + 512, small.0 - 512, large.0 + 1, large.0 + (2 << 20)];
    for address in nobodys.map(Address) {
        let is_refused = |outcome: lowtide_pool::Result<()>| matches!(outcome, Err(Error::UnknownBlock { address: named }) if named == address);
        assert!(is_refused(pool.free(address, STREAM)), "{address:?} was freed");
        assert!(is_refused(pool.place_of(address).map(drop)), "{address:?} has a place");
    }
    assert_eq!(pool.counts(), before);
    for address in [small, large] {
        pool.free(address, STREAM).unwrap();
        for _ in 0..2 {
            let again = pool.free(address, STREAM).unwrap_err();
            assert!(
                matches!(again, Error::UnknownBlock { address: named } if named == address),
                "{again}"
            );
        }
        // Still so when it has gone from the shelf to the arena, and from there to the device.
        pool.trim(Bytes::ZERO).unwrap();
        assert!(matches!(pool.free(address, STREAM), Err(Error::UnknownBlock { .. })));
    }
    pool.check();
}

#[test]
fn a_tag_that_this_pool_does_not_have_is_an_error() {
    let (_device, pool) = books(Bytes::mib(64));
    let (_other_device, other) = books(Bytes::mib(64));
    let foreign = other.tag("foreign", SleepPolicy::Discard).unwrap();
    // The same number here, and another tag all the same.
    pool.tag("own", SleepPolicy::Keep).unwrap();
    let outcomes = [
        pool.alloc(Bytes(1), STREAM, foreign).map(drop),
        pool.block_tagged(Bytes(1), foreign).map(drop),
        pool.phase(foreign).map(drop),
        pool.sleep(Scope::Tags(&[Tag::default(), foreign])).map(drop),
        pool.wake(Scope::Tags(&[Tag::default(), foreign])).map(drop),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(Error::UnknownTag { tag }) if tag == foreign), "{outcome:?}");
    }
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake, "all or nothing");
    pool.check();
}

#[test]
fn a_name_has_one_tag_and_one_policy() {
    let (_device, pool) = books(Bytes::mib(64));
    assert_eq!(pool.tag("default", SleepPolicy::Offload).unwrap(), Tag::default());
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    assert_eq!(pool.tag("cache", SleepPolicy::Discard).unwrap(), cache);
    assert_ne!(pool.tag("Cache", SleepPolicy::Discard).unwrap(), cache);
    for wanted in [SleepPolicy::Offload, SleepPolicy::Keep] {
        let refused = pool.tag("cache", wanted).unwrap_err();
        let Error::OtherPolicy { name, known, wanted: named } = refused else {
            panic!("{refused}")
        };
        assert_eq!((name.as_str(), known, named), ("cache", SleepPolicy::Discard, wanted));
    }
    assert_eq!(pool.snapshot().tags.len(), 3, "what was refused left nothing behind");
}

#[test]
fn a_pool_has_only_so_many_tags() {
    let (_device, pool) = books(Bytes::mib(2));
    for number in 1..1024 {
        pool.tag(&number.to_string(), SleepPolicy::Keep).unwrap();
    }
    let refused = pool.tag("one more", SleepPolicy::Keep).unwrap_err();
    assert!(matches!(refused, Error::TooManyTags { most: 1024 }), "{refused}");
    pool.tag("1023", SleepPolicy::Keep).unwrap();
    pool.check();
}

#[test]
fn threads_that_make_a_tag_at_once_get_the_same() {
    const THREADS: usize = 4;
    let (_device, pool) = books(Bytes::mib(64));
    let start = Barrier::new(THREADS);
    let made: Vec<Vec<Tag>> = thread::scope(|scope| {
        let make = || -> Vec<Tag> {
            let make = |number: u32| {
                start.wait();
                pool.tag(&number.to_string(), SleepPolicy::Offload).unwrap()
            };
            (0..250).map(make).collect()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|tags| *tags == made[0]));
    assert_eq!(pool.snapshot().tags.len(), 251);
}

#[test]
fn a_trim_goes_from_the_largest_chunk_down_for_as_long_as_it_may() {
    let (device, _) = Device::dry_run(Bytes::gib(1));
    let policy = Policy::default().numbers(|numbers| numbers.large_chunk_most = Bytes::ZERO);
    let pool = Pool::builder(&device).policy(policy).build().unwrap();
    // In quarters: chunks of 2, 64 and 8 MiB.
    let sizes = [Bytes::mib(8), Bytes::mib(256), Bytes::mib(32)];
    let blocks = sizes.map(|size| pool.alloc(size, STREAM, Tag::default()).unwrap());
    for block in blocks {
        pool.free(block, STREAM).unwrap();
    }
    assert_eq!(pool.trim_while(Bytes::ZERO, || false).unwrap(), Bytes::ZERO);
    let seen = RefCell::new(Vec::new());
    let given_back = pool.trim_while(Bytes::ZERO, || {
        seen.borrow_mut().push(in_use(&device));
        seen.borrow().len() <= 5
    });
    assert_eq!(given_back.unwrap(), Bytes::mib(4 * 64 + 8));
    // Whoever says when to stop sees what was given back until then.
    assert_eq!(*seen.borrow(), [296, 232, 168, 104, 40, 32].map(Bytes::mib));
    assert_eq!(pool.counts().physical, Bytes::mib(32));
    pool.check();
    // The rest, down to what is to be kept.
    let asked = Cell::new(0);
    let given_back = pool.trim_while(Bytes::mib(16), || {
        asked.set(asked.get() + 1);
        true
    });
    assert_eq!((given_back.unwrap(), asked.get()), (Bytes::mib(16), 2));
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::mib(16));
    assert_eq!((in_use(&device), pool.counts().physical), (Bytes::ZERO, Bytes::ZERO));
    pool.check();
}

#[test]
fn who_is_asked_whether_to_go_on_trimming_may_allocate() {
    let (device, pool) = books(Bytes::mib(64));
    let block = pool.alloc(Bytes::mib(48), STREAM, Tag::default()).unwrap();
    pool.free(block, STREAM).unwrap();
    let asked = Cell::new(0);
    let given_back = pool.trim_while(Bytes::ZERO, || {
        asked.set(asked.get() + 1);
        if asked.get() == 2 {
            // Takes every chunk that is left: none is in the hands of the trim while it asks.
            pool.alloc(Bytes::mib(60), STREAM, Tag::default()).unwrap();
        }
        true
    });
    // One chunk went back; the others are no longer free, and are passed over.
    assert_eq!((given_back.unwrap(), asked.get()), (Bytes::mib(2), 24));
    assert_eq!(in_use(&device), Bytes::mib(60));
    pool.check();
}

#[test]
fn who_panics_when_asked_to_go_on_leaves_the_pool_whole() {
    let (_device, pool) = books(Bytes::mib(64));
    let block = pool.alloc(Bytes::mib(48), STREAM, Tag::default()).unwrap();
    pool.free(block, STREAM).unwrap();
    let trim = || pool.trim_while(Bytes::ZERO, || panic!("asked"));
    assert!(panic::catch_unwind(panic::AssertUnwindSafe(trim)).is_err());
    pool.check();
    // Nobody waits for a trim that has ended.
    pool.sleep(Scope::Whole).unwrap();
    assert_eq!(pool.counts().physical, Bytes::ZERO);
}

#[test]
fn a_trim_leaves_what_is_live() {
    let (device, pool) = books(Bytes::mib(64));
    let blocks = [1, 2, 3].map(|_| pool.alloc(Bytes::mib(4), STREAM, Tag::default()).unwrap());
    pool.free(blocks[1], STREAM).unwrap();
    assert_eq!(pool.trim(Bytes::mib(4)).unwrap(), Bytes::ZERO, "that much may stay");
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::mib(4));
    assert_eq!(in_use(&device), Bytes::mib(8));
    assert_eq!(pool.alloc(Bytes::mib(4), STREAM, Tag::default()).unwrap(), blocks[1], "its hole");
    pool.check();
}

#[test]
fn a_recording_can_be_played_again() {
    let seed = 17;
    println!("seed {seed}");
    let (_device, pool) = books(Bytes::gib(4));
    pool.start_recording().unwrap();
    let (mut dice, mut live, mut most, mut count) = (Dice(seed), Vec::new(), 0, 0);
    for _ in 0..20_000 {
        let stream = StreamId(dice.roll(2));
        if live.len() < 60 && dice.roll(9) < 5 {
            let size = if dice.roll(4) == 0 { 40 << 20 } else { 100_000 };
            let size = Bytes(1 + dice.roll(size));
            live.push(pool.alloc(size, stream, Tag::default()).unwrap());
        } else if !live.is_empty() {
            let index = dice.roll(live.len() as u64) as usize;
            pool.free(live.swap_remove(index), stream).unwrap();
        } else {
            continue;
        }
        (most, count) = (live.len().max(most), count + 1);
    }
    let recording = pool.stop_recording().unwrap().unwrap();
    assert!(pool.stop_recording().unwrap().is_none(), "it was handed over");
    assert_eq!((recording.len(), recording.is_empty()), (count, false));

    let mut text = Vec::new();
    recording.write_to(&mut text).unwrap();
    let events = trace::read(&text[..]).unwrap();
    assert_eq!(events.len(), count);
    let frees = events.iter().filter(|event| matches!(event, Event::Free { .. }));
    assert_eq!(count - 2 * frees.count(), live.len(), "who was not freed is live");
    let (device, tally) = Device::dry_run(Bytes::gib(4));
    let options = replay::Options::default();
    let report =
        replay::replay(&events, &device, Some(&tally), Policy::default(), options, &|_| ())
            .unwrap();
    assert_eq!(report.events, count);
    // The pool rounds each block up to 128 or 256 bytes; the trace has what was asked for.
    let rounding = pool.counts().live_peak - report.live_peak_bytes;
    assert!(rounding < Bytes(256 * most as u64), "{rounding}");
    let rounded: Vec<Event> = events.into_iter().map(round_up).collect();
    assert_eq!(replay::live_peak(&rounded), pool.counts().live_peak);
}

fn round_up(event: Event) -> Event {
    match event {
        Event::Allocate { block, size, stream } => {
            Event::Allocate { block, size: Bytes(size.0.next_multiple_of(grain(size.0))), stream }
        }
        free @ Event::Free { .. } => free,
    }
}

#[test]
fn a_recording_has_no_free_of_an_older_block() {
    let (_device, pool) = books(Bytes::mib(64));
    assert!(pool.stop_recording().unwrap().is_none(), "nobody has begun");
    let older = pool.alloc(Bytes(900), STREAM, Tag::default()).unwrap();
    pool.start_recording().unwrap();
    pool.free(older, STREAM).unwrap();
    // The same address again: this time it counts.
    let again = pool.alloc(Bytes(900), StreamId(7), Tag::default()).unwrap();
    assert_eq!(again, older);
    assert!(pool.free(Address(1), STREAM).is_err());
    pool.free(again, StreamId(8)).unwrap();
    let mut text = Vec::new();
    pool.stop_recording().unwrap().unwrap().write_to(&mut text).unwrap();
    let (block, size) = (0, Bytes(900));
    assert_eq!(
        trace::read(&text[..]).unwrap(),
        [
            Event::Allocate { block, size, stream: StreamId(7) },
            Event::Free { block, stream: StreamId(8) }
        ]
    );
}

#[test]
fn threads_record_in_an_order_that_can_be_read() {
    let (_device, pool) = books(Bytes::gib(4));
    pool.start_recording().unwrap();
    thread::scope(|scope| {
        for seed in 1..=4 {
            println!("seed {seed}");
            let pool = &pool;
            scope.spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..2_000 {
                    let size = Bytes(1 + dice.roll(3 << 20));
                    let address = pool.alloc(size, StreamId(seed), Tag::default()).unwrap();
                    pool.free(address, StreamId(seed)).unwrap();
                    if dice.roll(50) == 0 {
                        pool.trim(Bytes::ZERO).unwrap();
                    }
                }
            });
        }
    });
    let mut text = Vec::new();
    pool.stop_recording().unwrap().unwrap().write_to(&mut text).unwrap();
    // No block is allocated twice or freed before it was allocated: the reader would refuse.
    assert_eq!(trace::read(&text[..]).unwrap().len(), 4 * 2 * 2_000);
}

#[test]
fn a_program_may_make_new_streams_for_ever() {
    let (device, _) = Device::dry_run(Bytes::mib(256));
    let pool = Pool::builder(&device).fence(Arc::new(Says(|| true))).build().unwrap();
    let sizes = [Bytes(100), Bytes::kib(300), Bytes::mib(5)];
    let mut after_some = Bytes::ZERO;
    for stream in 0..20_000 {
        let own = StreamId(stream);
        let blocks = sizes.map(|size| pool.alloc(size, own, Tag::default()).unwrap());
        // Half of them are freed on a stream that allocated nothing.
        let freed_on = if stream % 2 == 0 { own } else { StreamId(1_000_000 + stream) };
        for block in blocks {
            pool.free(block, freed_on).unwrap();
        }
        if stream == 100 {
            after_some = pool.counts().physical_peak;
        }
        if stream % 1000 == 0 {
            pool.check();
        }
    }
    assert_eq!(pool.counts().physical_peak, after_some, "more memory for the same work");
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(in_use(&device), Bytes::ZERO, "every stream has passed");
    pool.check();
}

/// Blocks in several tags, of which some sleep.
fn some_pool(fence: Option<Arc<dyn Fence>>) -> (Device, Pool, [Tag; 3]) {
    let device = host(Bytes::mib(64));
    let mut builder = Pool::builder(&device);
    if let Some(fence) = fence {
        builder = builder.fence(fence);
    }
    let pool = builder.build().unwrap();
    let tags = [
        pool.tag("weights", SleepPolicy::Offload).unwrap(),
        pool.tag("cache", SleepPolicy::Discard).unwrap(),
        pool.tag("pinned", SleepPolicy::Keep).unwrap(),
    ];
    for (tag, mib) in [(Tag::default(), 3), (tags[0], 7), (tags[1], 5), (tags[2], 1)] {
        for size in [Bytes(800), Bytes::mib(mib)] {
            let address = pool.alloc(size, STREAM, tag).unwrap();
            // All zeros take no backup: a byte that is not.
            let (reservation, offset) = pool.place_of(address).unwrap();
            let stream = device.stream().unwrap();
            stream.fill((&reservation, offset), 1, size).unwrap();
            stream.synchronize().unwrap();
        }
        let gone = pool.alloc(Bytes::mib(mib), STREAM, tag).unwrap();
        pool.free(gone, STREAM).unwrap();
    }
    (device, pool, tags)
}

#[track_caller]
fn assert_adds_up(snapshot: &PoolSnapshot) {
    let sum = |value: fn(&lowtide_pool::TagSnapshot) -> Bytes| -> Bytes {
        snapshot.tags.iter().map(value).sum()
    };
    assert_eq!(sum(|tag| tag.live_bytes), snapshot.live_bytes);
    assert_eq!(sum(|tag| tag.asleep_bytes), snapshot.asleep_bytes);
    assert_eq!(sum(|tag| tag.physical_bytes), snapshot.physical_bytes);
    assert_eq!(sum(|tag| tag.cached_bytes), snapshot.cached_bytes);
    assert_eq!(sum(|tag| tag.backup_bytes), snapshot.backup_bytes);
    assert_eq!(snapshot.tags.iter().map(|tag| tag.blocks).sum::<u64>(), snapshot.blocks);
    assert!(snapshot.backup_bytes <= snapshot.host_bytes);
    assert!(snapshot.live_bytes <= snapshot.live_peak_bytes);
    assert!(snapshot.physical_bytes <= snapshot.physical_peak_bytes);
    for tag in &snapshot.tags {
        assert!(tag.live_bytes <= tag.live_peak_bytes, "{tag:?}");
    }
}

#[test]
fn the_sums_of_a_snapshot_agree() {
    let (device, pool, tags) = some_pool(None);
    let awake = pool.snapshot();
    assert_adds_up(&awake);
    assert_eq!((awake.blocks, awake.device.to_string().as_str()), (8, "host"));
    assert_eq!(awake.live_bytes, Bytes(4 * 896 + Bytes::mib(16).0));
    assert_eq!(awake.physical_bytes, in_use(&device));
    assert_eq!(awake.cached_bytes, awake.physical_bytes - awake.live_bytes);
    let names: Vec<_> = awake.tags.iter().map(|tag| tag.name.as_str()).collect();
    assert_eq!(names, ["default", "weights", "cache", "pinned"]);

    pool.sleep(Scope::Tags(&tags)).unwrap();
    let asleep = pool.snapshot();
    assert_adds_up(&asleep);
    assert_eq!((asleep.live_bytes, asleep.blocks), (awake.live_bytes, 8));
    let [default, weights, cache, pinned] = &asleep.tags[..] else { panic!("{asleep:?}") };
    let phases = [default, weights, cache, pinned].map(|tag| tag.phase);
    assert_eq!(phases, [Phase::Awake, Phase::Asleep, Phase::Asleep, Phase::Awake]);
    for tag in [weights, cache] {
        assert_eq!((tag.asleep_bytes, tag.physical_bytes), (tag.live_bytes, Bytes::ZERO));
    }
    // 7 MiB and the page of the small one.
    assert_eq!((weights.backup_bytes, cache.backup_bytes), (Bytes::mib(10), Bytes::ZERO));
    assert_eq!(asleep.physical_bytes, in_use(&device));
    assert_eq!([default, pinned], [&awake.tags[0], &awake.tags[3]], "untouched");

    pool.wake(Scope::Whole).unwrap();
    let woken = pool.snapshot();
    assert_adds_up(&woken);
    assert_eq!((woken.asleep_bytes, woken.physical_bytes), (Bytes::ZERO, in_use(&device)));
    assert_eq!(woken.backup_bytes, Bytes::mib(10), "kept for the next sleep");
}

#[test]
fn the_sums_of_a_snapshot_agree_in_the_middle_of_a_turn() {
    // A fence is asked during turns, and looks.
    let looks: Arc<(OnceLock<Pool>, Mutex<Vec<PoolSnapshot>>)> = Arc::default();
    let asked = Arc::clone(&looks);
    let fence = Says(move || {
        asked.1.lock().unwrap().extend(asked.0.get().map(Pool::snapshot));
        true
    });
    let (device, pool, tags) = some_pool(Some(Arc::new(fence)));
    looks.0.set(pool.clone()).unwrap();
    pool.sleep(Scope::Tags(&tags)).unwrap();
    // No room, so that the wake looks for what is cached: that asks the fence.
    let block = pool.alloc(Bytes::mib(4), STREAM, Tag::default()).unwrap();
    pool.free(block, STREAM).unwrap();
    let taken = device.create(device.usage().unwrap().free).unwrap();
    let refused = pool.wake(Scope::Whole).unwrap_err();
    assert!(matches!(refused, Error::NoRoom { .. }), "{refused}");
    drop(taken);
    let turning = |snapshot: &PoolSnapshot| {
        let of = |tag: &lowtide_pool::TagSnapshot| tag.phase == Phase::Turning;
        snapshot.tags.iter().filter(|tag| of(tag)).map(|tag| tag.physical_bytes).sum::<Bytes>()
    };
    let seen = std::mem::take(&mut *looks.1.lock().unwrap());
    seen.iter().for_each(assert_adds_up);
    assert!(seen.iter().any(|snapshot| turning(snapshot) > Bytes::ZERO), "none in a sleep");
    let wakes = |snapshot: &&PoolSnapshot| {
        snapshot.tags.iter().any(|tag| tag.phase == Phase::Turning) && turning(snapshot).0 == 0
    };
    assert!(seen.iter().any(|snapshot| wakes(&snapshot)), "none in a wake");
    pool.wake(Scope::Whole).unwrap();
    pool.check();
}

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas/pool-snapshot.json");

#[test]
fn the_schema_in_the_docs_is_that_of_a_snapshot() {
    let schema = schemars::schema_for!(PoolSnapshot);
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("LOWTIDE_WRITE_SCHEMAS").is_some() {
        std::fs::create_dir_all(Path::new(SCHEMA).parent().unwrap()).unwrap();
        std::fs::write(SCHEMA, &text).unwrap();
    }
    let written = std::fs::read_to_string(SCHEMA).unwrap_or_default();
    assert!(
        written == text,
        "docs/schemas/pool-snapshot.json is not the schema of a snapshot; write it anew with \
         LOWTIDE_WRITE_SCHEMAS=1 cargo test -p lowtide-pool --test pool schema"
    );
}

#[test]
fn a_snapshot_has_the_keys_of_its_schema() {
    let schema = serde_json::to_value(schemars::schema_for!(PoolSnapshot)).unwrap();
    let (_device, pool, tags) = some_pool(None);
    pool.sleep(Scope::Tags(&tags[..1])).unwrap();
    let snapshot = serde_json::to_value(pool.snapshot()).unwrap();
    assert_fits(&snapshot, &schema);
    let of_tags = &schema["$defs"]["TagSnapshot"];
    for tag in snapshot["tags"].as_array().unwrap() {
        assert_fits(tag, of_tags);
        for (key, value) in [("policy", "SleepPolicy"), ("phase", "Phase")] {
            let known = schema["$defs"][value]["oneOf"].as_array().unwrap();
            assert!(known.iter().any(|one| one["const"] == tag[key]), "{} is no {value}", tag[key]);
        }
    }
}

// Every key of the one is a key of the other, and of its type.
fn assert_fits(value: &Value, schema: &Value) {
    let keys = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(keys(value), keys(&schema["properties"]));
    let required: BTreeSet<String> = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key.as_str().unwrap().into())
        .collect();
    assert_eq!(required, keys(value), "every key is always there");
    for (key, value) in value.as_object().unwrap() {
        let fits = match schema["properties"][key]["type"].as_str() {
            Some("integer") => value.is_u64(),
            Some("string") => value.is_string(),
            Some("array") => value.is_array(),
            _ => schema["properties"][key]["$ref"].is_string(),
        };
        assert!(fits, "{key} is {value}, by the schema {}", schema["properties"][key]);
    }
}

#[test]
fn a_block_larger_than_the_device_is_refused_with_the_memory_of_the_device() {
    let (device, pool) = books(Bytes::mib(64));
    for size in [Bytes::gib(1 << 10), Bytes::gib(1 << 20), Bytes::new(u64::MAX)] {
        let error = pool.block(size).unwrap_err();
        let text = format!("a block of {size} is larger than all memory of dry-run, 64.0 MiB");
        assert!(error.to_string().starts_with(&text), "{error}");
        let Error::LargerThanDevice { device: id, size: asked, total } = error else {
            panic!("{error}")
        };
        assert_eq!((id, asked, total), (device.id(), size, Bytes::mib(64)));
    }
    assert_eq!(in_use(&device), Bytes::ZERO);
    assert!(pool.block(Bytes::mib(64)).is_ok());
}

#[test]
fn a_block_of_zero_bytes_has_an_address_and_no_content() {
    let (_, pool) = books(Bytes::mib(64));
    let (one, two) = (pool.block(Bytes::ZERO).unwrap(), pool.block(Bytes::ZERO).unwrap());
    assert_ne!(one.address(), two.address());
    assert_eq!(one.size(), Bytes::ZERO);
    let refused = one.write(Bytes::ZERO, b"x").unwrap_err();
    assert!(matches!(refused, Error::OutsideBlock { .. }), "{refused}");
}
