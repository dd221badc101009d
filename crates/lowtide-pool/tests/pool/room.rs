//! A wake, or an allocation, without room: who is asked, what is said, and that nothing is lost.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use lowtide_device::{Bytes, Chunk, Device};
use lowtide_pool::{Error, Phase, Policy, Pool, Pressure, PressureAnswer, Scope, SleepPolicy, Tag};

use crate::written::{STREAM, Written, check, check_whole, host, in_use, pool_on, wake_whole};

/// A pool that sleeps, on a device where somebody else has taken the room.
struct Crowded {
    device: Device,
    pool: Pool,
    block: Written,
    taken: Arc<Mutex<Option<Chunk>>>,
}

impl Crowded {
    fn new() -> Crowded {
        let device = host(Bytes::mib(32));
        let pool = pool_on(&device, Policy::default());
        let block = Written::new(&pool, Bytes::mib(20), Tag::default(), 1);
        pool.sleep(Scope::Whole).unwrap();
        let taken = Arc::new(Mutex::new(Some(device.create(Bytes::mib(16)).unwrap())));
        Crowded { device, pool, block, taken }
    }

    fn assert_sleeps(&self) {
        assert_eq!(self.pool.phase(Tag::default()).unwrap(), Phase::Asleep);
        assert_eq!(in_use(&self.device), Bytes::mib(16), "the wake took nothing");
        assert_eq!(self.pool.counts().physical, Bytes::ZERO);
        self.pool.check();
    }
}

#[test]
fn a_wake_without_room_says_who_has_it_and_sleeps_on() {
    let crowded = Crowded::new();
    let Crowded { device, pool, block, taken } = &crowded;
    for _ in 0..2 {
        let refused = pool.wake(Scope::Whole).unwrap_err();
        let text = refused.to_string();
        let Error::NoRoom { device: id, needed, free, .. } = refused else { panic!("{refused}") };
        let facts = (device.info().id, Bytes::mib(20), Bytes::mib(16));
        assert_eq!((id, needed, free), facts);
        for part in ["20.0 MiB needed", &format!("(pid {})", std::process::id())] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        crowded.assert_sleeps();
    }
    drop(taken.lock().unwrap().take());
    pool.wake(Scope::Whole).unwrap();
    block.assert_is_whole();
    check(pool);
}

#[test]
fn a_wake_without_room_asks_who_could_free_some() {
    let crowded = Crowded::new();
    let Crowded { pool, block, taken, .. } = &crowded;
    let asked: Arc<Mutex<Vec<Pressure>>> = Arc::default();
    let (heard, held) = (Arc::clone(&asked), Arc::clone(taken));
    let answers = Arc::new(Mutex::new(PressureAnswer::Nothing));
    let answer = Arc::clone(&answers);
    let subscription = pool.on_pressure(move |pressure| {
        heard.lock().unwrap().push(*pressure);
        let answer = *answer.lock().unwrap();
        if answer == PressureAnswer::Retry && pressure.round == 1 {
            drop(held.lock().unwrap().take());
        }
        answer
    });
    assert!(matches!(pool.wake(Scope::Whole), Err(Error::NoRoom { .. })));
    crowded.assert_sleeps();
    let first = Pressure { requested: Bytes::mib(20), free: Bytes::mib(16), round: 0 };
    assert_eq!(*asked.lock().unwrap(), [first]);
    // It says so once too early, and is asked again.
    *answers.lock().unwrap() = PressureAnswer::Retry;
    asked.lock().unwrap().clear();
    pool.wake(Scope::Whole).unwrap();
    assert_eq!(*asked.lock().unwrap(), [first, Pressure { round: 1, ..first }]);
    block.assert_is_whole();
    check(pool);
    // Who has unsubscribed is not asked.
    drop(subscription);
    asked.lock().unwrap().clear();
    pool.sleep(Scope::Whole).unwrap();
    let _taken = crowded.device.create(Bytes::mib(16)).unwrap();
    assert!(matches!(pool.wake(Scope::Whole), Err(Error::NoRoom { .. })));
    assert_eq!(*asked.lock().unwrap(), []);
}

