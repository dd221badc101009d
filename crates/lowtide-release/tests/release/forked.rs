//! Forks: a child has no use of its parent's gates, releasers and owners, and new ones work.
#![allow(unsafe_code, reason = "forks")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use lowtide_device::{Bytes, DeviceId, Source, Usage};
use lowtide_release::{
    Clock, Decision, Gate, Gauge, Hook, HookPoint, Idle, Idling, Ladder, ManualClock, Mode, Owned,
    Owners, Pauses, Releaser, Request, RestoreError, Resume, Stages, Step, Target, Tick, Verdict,
};
use lowtide_testing::forks::{beside, in_child};

use crate::world::host;

const FORKS: usize = 50;

fn releaser() -> Releaser {
    Releaser::new(&host(32), Arc::new(ManualClock::default()))
}

/// A gauge and a clock that a child must not ask: a thread of the parent's may have held their locks.
struct Parents(u32);

impl Parents {
    fn check(&self) {
        if std::process::id() != self.0 {
            // SAFETY: ends the child with a number that no check has.
            unsafe { libc::_exit(99) };
        }
    }
}

impl Gauge for Parents {
    fn id(&self) -> DeviceId {
        DeviceId::Host
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        self.check();
        Ok(Usage {
            total: Bytes::mib(2),
            free: Bytes::mib(1),
            reserved: Bytes::ZERO,
            source: Source::Kernel,
        })
    }

    fn own(&self) -> Option<Bytes> {
        self.check();
        None
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        self.check();
        Ok(())
    }

    fn others(&self) -> Vec<(String, Bytes)> {
        self.check();
        Vec::new()
    }
}

impl Clock for Parents {
    fn now(&self) -> Duration {
        self.check();
        Duration::ZERO
    }

    fn pause(&self, _: Duration) {
        self.check();
    }

    fn is_interrupted(&self) -> bool {
        self.check();
        false
    }

    fn within(&self, _: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        self.check();
        work();
        true
    }
}

fn is_failed(receipt: &lowtide_release::Receipt) -> bool {
    let advice = "this releaser belongs to the parent process: make a new one after the fork";
    receipt.verdict == Verdict::Failed && receipt.advice == [advice]
}

fn gate_refuses(gate: &Gate) -> Vec<bool> {
    let clock = ManualClock::default();
    let is_named = |busy: lowtide_release::Busy| {
        busy.inherited
            && busy.to_string()
                == "this gate belongs to the parent process: make a new one after the fork"
    };
    let mut entered = gate.enter();
    let mut checks = vec![
        gate.is_inherited(),
        gate.try_enter().is_none(),
        entered.checkpoint() == Step::Abort,
        gate.enter_within(&entered).into_owned().checkpoint() == Step::Abort,
        gate.enter_awake(|| Err("it was woken")).is_ok(),
        gate.try_close(Mode::Drain).is_err_and(is_named),
        gate.close_within(Mode::Abort, &clock, Duration::from_secs(1)).is_err_and(is_named),
        !gate.is_open(),
        !gate.state().open && gate.state().active == 0,
        !format!("{gate:?}").is_empty(),
    ];
    drop(entered);
    checks.push(gate.try_enter().is_none());
    checks
}

fn releaser_refuses(releaser: &Releaser) -> Vec<bool> {
    let pauses = Pauses::new(releaser);
    let idle = Idle::new("1s".parse().unwrap(), Arc::new(ManualClock::default()));
    let (idling, stages) = (Idling::new(releaser, &idle), Stages::new(releaser));
    releaser.set_floor(Bytes::ZERO);
    releaser.add_hook(HookPoint::Caches, Hook::new("late", |_| Ok(Vec::new()))).keep();
    let mut checks = vec![
        is_failed(&releaser.empty_cache()),
        is_failed(&releaser.shutdown()),
        is_failed(&releaser.release(Request::new("idle", Ladder::idle()).to(Target::Floor))),
        is_failed(&stages.between("a task")),
        releaser.ledger().is_none(),
        releaser.inventory().read().driver.is_none(),
        releaser.inventory().pools().is_empty(),
        pauses.pause(Mode::InPlace, Duration::ZERO).is_err_and(|busy| busy.inherited),
        matches!(
            idling.work(),
            Err(RestoreError::Wake(lowtide_pool::Error::Device(lowtide_device::Error::Forked)))
        ),
        matches!(idling.tick(), Tick::No(Decision::Inherited)),
        !format!("{releaser:?} {pauses:?} {idling:?} {stages:?}").is_empty(),
    ];
    checks.extend(gate_refuses(releaser.gate()));
    checks
}

