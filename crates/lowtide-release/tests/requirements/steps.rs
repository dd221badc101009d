//! R27 and R28: the eight steps, each on its own, and what they lower comes back.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::Bytes;
use lowtide_release::{
    Allocator, AllocatorCounts, Failure, Hook, HookPoint, Ladder, LedgerLine, Receipt,
    Registration, Request, Restore, RungName, RungOutcome, Setting, rungs,
};

use super::ground::{Ground, quietly};
use super::pieces::{Framework, Log, RealClock, Store, Watched};
use super::proofs;

proofs! {
    r27_eight_steps_each_give_their_own_back_in_order needs [
        "quiesce", "to_host", "sessions", "caches", "collect", "trim", "fraction", "context_reset",
        "fallback"
    ];
    r27_a_step_that_fails_or_panics_stops_no_other needs [
        "to_host", "sessions", "caches", "collect", "trim", "fraction", "context_reset", "fallback"
    ];
    r28_the_fraction_comes_back_after_an_error_and_a_panic needs ["fraction"];
    r28_the_fraction_comes_back_if_the_rung_itself_panics needs ["fraction"];
    r28_the_fraction_comes_back_after_a_cut_off needs ["fraction"];
    r28_a_context_is_reset_only_in_a_disposable_process needs ["context_reset"];
}

/// The eight steps, where a host language comes in, and what each gives back here.
const EIGHT: [(&str, Option<HookPoint>, u64); 8] = [
    ("to_host", Some(HookPoint::ToHost), EACH),
    ("sessions", Some(HookPoint::Sessions), EACH),
    ("caches", Some(HookPoint::Caches), EACH),
    // It trims too, so what was cached and may go is gone before the trim.
    ("collect", Some(HookPoint::Collect), 2 * EACH),
    ("trim", None, 0),
    ("fraction", None, EACH),
    ("context_reset", Some(HookPoint::ContextReset), EACH),
    ("fallback", Some(HookPoint::Fallback), EACH),
];
/// In MiB.
const EACH: u64 = 8;

/// Something with memory for each of the steps; it is noted when it is asked.
struct Eight {
    releaser: lowtide_release::Releaser,
    log: Log,
    plugged: Vec<Registration>,
}

impl Eight {
    /// `first` is plugged in before anything else.
    fn new(
        ground: &Ground,
        first: impl FnOnce(&lowtide_release::Releaser) -> Option<Registration>,
    ) -> Eight {
        let log = Log::default();
        let clock = Arc::new(ground.clock.clone());
        let releaser = ground.releaser_with(Watched::noting(ground, &log), clock);
        releaser.set_disposable(true);
        let mut plugged: Vec<Registration> = first(&releaser).into_iter().collect();
        for (step, place, _) in EIGHT {
            let Some(place) = place else { continue };
            plugged.push(releaser.add_hook(place, Store::new(ground, step, EACH).hook(&log)));
        }
        let noting = log.clone();
        let framework = Framework::noting(ground, "framework", move || noting.note("trim"));
        // What its fraction lets it keep, and what not.
        framework.keep(EACH);
        drop((framework.tensor(EACH), framework.tensor(EACH)));
        plugged.push(releaser.add_allocator(framework.clone()));
        plugged.push(releaser.add_setting(framework));
        Eight { releaser, log, plugged }
    }

    /// Climbs all of them and asserts that each gave back its own.
    fn climb(&self, ground: &Ground) -> Receipt {
        ground.assert_in_use(8 * EACH, "all is there");
        let receipt = self.releaser.release(Request::new("idle", Ladder::idle()));
        ground.assert_in_use(0, "all is back");
        for (step, _, gives) in EIGHT {
            let freed = receipt.rung(step).unwrap().freed_bytes.unwrap();
            ground.assert_same(freed, gives, step);
        }
        receipt
    }
}