#[test]
fn out_of_memory_names_the_block_that_was_asked_for() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let _kept = pool.block(Bytes::mib(20)).unwrap();
    let refused = pool.block(Bytes::mib(20)).unwrap_err();
    let said = "no room for a block of 20.0 MiB, with 12.0 MiB cached in the pool: host is out of memory: ";
    assert!(refused.to_string().starts_with(said), "{refused}");
    let Error::OutOfMemory { requested, cached, source } = &refused else { panic!("{refused}") };
    assert_eq!((*requested, *cached), (Bytes::mib(20), pool.snapshot().cached_bytes));
    assert!(source.is_out_of_memory() && refused.is_out_of_memory());
}

#[test]
fn who_says_retry_for_ever_is_not_asked_for_ever() {
    let crowded = Crowded::new();
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rounds);
    let _subscription = crowded.pool.on_pressure(move |pressure| {
        assert_eq!(pressure.round as usize, counted.fetch_add(1, SeqCst));
        PressureAnswer::Retry
    });
    assert!(matches!(crowded.pool.wake(Scope::Whole), Err(Error::NoRoom { .. })));
    assert_eq!(rounds.swap(0, SeqCst), 64);
    crowded.assert_sleeps();
    let other = crowded.pool.tag("other", SleepPolicy::Offload).unwrap();
    let refused = crowded.pool.alloc(Bytes::mib(20), STREAM, other).unwrap_err();
    assert!(refused.is_out_of_memory());
    assert_eq!(rounds.swap(0, SeqCst), 64);
}

#[test]
fn who_is_asked_by_a_wake_may_put_another_tag_to_sleep() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let other = pool.tag("other", SleepPolicy::Offload).unwrap();
    let first = Written::new(&pool, Bytes::mib(20), Tag::default(), 1);
    pool.sleep(Scope::Whole).unwrap();
    pool.wake(Scope::Tags(&[other])).unwrap();
    let second = Written::new(&pool, Bytes::mib(20), other, 2);
    let asked = pool.clone();
    let subscription = pool.on_pressure(move |_| {
        assert_eq!(asked.sleep(Scope::Tags(&[other])).unwrap().tags, 1);
        PressureAnswer::Retry
    });
    pool.wake(Scope::Tags(&[Tag::default()])).unwrap();
    first.assert_is_whole();
    assert_eq!(pool.phase(other).unwrap(), Phase::Asleep);
    check(&pool);
    drop(subscription);
    // The other way round, with an allocation that wants the room.
    pool.sleep(Scope::Whole).unwrap();
    pool.wake(Scope::Tags(&[other])).unwrap();
    second.assert_is_whole();
    let third = pool.tag("third", SleepPolicy::Offload).unwrap();
    let asked = pool.clone();
    let _subscription = pool.on_pressure(move |_| {
        assert_eq!(asked.sleep(Scope::Tags(&[other])).unwrap().tags, 1);
        PressureAnswer::Retry
    });
    Written::new(&pool, Bytes::mib(20), third, 3).assert_is_whole();
    check(&pool);
}

