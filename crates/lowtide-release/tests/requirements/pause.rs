//! R37–R44: pause, update, resume.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lowtide_device::{Bytes, Device};
use lowtide_pool::Pool;
use lowtide_release::{Mode, Pauses, Releaser, Resume, Step, Verdict};
use tracing::Level;

use super::ground::{Ground, Hands};
use super::pieces::{Framework, Log, RealClock, Worker, logged};
use super::proofs;

proofs! {
    r37_abort_and_retract_flush_and_trim_at_the_pause needs ["trim"];
    r37_in_place_stops_work_where_it_is_and_keeps_its_memory needs ["trim"];
    r38_the_trim_is_done_before_the_gate_opens needs ["trim"];
    r39_every_mode_trims_on_resume_and_in_place_keeps_the_kv needs ["trim"];
    r40_a_second_trim_is_a_harmless_no_op needs ["trim"];
    r41_without_empty_cache_nothing_is_trimmed needs ["trim"];
    r42_one_info_line_says_before_after_and_freed needs ["trim"];
    r43_over_many_updates_reserved_memory_stays_flat needs ["trim"];
    r43_a_slope_that_rises_is_warned_about needs [];
    r44_one_helper_serves_every_kind_of_device needs ["trim"];
}

/// Longer than any work here takes to stop.
const LIMIT: Duration = Duration::from_secs(300);
const MODES: [Mode; 3] = [Mode::Abort, Mode::Retract, Mode::InPlace];

fn r37_abort_and_retract_flush_and_trim_at_the_pause(ground: &Ground) {
    let _weights = ground.block(16);
    for (mode, told) in [(Mode::Abort, Step::Abort), (Mode::Retract, Step::Retract)] {
        let releaser = ground.releaser_on(RealClock::new(ground));
        let kv = Arc::new(Mutex::new(vec![ground.block(24)]));
        let flushed = Arc::clone(&kv);
        let pauses = Pauses::new(&releaser).flushing(move || flushed.lock().unwrap().clear());
        let request = Worker::start(releaser.gate());
        let paused = pauses.pause(mode, LIMIT).unwrap();
        ground.assert_in_use(16, "its keys and values are back at the pause already");
        ground.assert_freed(paused.receipt().unwrap(), 24);
        assert_eq!(paused.parked(), 0, "nothing waits inside");
        drop(paused);
        assert_eq!(request.end(), told);
    }
}

fn r37_in_place_stops_work_where_it_is_and_keeps_its_memory(ground: &Ground) {
    let (releaser, hands) = (ground.releaser_on(RealClock::new(ground)), Hands::new(ground));
    let kv = ground.block(24);
    hands.write(&ground.pool, &kv, 37);
    drop(ground.block(16));
    let pauses = Pauses::new(&releaser).flushing(|| panic!("what runs in place keeps its memory"));
    let request = Worker::start(releaser.gate());
    let paused = pauses.pause(Mode::InPlace, LIMIT).unwrap();
    assert_eq!((paused.parked(), paused.receipt().is_none()), (1, true));
    ground.assert_in_use(40, "nothing was touched");
    drop(paused);
    ground.assert_in_use(24, "trimmed at the resume");
    assert_eq!(request.end(), Step::Go, "it went on where it was");
    hands.assert_is_whole(&ground.pool, &kv, 37);
}

fn r38_the_trim_is_done_before_the_gate_opens(ground: &Ground) {
    assert!(Resume::default().empty_cache, "by default");
    let (releaser, log) = (&ground.releaser, Log::default());
    let (gate, noting) = (releaser.gate().clone(), log.clone());
    let framework = Framework::noting(ground, "framework", move || {
        let state = gate.state();
        noting.note(format!("trim, open {}, held {}", state.open, state.waiting));
    });
    let _plugged = releaser.add_allocator(framework.clone());
    drop(framework.tensor(24));
    let pauses = Pauses::new(releaser);
    let paused = pauses.pause(Mode::InPlace, LIMIT).unwrap();
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let pass = releaser.gate().enter();
            log.note("in");
            drop(pass);
            ground.in_use()
        });
        while releaser.gate().state().waiting == 0 {
            thread::yield_now();
        }
        let receipt = paused.resume(Resume::default()).receipt.unwrap();
        ground.assert_freed(&receipt, 24);
        ground.assert_same(worker.join().unwrap(), 0, "what the worker found");
    });
    assert_eq!(log.take(), ["trim, open false, held 1", "in"]);
}

fn r39_every_mode_trims_on_resume_and_in_place_keeps_the_kv(ground: &Ground) {
    let (pauses, hands) = (Pauses::new(&ground.releaser), Hands::new(ground));
    let kv = ground.block(16);
    hands.write(&ground.pool, &kv, 39);
    for mode in MODES {
        let paused = pauses.pause(mode, LIMIT).unwrap();
        drop(ground.block(24));
        ground.assert_in_use(40, "what the update left");
        let receipt = paused.resume(Resume::default()).receipt.unwrap();
        ground.assert_in_use(16, "trimmed");
        ground.assert_freed(&receipt, 24);
        // Nobody flushed it: it is not the trim's to take, whatever the mode.
        hands.assert_is_whole(&ground.pool, &kv, 39);
    }
}