fn r27_eight_steps_each_give_their_own_back_in_order(ground: &Ground) {
    let eight = Eight::new(ground, |_| None);
    let receipt = eight.climb(ground);
    let names: Vec<_> = receipt.rungs.iter().map(|rung| rung.rung.clone()).collect();
    assert_eq!(names, Ladder::idle().names(), "each under its own name");
    let said = eight.log.take();
    assert_eq!(said[..4], ["synchronise", "to_host", "sessions", "caches"], "{said:?}");
    let rounds = said[4..].iter().take_while(|what| *what == "collect" || *what == "trim");
    let collected = 4 + rounds.count();
    assert!(collected >= 8, "several rounds: {said:?}");
    let trim = ["synchronise", "trim", "synchronise"];
    assert_eq!(said[collected..collected + 3], trim, "trim and synchronise: {said:?}");
    // The fraction's trim, then the last two; the fallback begins with all the others again.
    assert_eq!(
        said[collected + 3..collected + 6],
        ["trim", "context_reset", "to_host"],
        "{said:?}"
    );
    assert_eq!(said[said.len() - 2..], ["fallback", "synchronise"], "{said:?}");
    drop(eight.plugged);
}

/// Something without memory that fails in its own way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Fails,
    Panics,
}

impl Broken {
    fn act<T>(self) -> Result<T, Failure> {
        match self {
            Broken::Fails => Err("it is broken".into()),
            Broken::Panics => panic!("it is broken"),
        }
    }

    fn message(self) -> &'static str {
        match self {
            Broken::Fails => "broken: it is broken",
            Broken::Panics => "broken panicked: it is broken",
        }
    }
}

impl Allocator for Broken {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn counts(&self) -> AllocatorCounts {
        AllocatorCounts::default()
    }

    fn lines(&self) -> Vec<LedgerLine> {
        Vec::new()
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        self.act()
    }
}

impl Setting for Broken {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn lower(&self) -> Result<Restore, Failure> {
        self.act()
    }
}

fn r27_a_step_that_fails_or_panics_stops_no_other(ground: &Ground) {
    for (step, place, _) in EIGHT {
        for broken in [Broken::Fails, Broken::Panics] {
            let eight = Eight::new(ground, |releaser| {
                Some(match (step, place) {
                    (_, Some(place)) => {
                        releaser.add_hook(place, Hook::new("broken", move |_| broken.act()))
                    }
                    ("trim", _) => releaser.add_allocator(Arc::new(broken)),
                    _ => releaser.add_setting(Arc::new(broken)),
                })
            });
            let receipt = quietly(|| eight.climb(ground));
            let RungOutcome::Failed { why } = &receipt.rung(step).unwrap().outcome else {
                panic!("{step} is reported: {receipt}")
            };
            assert!(why.contains(broken.message()), "{step}: {why}");
        }
    }
}

/// A framework's fraction whose statistics cannot be reset.
struct Stubborn(Arc<Framework>, Broken);

impl Setting for Stubborn {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn lower(&self) -> Result<Restore, Failure> {
        self.0.lower()
    }

    fn reset_statistics(&self) -> Result<(), Failure> {
        self.1.act()
    }
}

fn r28_the_fraction_comes_back_after_an_error_and_a_panic(ground: &Ground) {
    for broken in [Broken::Fails, Broken::Panics] {
        let framework = Framework::new(ground, "framework");
        framework.keep(24);
        drop(framework.tensor(24));
        // Its statistics fail, and so does another allocator while it is lowered.
        let _plugged = [
            ground.releaser.add_allocator(Arc::new(broken)),
            ground.releaser.add_allocator(framework.clone()),
            ground.releaser.add_setting(Arc::new(Stubborn(framework.clone(), broken))),
        ];
        let receipt = quietly(|| ground.releaser.release(Request::new("idle", Ladder::idle())));
        ground.assert_in_use(0, "lowered, it kept nothing");
        let rung = receipt.rung("fraction").unwrap();
        ground.assert_same(rung.freed_bytes.unwrap(), 24, "fraction");
        let RungOutcome::Failed { why } = &rung.outcome else {
            panic!("it is reported: {receipt}")
        };
        assert_eq!(*why, [broken.message(); 2].join("; "));
        assert_eq!(framework.keeps(), Bytes::mib(24), "it is as it was");
        // And again when it is used: what is cached now stays.
        drop(framework.tensor(24));
        quietly(|| ground.releaser.empty_cache());
        ground.assert_in_use(24, "the framework keeps what it may");
    }
}