fn owners_refuse(owners: &Owners, owned: &Owned<u32>) -> Vec<bool> {
    let shutdown = owners.shutdown();
    vec![
        !shutdown.is_clean() && shutdown.to_string().contains("belongs to the parent process"),
        owners.plan().steps.is_empty(),
        owners.holders().len() == 1,
        owners.audit().is_err_and(|new| new.to_string().contains("belongs to the parent process")),
        owned.with(|_| ()).is_none(),
        owned.lend("child").is_none(),
        owned.share().is_none(),
    ]
}

fn new_ones_work() -> Vec<bool> {
    let releaser = releaser();
    let gate = releaser.gate().clone();
    let owned = releaser.owners().own("model", 7);
    let mut checks =
        vec![gate.try_enter().is_some(), gate.close(Mode::Drain).mode() == Mode::Drain];
    checks.push(owned.with(|value| *value) == Some(7));
    checks.push(releaser.shutdown().verdict != Verdict::Failed);
    checks.push(owned.with(|_| ()).is_none());
    checks
}

#[test]
fn a_child_has_no_use_of_its_parents_releaser_and_new_ones_work() {
    let parents = Arc::new(Parents(std::process::id()));
    let releaser = Releaser::with_gauge(Some(Arc::clone(&parents) as _), Arc::clone(&parents) as _);
    let stages = Stages::new(&releaser);
    let mut stage = Some(stages.load("model", || Ok::<_, ()>(7)).unwrap());
    let mut inherited = Some(releaser.clone());
    in_child(|| {
        let inherited = inherited.take().unwrap();
        let mut checks = releaser_refuses(&inherited);
        drop(inherited);
        checks.push(is_failed(&stage.take().unwrap().finish()));
        checks.push(is_failed(&stages.load("another", || Ok::<_, ()>(8)).unwrap().finish()));
        checks.push(stages.report().stages.is_empty());
        checks.extend(new_ones_work());
        checks
    });
    assert_ne!(releaser.empty_cache().verdict, Verdict::Failed);
    assert!(releaser.gate().state().open && releaser.gate().state().active == 0);
}

#[test]
fn a_child_does_not_wait_for_a_release_that_was_under_way() {
    let releaser = releaser();
    let (begun, forked) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    thread::scope(|scope| {
        let releasing = scope.spawn(|| {
            let is_first = AtomicBool::new(true);
            let request = Request::new("shutdown", Ladder::shutdown());
            let (begun, forked) = (Arc::clone(&begun), Arc::clone(&forked));
            let request = request.go_on_while(move || {
                if is_first.swap(false, SeqCst) {
                    begun.wait();
                    forked.wait();
                }
                true
            });
            releaser.release(request)
        });
        begun.wait();
        in_child(|| releaser_refuses(&releaser));
        forked.wait();
        assert_ne!(releasing.join().unwrap().verdict, Verdict::Failed);
    });
}

#[test]
fn a_child_hangs_on_no_lock_of_its_parents_releaser() {
    let releaser = releaser();
    let noise = || {
        drop(releaser.gate().close(Mode::Drain));
        releaser.empty_cache();
    };
    beside(noise, || (0..FORKS).for_each(|_| in_child(|| releaser_refuses(&releaser))));
    assert!(releaser.gate().state().open);
}