#[test]
fn who_is_asked_may_allocate_and_is_not_asked_for_that() {
    let device = host(Bytes::mib(32));
    let (one, other) = (pool_on(&device, Policy::default()), pool_on(&device, Policy::default()));
    let asleep = Written::new(&one, Bytes::mib(20), Tag::default(), 1);
    one.sleep(Scope::Whole).unwrap();
    let awake = one.tag("awake", SleepPolicy::Offload).unwrap();
    let full = Written::new(&one, Bytes::mib(20), awake, 2);
    let asked: Arc<Mutex<Vec<&str>>> = Arc::default();
    let subscribe = |to: &Pool, name: &'static str| {
        let (asked, one, other) = (Arc::clone(&asked), one.clone(), other.clone());
        to.on_pressure(move |_| {
            asked.lock().unwrap().push(name);
            assert!(asked.lock().unwrap().len() < 8, "asked again and again");
            for pool in [&one, &other] {
                let refused = pool.alloc(Bytes::mib(20), STREAM, Tag::default()).unwrap_err();
                let full = refused.is_out_of_memory();
                assert!(full || matches!(refused, Error::Asleep { .. }), "{refused}");
            }
            let refused = one.wake(Scope::Whole).unwrap_err();
            assert!(matches!(refused, Error::NoRoom { .. }), "{refused}");
            // What fits is granted.
            let small = other.alloc(Bytes::mib(2), STREAM, Tag::default()).unwrap();
            other.free(small, STREAM).unwrap();
            PressureAnswer::Nothing
        })
    };
    let _subscriptions = [subscribe(&one, "one"), subscribe(&other, "other")];
    let asked_for = |ask: &dyn Fn() -> Error| {
        let refused = ask();
        (refused.to_string(), std::mem::take(&mut *asked.lock().unwrap()))
    };
    // Each is asked once on the way, whoever is asked first.
    let block = Bytes::mib(20);
    let (_, names) = asked_for(&|| one.alloc(block, STREAM, awake).unwrap_err());
    assert_eq!(names, ["one", "other"]);
    let (why, names) = asked_for(&|| one.wake(Scope::Whole).unwrap_err());
    assert_eq!(names, ["one", "other"], "{why}");
    let (_, names) = asked_for(&|| other.alloc(block, STREAM, Tag::default()).unwrap_err());
    assert_eq!(names, ["other", "one"]);
    full.assert_is_whole();
    one.sleep(Scope::Whole).unwrap();
    one.wake(Scope::Tags(&[Tag::default()])).unwrap();
    asleep.assert_is_whole();
    one.check();
    other.check();
}

#[test]
fn an_allocation_without_room_asks_who_could_free_some() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let old = pool.alloc(Bytes::mib(20), STREAM, Tag::default()).unwrap();
    let asked: Arc<Mutex<Vec<Pressure>>> = Arc::default();
    let (heard, owner) = (Arc::clone(&asked), pool.clone());
    let _subscription = pool.on_pressure(move |pressure| {
        let mut heard = heard.lock().unwrap();
        heard.push(*pressure);
        if heard.len() > 1 {
            return PressureAnswer::Nothing;
        }
        owner.free(old, STREAM).unwrap();
        PressureAnswer::Retry
    });
    let new = Written::new(&pool, Bytes::mib(24), Tag::default(), 1);
    let requested = Bytes::mib(24);
    let Pressure { requested: heard, round, free } = asked.lock().unwrap()[0];
    assert_eq!((heard, round), (requested, 0));
    assert!(free < requested, "{free} is free");
    assert_eq!(asked.lock().unwrap().len(), 1);
    new.assert_is_whole();
    let refused = pool.alloc(Bytes::mib(24), STREAM, Tag::default()).unwrap_err();
    assert!(refused.is_out_of_memory());
    assert_eq!(asked.lock().unwrap().len(), 2);
    check_whole(&pool, &[new]);
}

#[test]
fn a_wake_takes_what_other_tags_have_cached() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let other = pool.tag("other", SleepPolicy::Offload).unwrap();
    let block = Written::new(&pool, Bytes::mib(20), Tag::default(), 1);
    pool.sleep(Scope::Tags(&[Tag::default()])).unwrap();
    let live = Written::new(&pool, Bytes::mib(4), other, 2);
    let cached = pool.alloc(Bytes::mib(20), STREAM, other).unwrap();
    pool.free(cached, STREAM).unwrap();
    assert_eq!(in_use(pool.device()), Bytes::mib(24), "too much is cached for a wake");
    wake_whole(&pool, &[block, live]);
}