/// A setting that panics where no part of the rung catches it: when it is asked for its name again.
struct Nameless(AtomicBool);

impl Setting for Nameless {
    fn name(&self) -> String {
        assert!(!self.0.swap(true, SeqCst), "it has no name any more");
        "nameless".to_owned()
    }

    fn lower(&self) -> Result<Restore, Failure> {
        Ok(Box::new(|| Ok(())))
    }
}

fn r28_the_fraction_comes_back_if_the_rung_itself_panics(ground: &Ground) {
    let framework = Framework::new(ground, "framework");
    framework.keep(24);
    drop(framework.tensor(24));
    // The fraction is lowered, and the other's panic ends the rung before it is restored.
    let _plugged = [
        ground.releaser.add_allocator(framework.clone()),
        ground.releaser.add_setting(Arc::new(Nameless(AtomicBool::new(false)))),
        ground.releaser.add_setting(framework.clone()),
    ];
    let receipt = quietly(|| ground.releaser.release(Request::new("idle", Ladder::idle())));
    ground.assert_in_use(0, "lowered, it kept nothing");
    let outcome = &receipt.rung("fraction").unwrap().outcome;
    assert!(matches!(outcome, RungOutcome::Panicked { .. }), "{outcome}");
    assert_eq!(framework.keeps(), Bytes::mib(24), "it is as it was");
}

fn r28_the_fraction_comes_back_after_a_cut_off(ground: &Ground) {
    let releaser = ground.releaser_on(RealClock::new(ground));
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let framework = Framework::noting(ground, "framework", move || {
        // Until the proof lets it: nobody sends.
        let _ = ended.lock().unwrap().recv();
    });
    framework.keep(24);
    drop(framework.tensor(24));
    let _plugged =
        [releaser.add_allocator(framework.clone()), releaser.add_setting(framework.clone())];
    let ladder = Ladder::of(vec![Arc::new(rungs::Fraction)]);
    // Long enough for a busy machine to come as far as where it waits.
    let ladder = ladder.limit(&RungName::Fraction, Duration::from_secs(1));
    let receipt = releaser.release(Request::new("idle", ladder));
    assert_eq!(receipt.rung("fraction").unwrap().outcome, RungOutcome::CutOff { limit_ms: 1000 });
    // It was left behind in the middle. When it comes to its end it puts everything back.
    drop(end);
    let began = Instant::now();
    while framework.keeps() != Bytes::mib(24) {
        assert!(began.elapsed() < Duration::from_secs(300), "it never came back");
        thread::yield_now();
    }
    ground.assert_in_use(0, "and what it was at is done");
}

fn r28_a_context_is_reset_only_in_a_disposable_process(ground: &Ground) {
    let (releaser, log) = (&ground.releaser, Log::default());
    let context = Store::new(ground, "context", 24);
    let _plugged = releaser.add_hook(HookPoint::ContextReset, context.hook(&log));
    let receipt = releaser.release(Request::new("idle", Ladder::idle()));
    ground.assert_in_use(24, "it may be in use, so it is left alone");
    let why = receipt.rung("context_reset").unwrap().outcome.to_string();
    assert!(why.starts_with("skipped: the process is not disposable"), "{why}");
    assert_eq!(log.take(), [""; 0]);
    // A worker is disposable, whatever this process is.
    let worker = Store::new(ground, "worker", 16);
    let plugged = releaser.add_hook(HookPoint::ContextReset, worker.hook(&log).of_disposable());
    let receipt = releaser.release(Request::new("idle", Ladder::idle()));
    ground.assert_in_use(24, "the worker is gone, and nothing else");
    let reset = receipt.rung("context_reset").unwrap();
    ground.assert_same(reset.freed_bytes.unwrap(), 16, "context_reset");
    assert_eq!(log.take(), ["worker"]);
    drop(plugged);
    releaser.set_disposable(true);
    let receipt = releaser.release(Request::new("idle", Ladder::idle()));
    ground.assert_in_use(0, "somebody said that it may go");
    let reset = receipt.rung("context_reset").unwrap();
    ground.assert_same(reset.freed_bytes.unwrap(), 24, "context_reset");
    assert_eq!(log.take(), ["context"]);
}