#[test]
fn a_child_hangs_on_no_lock_of_its_parents_owners() {
    let owners = Owners::new();
    let mut owned = Some(owners.own("model", 7));
    let mut lent = owned.as_ref().unwrap().lend("sampler.model");
    beside(
        || drop(owners.own("other", 1).lend("sampler.other")),
        || {
            for _ in 0..FORKS {
                in_child(|| {
                    let checks = owners_refuse(&owners, owned.as_ref().unwrap());
                    drop((lent.take(), owned.take(), owners.clone()));
                    checks
                });
            }
        },
    );
    assert_eq!(owned.unwrap().with(|value| *value), Some(7));
    assert!(owners.shutdown().dropped.is_empty());
}

#[test]
fn a_child_hangs_on_no_lock_of_its_parents_idle_policy_and_pauses() {
    let releaser = releaser();
    let idle = Idle::new("1s".parse().unwrap(), Arc::new(ManualClock::default()));
    let (idling, pauses) = (Idling::new(&releaser, &idle), Pauses::new(&releaser));
    let stages = Stages::new(&releaser);
    let mut paused = Some(pauses.pause(Mode::InPlace, Duration::ZERO).unwrap());
    let mut task = Some(idle.task());
    let noise = || {
        drop(idle.task());
        pauses.trend();
        stages.trend();
    };
    let children = || {
        for _ in 0..FORKS {
            in_child(|| {
                let mut checks = vec![
                    matches!(idling.tick(), Tick::No(Decision::Inherited)),
                    idling.work().is_err(),
                    pauses.trend().samples == 0,
                    stages.trend().samples == 0,
                    stages.report().stages.is_empty(),
                    !format!("{stages:?} {idle:?}").is_empty(),
                ];
                idling.watch(|_| true, |_| ());
                drop((idle.task(), task.take()));
                let resumed = paused.take().unwrap().resume(Resume::default());
                checks.push(resumed.receipt.is_some_and(|receipt| is_failed(&receipt)));
                checks
            });
        }
    };
    beside(noise, children);
    assert!(!releaser.gate().state().open, "the parent's pause lasts");
    drop(paused);
    assert!(releaser.gate().state().open);
}

#[test]
fn passes_and_guards_that_a_child_inherited_do_nothing_when_dropped() {
    let (work, closed) = (Gate::new(), Gate::new());
    let mut pass = Some(work.enter().into_owned());
    let mut guard = Some(closed.close(Mode::Drain));
    let children = || {
        for _ in 0..FORKS {
            in_child(|| {
                let mut pass = pass.take().unwrap();
                let checks = vec![pass.checkpoint() == Step::Abort];
                drop((pass, guard.take()));
                checks
            });
        }
    };
    beside(|| _ = (work.state(), closed.state()), children);
    assert_eq!((work.state().active, closed.state().open), (1, false));
}

// In a program without other tests: a thread that panics has locks of the standard library.
#[test]
fn calls_that_cannot_answer_panic_with_the_reason() {
    const ALONE: &str = "LOWTIDE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "forked::calls_that_cannot_answer_panic_with_the_reason";
        let mut program = Command::new(std::env::current_exe().unwrap());
        let output = program.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let (gate, owners) = (Gate::new(), Owners::new());
    let owned = owners.own("model", 7);
    let panics = |call: &dyn Fn()| {
        let message = catch_unwind(AssertUnwindSafe(call)).err();
        let message = message.and_then(|panic| panic.downcast::<String>().ok());
        message.is_some_and(|text| {
            text.ends_with("belongs to the parent process: make a new one after the fork")
        })
    };
    in_child(|| {
        vec![
            panics(&|| drop(gate.close(Mode::Drain))),
            panics(&|| drop(owners.own("other", 1))),
            panics(&|| drop(owners.declare::<u32>("other"))),
            panics(&|| owned.put(8)),
        ]
    });
    assert_eq!(owned.with(|value| *value), Some(7));
}