fn r40_a_second_trim_is_a_harmless_no_op(ground: &Ground) {
    let (hands, kv) = (Hands::new(ground), ground.block(16));
    hands.write(&ground.pool, &kv, 40);
    drop(ground.block(24));
    assert_eq!(ground.releaser.empty_cache().verdict, Verdict::Released);
    ground.assert_in_use(16, "once");
    let second = ground.releaser.empty_cache();
    ground.assert_in_use(16, "twice");
    assert_eq!((second.verdict, second.freed_bytes), (Verdict::Released, Some(0)));
    assert!(second.rungs.iter().all(|rung| rung.touched.is_empty()), "{second}");
    hands.assert_is_whole(&ground.pool, &kv, 40);
}

fn r41_without_empty_cache_nothing_is_trimmed(ground: &Ground) {
    let pauses = Pauses::new(&ground.releaser);
    drop(ground.block(24));
    let paused = pauses.pause(Mode::InPlace, LIMIT).unwrap();
    assert!(
        paused.resume(Resume { empty_cache: false, ..Resume::default() }).receipt.is_none(),
        "no release, no receipt"
    );
    ground.assert_in_use(24, "still cached");
    drop(pauses.pause(Mode::InPlace, LIMIT).unwrap());
    ground.assert_in_use(0, "and by default it is not");
}

fn r42_one_info_line_says_before_after_and_freed(ground: &Ground) {
    let _weights = ground.block(16);
    drop(ground.block(24));
    ground.assert_in_use(40, "before");
    let pauses = Pauses::new(&ground.releaser);
    let paused = pauses.pause(Mode::InPlace, LIMIT).unwrap();
    let (_, lines) = logged(Level::INFO, || paused.resume(Resume::default()));
    ground.assert_in_use(16, "after");
    let expected = "resume: reserved 40.0 MiB before, 16.0 MiB after, 24.0 MiB freed";
    let [line] = lines.as_slice() else { panic!("one line: {lines:?}") };
    assert!(line.starts_with("INFO") && line.ends_with(expected), "{line}");
}

fn r43_over_many_updates_reserved_memory_stays_flat(ground: &Ground) {
    let pauses = Pauses::new(&ground.releaser);
    let mut weights = ground.block(16);
    let ((), lines) = logged(Level::WARN, || {
        for update in 0..40 {
            let paused = pauses.pause(Mode::InPlace, LIMIT).unwrap();
            // What an update needs for a moment is a little more each time.
            drop(ground.block(16 + 2 * update));
            weights = ground.block(16);
            drop(paused);
            ground.assert_in_use(16, "after an update");
        }
    });
    let trend = pauses.trend();
    assert_eq!((trend.rising, trend.per_update_bytes), (false, 0), "{trend:?}");
    assert_eq!(lines, [""; 0], "nothing to warn about");
    drop(weights);
}

fn r43_a_slope_that_rises_is_warned_about(ground: &Ground) {
    let (pauses, mut kept) = (Pauses::new(&ground.releaser), Vec::new());
    let ((), lines) = logged(Level::WARN, || {
        for update in 1..=12 {
            let paused = pauses.pause(Mode::InPlace, LIMIT).unwrap();
            kept.push(ground.block(8));
            drop(paused);
            ground.assert_in_use(8 * update, "each update leaves something behind");
        }
    });
    let trend = pauses.trend();
    assert_eq!((trend.rising, trend.per_update_bytes), (true, 8 << 20), "{trend:?}");
    let [line] = lines.as_slice() else { panic!("one warning: {lines:?}") };
    assert!(line.contains("reserved memory grows by 8.0 MiB with every update"), "{line}");
}

fn r44_one_helper_serves_every_kind_of_device(ground: &Ground) {
    // What a caller writes, once.
    fn empty_device_cache(releaser: &Releaser) -> bool {
        releaser.empty_cache().verdict == Verdict::Released
    }
    let (books, _) = Device::dry_run(Bytes::gib(1));
    let on_books = ground.releaser_with(Arc::new(books.clone()), Arc::new(ground.clock.clone()));
    let pool_of_books = Pool::new(&books).unwrap();
    on_books.add_pool(&pool_of_books);
    let here: (&Device, &Pool, &Releaser) = (&ground.device, &ground.pool, &ground.releaser);
    for (device, pool, releaser) in [here, (&books, &pool_of_books, &on_books)] {
        let (kind, before) = (device.info().id, device.usage().unwrap().in_use());
        drop(pool.block(Bytes::mib(24)).unwrap());
        assert!(empty_device_cache(releaser), "{kind}");
        assert_eq!(device.usage().unwrap().in_use(), before, "{kind}");
    }
    // A framework's accelerator interface, of whatever kind: it is trimmed, the device is asked.
    let (device, clock) = (Arc::new(ground.device.clone()), Arc::new(ground.clock.clone()));
    let releaser = ground.releaser_with(device, clock);
    let framework = Framework::new(ground, "accelerator");
    let _plugged = releaser.add_allocator(framework.clone());
    drop(framework.tensor(24));
    assert!(empty_device_cache(&releaser));
    ground.assert_in_use(0, "through the framework");
}
