//! Owners: wrappers go first, memory comes back while the caller keeps the runner, and who still
//! holds is named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lowtide_device::{Bytes, Device};
use lowtide_pool::{Block, Pool};
use lowtide_release::{
    Cycle, DropOutcome, Dropped, HeldPath, Holder, Lent, Owned, Owners, Paths, Shutdown,
};
use lowtide_testing::Dice;

/// Who went, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// Writes its name down when it goes, after everything that it holds.
struct Part {
    _holds: Vec<Lent<Part>>,
    _went: Went,
}

struct Went(String, Log);

impl Drop for Went {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(std::mem::take(&mut self.0));
    }
}

fn part(name: &str, log: &Log, holds: Vec<Lent<Part>>) -> Part {
    Part { _holds: holds, _went: Went(name.to_owned(), log.clone()) }
}

/// Does something when it goes.
struct OnDrop<R, F: FnMut() -> R>(F);

impl<R, F: FnMut() -> R> Drop for OnDrop<R, F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn names(shutdown: &Shutdown) -> Vec<&str> {
    shutdown.dropped.iter().map(|dropped| &*dropped.name).collect()
}

fn planned(owners: &Owners) -> Vec<String> {
    owners.plan().steps.into_iter().map(|step| step.name).collect()
}

/// Holders without the places where they were taken.
fn unplaced(mut holders: Vec<Holder>) -> Vec<Holder> {
    for holder in &mut holders {
        holder.since = None;
    }
    holders
}

fn holder(path: &str, holds: &str, count: usize, held: Option<Bytes>) -> Holder {
    Holder { count, held, ..Holder::new(path, holds) }
}

fn gone(name: &str) -> Dropped {
    Dropped { name: name.to_owned(), bytes: None, outcome: DropOutcome::Gone }
}

#[test]
fn r17_a_partial_start_is_shut_down_and_a_second_time_does_nothing() {
    let (owners, log) = (Owners::new(), Log::default());
    assert_eq!(owners.shutdown(), Shutdown::default(), "nothing was started");
    let model = owners.own("runner.model", part("model", &log, Vec::new()));
    let speculator: Owned<Part> = owners.declare("runner.speculator").borrows(&model);
    // Here the start failed: `runner.pooling` was never reached.
    let first = owners.shutdown();
    assert_eq!(first.dropped, [gone("runner.model")]);
    assert_eq!(first.empty, ["runner.speculator"]);
    assert!(first.is_clean());
    assert_eq!(*log.lock().unwrap(), ["model"]);

    let second = owners.shutdown();
    assert_eq!((second.dropped, second.holders), (Vec::new(), Vec::new()));
    assert_eq!(second.empty, ["runner.model", "runner.speculator"]);
    assert_eq!(*log.lock().unwrap(), ["model"], "once");
    assert!(speculator.with(|_| ()).is_none() && model.lend("late").is_none());
    assert!(model.share().is_none());
}

#[test]
fn r17_a_second_shutdown_still_names_the_survivors_of_the_first_while_they_live() {
    let owners = Owners::new();
    let model = owners.own("runner.model", 7);
    let kept = model.lend("sampler.model").unwrap();
    let foreign = model.share().unwrap();
    let survivors = vec![
        holder("sampler.model", "runner.model", 1, None),
        holder("(unnamed)", "runner.model", 1, None),
    ];
    assert_eq!(owners.holders(), [], "nothing was dropped");
    assert_eq!(unplaced(owners.shutdown().holders), survivors);
    assert_eq!(unplaced(owners.shutdown().holders), survivors);
    assert_eq!(*kept, 7, "what is lent stays good");
    drop(kept);
    assert_eq!(unplaced(owners.shutdown().holders), survivors[1..]);
    drop(foreign);
    assert_eq!(owners.holders(), []);
    assert!(owners.shutdown().is_clean());
}

/// Owners of a random graph: who borrows whom, by numbers.
struct Graph {
    owners: Owners,
    log: Log,
    borrows: Vec<BTreeSet<usize>>,
    filled: Vec<bool>,
    handles: Vec<Owned<Part>>,
}

fn name(number: usize) -> String {
    format!("part{number}")
}

impl Graph {
    /// Without cycles, each borrows others that are below it in a shuffled ranking, so that
    /// borrowers are registered before and after what they borrow.
    fn new(seed: u64, with_cycles: bool) -> Graph {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let count = 1 + dice.index(14);
        let mut rank: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            rank.swap(i, dice.index(i + 1));
        }
        let density = 1 + dice.index(6);
        let (owners, log) = (Owners::new(), Log::default());
        let mut handles: Vec<Owned<Part>> =
            (0..count).map(|number| owners.declare(&name(number))).collect();
        let filled: Vec<bool> = (0..count).map(|_| dice.index(8) > 0).collect();
        let mut borrows = vec![BTreeSet::new(); count];
        // From the lowest rank up: what is lent has to be there.
        let mut by_rank: Vec<usize> = (0..count).collect();
        by_rank.sort_by_key(|&number| rank[number]);
        for &from in &by_rank {
            let mut lent = Vec::new();
            for to in (0..count).filter(|&to| to != from) {
                let is_below = rank[to] < rank[from];
                if dice.index(8) >= density || !(is_below || with_cycles && dice.index(3) == 0) {
                    continue;
                }
                borrows[from].insert(to);
                // By a reference that the value keeps, or by its word.
                let reference = (is_below && filled[from] && dice.index(2) == 0)
                    .then(|| handles[to].lend(&format!("{}.of[{to}]", name(from))))
                    .flatten();
                if let Some(reference) = reference {
                    lent.push(reference);
                } else {
                    let said = handles.remove(from).borrows(name(to));
                    handles.insert(from, said);
                }
            }
            if filled[from] {
                handles[from].put(part(&name(from), &log, lent));
            }
        }
        Graph { owners, log, borrows, filled, handles }
    }

    /// Whom one borrows, near and far.
    fn reached(&self, from: usize) -> BTreeSet<usize> {
        let (mut reached, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(number) = todo.pop() {
            todo.extend(self.borrows[number].iter().filter(|&&to| reached.insert(to)));
        }
        reached
    }

    fn filled(&self) -> Vec<usize> {
        (0..self.filled.len()).filter(|&number| self.filled[number]).collect()
    }
}

#[test]
fn r19_every_borrower_goes_before_what_it_borrows() {
    for seed in 1..=500 {
        let graph = Graph::new(seed, false);
        let plan = graph.owners.plan();
        assert_eq!(plan.cycles, []);
        let shutdown = graph.owners.shutdown();
        let went = graph.log.lock().unwrap().clone();
        assert_eq!(names(&shutdown), went, "the last reference falls when its turn comes");
        assert_eq!(plan.steps.iter().map(|step| &*step.name).collect::<Vec<_>>(), went);
        let turns: BTreeMap<&str, usize> = went.iter().map(|name| &**name).zip(0..).collect();
        for &from in &graph.filled() {
            let turn = turns[&*name(from)];
            for to in graph.reached(from).into_iter().filter(|&to| graph.filled[to]) {
                assert!(turn < turns[&*name(to)], "{from} borrows {to}: {went:?}");
            }
        }
        assert_eq!(turns.len(), graph.filled().len());
        assert!(shutdown.is_clean() && shutdown.empty.len() + turns.len() == graph.handles.len());
        // Who could have gone and is younger has gone before.
        for (turn, step) in plan.steps.iter().enumerate() {
            let number: usize = step.name[4..].parse().unwrap();
            for younger in graph.filled().into_iter().filter(|&younger| younger > number) {
                let waits = plan.steps[turn..].iter().any(|other| {
                    let other: usize = other.name[4..].parse().unwrap();
                    graph.reached(other).contains(&younger)
                });
                assert!(waits || turns[&*name(younger)] < turn, "{number} before {younger}");
            }
        }
    }
}

#[test]
fn r19_a_cycle_is_named_and_stops_nothing() {
    let mut cycles_seen = 0;
    for seed in 1..=500 {
        let graph = Graph::new(seed, true);
        let shutdown = graph.owners.shutdown();
        let went = names(&shutdown);
        assert_eq!(went.len(), graph.filled().len());
        assert_eq!(graph.log.lock().unwrap().len(), went.len());
        assert!(shutdown.is_clean());
        let turn = |number: usize| went.iter().position(|went| *went == name(number)).unwrap();
        for &from in &graph.filled() {
            for to in graph.reached(from).into_iter().filter(|&to| graph.filled[to]) {
                let both_ways = graph.reached(to).contains(&from);
                assert!(both_ways || turn(from) < turn(to), "{from} borrows {to}: {went:?}");
            }
        }
        let number = |name: &String| name[4..].parse::<usize>().unwrap();
        let mut broken = BTreeSet::new();
        for Cycle { names } in &shutdown.cycles {
            cycles_seen += 1;
            for (from, to) in names.iter().zip(names.iter().cycle().skip(1)) {
                assert!(graph.borrows[number(from)].contains(&number(to)), "{names:?}");
            }
            broken.insert(number(&names[0]));
        }
        // Only who was named goes while somebody in the cycle borrows it directly.
        for &to in &graph.filled() {
            let borrowed = |&from: &usize| graph.borrows[from].contains(&to);
            let early =
                graph.filled().into_iter().filter(borrowed).any(|from| turn(to) < turn(from));
            assert!(!early || broken.contains(&to), "{to} went early: {shutdown}");
        }
    }
    assert!(cycles_seen > 100, "{cycles_seen}");
}

#[test]
fn r19_who_borrows_through_an_empty_place_still_goes_first() {
    let owners = Owners::new();
    let _a = owners.own("a", 0).borrows("b");
    let b = owners.declare::<u8>("b").borrows("c");
    let _c = owners.own("c", 0);
    assert_eq!(planned(&owners), ["a", "c"]);
    drop(b);
    assert_eq!(planned(&owners), ["c", "a"], "nothing joins them any more");
}

#[test]
fn r19_a_lend_is_a_borrow_for_the_innermost_owner_of_its_path() {
    let owners = Owners::new();
    let _pool = owners.own("runner.pool", 0);
    let runner = owners.own("runner", 0);
    let model = owners.own("runner.model", 0);
    let borrows = |name: &str| {
        let plan = owners.plan();
        plan.steps.into_iter().find(|step| step.name == name).unwrap().borrows
    };
    assert_eq!(planned(&owners), ["runner.model", "runner", "runner.pool"]);
    for path in ["runner.pool", "runner.pool.model", "runner.pool[0].model"] {
        let _lent = model.lend(path);
        assert_eq!(planned(&owners), ["runner", "runner.pool", "runner.model"], "{path}");
        assert_eq!(
            (borrows("runner.pool"), borrows("runner")),
            (vec!["runner.model".to_owned()], vec![])
        );
    }
    // Another name that begins alike is another place, here in the runner itself.
    let lent = model.lend("runner.pools.model");
    assert_eq!(
        (borrows("runner.pool"), borrows("runner")),
        (vec![], vec!["runner.model".to_owned()])
    );
    drop(lent);
    let _own = model.lend("runner.model.layers[0]");
    let _nobody = model.lend("elsewhere.model");
    assert_eq!(planned(&owners), ["runner.model", "runner", "runner.pool"], "it holds itself");
    let _whole = runner.lend("runner.pool.parent");
    assert_eq!(planned(&owners), ["runner.model", "runner.pool", "runner"]);
}

/// A runner over a real pool.
struct Runner {
    model: Owned<Weights>,
    pooling: Owned<Wrapper>,
    speculator: Owned<Weights>,
}

struct Weights(Block);

struct Wrapper {
    model: Lent<Weights>,
    own: Block,
}

fn host() -> (Device, Pool) {
    let device = crate::world::host(32);
    let pool = Pool::new(&device).unwrap();
    (device, pool)
}

fn block(pool: &Pool, size: Bytes) -> Block {
    pool.block(size).unwrap()
}

fn in_use(device: &Device) -> Bytes {
    device.usage().unwrap().in_use()
}

fn start(owners: &Owners, pool: &Pool) -> Runner {
    let model = owners
        .own("runner.model", Weights(block(pool, Bytes::mib(12))))
        .bytes(|weights| weights.0.size());
    let lent = model.lend("runner.pooling.model").unwrap();
    let pooling = Wrapper { model: lent, own: block(pool, Bytes::mib(4)) };
    let pooling = owners.own("runner.pooling", pooling).bytes(|wrapper| wrapper.own.size());
    let speculator = owners.declare("runner.speculator").borrows(&model);
    Runner { model, pooling, speculator }
}

#[test]
fn r20_memory_comes_back_while_the_caller_keeps_the_runner() {
    let (device, pool) = host();
    let owners = Owners::new();
    let runner = start(&owners, &pool);
    assert_eq!(in_use(&device), Bytes::mib(16));
    let wrapped = runner.pooling.with(|wrapper| wrapper.model.0.size());
    assert_eq!(wrapped, Some(Bytes::mib(12)));
    // R9: torn down, and loaded again, twice in the same runner.
    for _ in 0..2 {
        let plan = owners.plan();
        let sizes: Vec<_> =
            plan.steps.iter().map(|step| (&*step.name, step.bytes.unwrap())).collect();
        assert_eq!(sizes, [("runner.pooling", Bytes::mib(4)), ("runner.model", Bytes::mib(12))]);
        let shutdown = owners.shutdown();
        assert!(shutdown.is_clean(), "{shutdown}");
        assert_eq!(shutdown.dropped.iter().filter_map(|d| d.bytes).sum::<Bytes>(), Bytes::mib(16));
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(
            in_use(&device),
            Bytes::ZERO,
            "the device says so, and the runner is still here"
        );
        assert!(runner.model.with(|_| ()).is_none());

        runner.model.put(Weights(block(&pool, Bytes::mib(12))));
        let model = runner.model.lend("runner.pooling.model").unwrap();
        runner.pooling.put(Wrapper { model, own: block(&pool, Bytes::mib(4)) });
        assert_eq!(in_use(&device), Bytes::mib(16));
        assert_eq!(runner.speculator.name(), "runner.speculator");
    }
    drop(runner);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(in_use(&device), Bytes::ZERO, "without a shutdown, handles let go");
    assert_eq!((owners.holders(), owners.plan().empty), (Vec::new(), Vec::new()));
}

#[test]
fn r21_a_planted_wrapper_is_named_with_its_count_and_what_it_keeps() {
    let (device, pool) = host();
    let owners = Owners::new();
    let runner = start(&owners, &pool);
    let mut planted: Vec<_> =
        (0..3).map(|_| runner.model.lend("metrics.last_batch.model").unwrap()).collect();
    let foreign = [runner.model.share().unwrap(), runner.model.share().unwrap()];
    let shutdown = owners.shutdown();
    let size = Some(Bytes::mib(12));
    let expected = [
        holder("metrics.last_batch.model", "runner.model", 3, size),
        holder("(unnamed)", "runner.model", 2, size),
    ];
    let since = |at: usize| shutdown.holders[at].since.clone().unwrap();
    assert!((0..2).all(|at| since(at).contains("tests/release/owners.rs:")), "{shutdown}");
    assert_eq!(unplaced(shutdown.holders.clone()), expected);
    assert_eq!(shutdown.dropped[1].outcome, DropOutcome::Held);
    assert_eq!(shutdown.dropped[0].outcome, DropOutcome::Gone);
    assert!(!shutdown.is_clean());
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(in_use(&device), Bytes::mib(12), "and the device agrees");

    planted.pop();
    assert_eq!(owners.holders()[0].count, 2);
    drop((planted, foreign));
    assert_eq!(owners.holders(), []);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(in_use(&device), Bytes::ZERO);
}

#[test]
fn r21_what_is_dropped_by_hand_or_replaced_is_named_too() {
    let owners = Owners::new();
    let model = owners.own("model", 1).bytes(|_| Bytes(4));
    let old = model.lend("cache.old");
    model.put(2);
    assert_eq!(unplaced(owners.holders()), [holder("cache.old", "model", 1, Some(Bytes(4)))]);
    assert_eq!(model.with(|value| *value), Some(2));
    let new = model.lend("cache.new");
    drop(model);
    let both = [
        holder("cache.old", "model", 1, Some(Bytes(4))),
        holder("cache.new", "model", 1, Some(Bytes(4))),
    ];
    assert_eq!(unplaced(owners.holders()), both);
    drop((old, new));
    assert_eq!((owners.holders(), owners.paths()), (Vec::new(), Paths::default()));
}

#[test]
fn two_of_one_name_live_and_go_side_by_side() {
    let (owners, log) = (Owners::new(), Log::default());
    let first = owners.own("reranker.model", part("first", &log, Vec::new()));
    let lent = first.lend("reranker.top.model").unwrap();
    let _top = owners.own("reranker.top", part("top", &log, vec![lent]));
    let second = owners.own("reranker.model", part("second", &log, Vec::new()));
    assert!(first.with(|_| ()).is_some() && second.with(|_| ()).is_some());
    drop(second);
    assert_eq!(*log.lock().unwrap(), ["second"]);
    let second = owners.own("reranker.model", part("third", &log, Vec::new()));
    assert!(owners.shutdown().is_clean());
    assert_eq!(*log.lock().unwrap(), ["second", "top", "third", "first"]);
    drop(second);
}

#[test]
fn a_drop_that_panics_is_named_and_the_rest_goes_on() {
    let (owners, log) = (Owners::new(), Log::default());
    let what = String::from("stream");
    let _first = owners.own("first", part("first", &log, Vec::new()));
    let _plain = owners.own("plain", OnDrop(|| panic!("plainly")));
    let _bad = owners.own("bad", OnDrop(move || panic!("no such {what}"))).bytes(|_| Bytes(9));
    let _odd = owners.own("odd", OnDrop(|| std::panic::panic_any(17)));
    let _unknown = owners.own("unknown", part("unknown", &log, Vec::new())).bytes(|_| panic!("?"));
    let shutdown = owners.shutdown();
    let panicked = |name: &str, bytes: Option<Bytes>, message: &str| Dropped {
        name: name.to_owned(),
        bytes,
        outcome: DropOutcome::Panicked { message: message.to_owned() },
    };
    let expected = [
        gone("unknown"),
        panicked("odd", None, "(a panic without a message)"),
        panicked("bad", Some(Bytes(9)), "no such stream"),
        panicked("plain", None, "plainly"),
        gone("first"),
    ];
    assert_eq!(shutdown.dropped, expected);
    assert!(shutdown.holders.is_empty() && !shutdown.is_clean());
    assert_eq!(*log.lock().unwrap(), ["unknown", "first"]);
    assert_eq!(owners.shutdown().dropped, [], "and it can be used again");
}

#[test]
fn a_panic_in_the_last_reference_leaves_no_trace_on_record() {
    let owners = Owners::new();
    let bad = owners.own("bad", OnDrop(|| panic!("late")));
    let lent = bad.lend("somewhere");
    owners.shutdown();
    assert_eq!(owners.holders().len(), 1);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lent))).is_err());
    assert_eq!(owners.holders(), []);
}

#[test]
fn a_drop_may_call_back_into_the_registry() {
    let owners = Owners::new();
    let model = Arc::new(owners.own("model", 5).bytes(|_| Bytes(1)));
    let other = Mutex::new(Some(owners.own("other", 6)));
    let (again, target) = (owners.clone(), model.clone());
    let seen = Arc::new(Mutex::new(None));
    let told = seen.clone();
    let _wrapper = owners
        .own(
            "wrapper",
            OnDrop(move || {
                let lent = target.lend("wrapper.last").map(|value| *value);
                drop(other.lock().unwrap().take());
                let inner = again.shutdown();
                let added = again.own("added", 1);
                again.accept();
                let rest = (again.plan().steps.len(), again.paths(), again.audit().is_ok());
                *told.lock().unwrap() = Some((lent, inner, rest, added));
            }),
        )
        .borrows("model")
        .borrows("other");
    let shutdown = owners.shutdown();
    assert_eq!(names(&shutdown), ["wrapper", "other", "model"]);
    assert!(shutdown.is_clean(), "{shutdown}");
    let (lent, inner, (steps, _, audited), added) = seen.lock().unwrap().take().unwrap();
    assert_eq!(lent, Some(5), "what is borrowed is there until its borrower is gone");
    assert_eq!(inner.dropped, []);
    assert_eq!(inner.holders, [holder("(being dropped)", "wrapper", 1, None)]);
    assert_eq!((steps, audited), (2, true), "model, added");
    assert_eq!(added.with(|value| *value), Some(1), "what is new belongs to the next shutdown");
    assert_eq!(names(&owners.shutdown()), ["added"]);
    assert!(model.with(|_| ()).is_none());
}

#[test]
fn a_measure_may_call_back_and_so_may_what_it_captured() {
    let owners = Owners::new();
    let ends = Arc::new(AtomicUsize::new(0));
    let measure = || {
        let (again, at_end, ends) = (owners.clone(), owners.clone(), ends.clone());
        let captured = OnDrop(move || ends.fetch_add(1 + at_end.holders().len(), SeqCst));
        move |value: &u64| {
            let _captured = &captured;
            assert_eq!(again.paths(), Paths::default(), "a short use is no path");
            Bytes(value + again.holders().len() as u64)
        }
    };
    let model = owners.own("model", 5).bytes(measure());
    assert_eq!(owners.plan().steps[0].bytes, Some(Bytes(5)));
    let model = model.bytes(measure());
    assert_eq!(ends.load(SeqCst), 1, "replaced");
    assert_eq!(owners.shutdown().dropped[0].bytes, Some(Bytes(5)));
    drop(model);
    assert_eq!(ends.load(SeqCst), 2, "gone with its place");
}

#[test]
fn of_two_shutdowns_one_works_and_the_other_waits_for_it() {
    let owners = Owners::new();
    let (dropping, is_dropping) = mpsc::channel();
    let (done, drops) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (set_done, count) = (done.clone(), drops.clone());
    let _slow = owners.own(
        "slow",
        OnDrop(move || {
            count.fetch_add(1, SeqCst);
            dropping.send(()).unwrap();
            // Time for the other to come and, were it not to wait, to leave.
            thread::sleep(Duration::from_millis(100));
            set_done.store(true, SeqCst);
        }),
    );
    let _last = owners.own("last", 0).borrows("none");
    let first = thread::spawn({
        let owners = owners.clone();
        move || owners.shutdown()
    });
    is_dropping.recv().unwrap();
    let second = owners.shutdown();
    assert!(done.load(SeqCst), "it waited");
    assert_eq!((second.dropped, second.holders), (Vec::new(), Vec::new()));
    assert_eq!(names(&first.join().unwrap()), ["last", "slow"]);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn many_shutdowns_at_once_drop_everything_once() {
    for round in 0..50 {
        let (owners, log) = (Owners::new(), Log::default());
        let handles: Vec<_> =
            (0..20).map(|n| owners.own(&name(n), part(&name(n), &log, Vec::new()))).collect();
        let barrier = Barrier::new(4);
        let dropped: usize = thread::scope(|scope| {
            let work = || {
                barrier.wait();
                owners.shutdown().dropped.len()
            };
            let threads = [(); 4].map(|()| scope.spawn(work));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((dropped, log.lock().unwrap().len()), (20, 20), "round {round}");
        drop(handles);
        assert_eq!(log.lock().unwrap().len(), 20);
    }
}

#[test]
fn r21_a_lend_while_shutting_down_is_a_holder_or_nothing() {
    for round in 0..100 {
        let owners = Owners::new();
        let drops = Arc::new(AtomicUsize::new(0));
        let count = drops.clone();
        let model = owners.own("model", OnDrop(move || count.fetch_add(1, SeqCst)));
        let barrier = Barrier::new(3);
        let (shutdown, kept) = thread::scope(|scope| {
            let lenders = ["a.model", "b.model"].map(|path| {
                let (model, barrier) = (&model, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let mut kept = Vec::new();
                    while let Some(lent) = model.lend(path) {
                        // Some are kept, some go at once.
                        if kept.len() < 50 {
                            kept.push(lent);
                        }
                    }
                    kept
                })
            });
            barrier.wait();
            if round % 2 == 0 {
                thread::yield_now();
            }
            let shutdown = owners.shutdown();
            (shutdown, lenders.map(|thread| thread.join().unwrap()))
        });
        assert!(model.lend("late").is_none());
        let unnamed = shutdown.holders.iter().any(|holder| holder.path == "(unnamed)");
        assert!(!unnamed, "a lend and its name are one step, round {round}: {shutdown}");
        // Those that went at once may have been on their way out when it was written.
        for (kept, path) in kept.iter().zip(["a.model", "b.model"]) {
            let named = shutdown.holders.iter().find(|holder| holder.path == path);
            let named = named.map_or(0, |holder| holder.count);
            assert!((kept.len()..=kept.len() + 1).contains(&named), "round {round}: {shutdown}");
        }
        let expected: Vec<Holder> = kept
            .iter()
            .zip(["a.model", "b.model"])
            .filter(|(kept, _)| !kept.is_empty())
            .map(|(kept, path)| holder(path, "model", kept.len(), None))
            .collect();
        assert_eq!(unplaced(owners.holders()), expected, "round {round}");
        assert_eq!(drops.load(SeqCst), usize::from(expected.is_empty()));
        drop(kept);
        assert_eq!((drops.load(SeqCst), owners.holders()), (1, Vec::new()));
    }
}

#[test]
fn what_is_in_use_during_a_shutdown_is_named_and_goes_when_it_returns() {
    let (owners, log) = (Owners::new(), Log::default());
    let model = owners.own("model", part("model", &log, Vec::new()));
    let shutdown = model.with(|_| owners.shutdown()).unwrap();
    assert_eq!(shutdown.holders, [holder("(in use)", "model", 1, None)]);
    assert_eq!(shutdown.dropped[0].outcome, DropOutcome::Held);
    assert_eq!((owners.holders(), log.lock().unwrap().len()), (Vec::new(), 1));
}

#[test]
fn a_drop_on_another_thread_is_named_until_it_has_returned() {
    let owners = Owners::new();
    let (dropping, is_dropping) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let slow = owners.own(
        "slow",
        OnDrop(move || {
            dropping.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        }),
    );
    let lent = slow.lend("worker.slow");
    owners.shutdown();
    let worker = thread::spawn(move || drop(lent));
    is_dropping.recv().unwrap();
    let shutdown = owners.shutdown();
    assert_eq!(
        unplaced(shutdown.holders),
        [holder("worker.slow", "slow", 1, None)],
        "its memory is not back"
    );
    go_on.send(()).unwrap();
    worker.join().unwrap();
    assert_eq!(owners.holders(), []);
}

#[test]
fn an_audit_finds_each_new_path_and_only_those() {
    let owners = Owners::new();
    let model = owners.own("runner.model", 1);
    let _pooling = owners.own("runner.pooling", 2).borrows(&model);
    let known = model.lend("runner.sampler.model");
    let foreign = model.share();
    assert!(owners.audit().is_err(), "nothing was accepted");
    owners.accept();
    owners.audit().unwrap();
    // A second reference by a known path is no new path; fewer are fine.
    let twice = model.lend("runner.sampler.model");
    owners.audit().unwrap();
    drop((known, twice, foreign));
    owners.audit().unwrap();

    let new = model.lend("metrics.model");
    let shared = [model.share(), model.share(), model.share()];
    let _graphs = owners.own("runner.graphs", 3).borrows("runner.model");
    let error = owners.audit().unwrap_err();
    let path = |path: &str| HeldPath { holds: "runner.model".to_owned(), path: path.to_owned() };
    assert_eq!(error.paths.named, BTreeSet::from([path("metrics.model"), path("runner.graphs")]));
    assert_eq!(error.paths.unnamed, BTreeMap::from([("runner.model".to_owned(), 2)]));
    assert_eq!(
        error.to_string(),
        "new paths hold owners: metrics.model -> runner.model, runner.graphs -> runner.model, \
         (unnamed) -> runner.model (2). Drop each reference before a shutdown, or accept it with \
         `Owners::accept`; `Owned::lend` gives a name to a reference that has none"
    );
    // Who survives a shutdown is on a path too.
    owners.shutdown();
    assert_eq!(owners.audit().unwrap_err().paths, error.paths);
    drop((new, shared));
    let left = owners.audit().unwrap_err().paths;
    assert_eq!((left.named, left.unnamed), ([path("runner.graphs")].into(), BTreeMap::new()));
}

#[test]
fn accepted_paths_are_kept_in_a_file() {
    let owners = Owners::new();
    let model = owners.own("model", 1);
    let _pooling = owners.own("pooling", 2).borrows(&model);
    let (_lent, _shared) = (model.lend("sampler.model"), model.share());
    let text = serde_json::to_string(&owners.paths()).unwrap();
    assert_eq!(
        text,
        r#"{"named":[{"holds":"model","path":"pooling"},{"holds":"model","path":"sampler.model"}],"unnamed":{"model":1}}"#
    );
    owners.accept_these(serde_json::from_str(&text).unwrap());
    owners.audit().unwrap();
    owners.accept_these(serde_json::from_str(r#"{"named":[]}"#).unwrap());
    assert_eq!(owners.audit().unwrap_err().paths, owners.paths());
}

#[test]
fn a_plan_reads_well_and_is_data() {
    let owners = Owners::new();
    assert_eq!(owners.plan().to_string(), "nothing to drop");
    let model = owners.own("runner.model", 0).bytes(|_| Bytes::mib(12));
    let _graphs = owners.own("runner.graphs", 0).borrows("runner.state").borrows(&model);
    let _state = owners.own("runner.state", 0).borrows("runner.graphs");
    let _speculator = owners.declare::<u8>("runner.speculator");
    let plan = owners.plan();
    assert_eq!(
        plan.to_string(),
        "1. runner.state, borrows runner.graphs\n\
         2. runner.graphs, borrows runner.model, runner.state\n\
         3. runner.model, 12.0 MiB\n\
         empty: runner.speculator\n\
         cycle: runner.state borrows runner.graphs borrows runner.state; runner.state goes first"
    );
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["steps"][2]["bytes"], Bytes::mib(12).0);
    let json = serde_json::to_value(owners.shutdown()).unwrap();
    assert_eq!(json["dropped"][2]["outcome"], "gone");
    assert_eq!(json["cycles"][0]["names"][0], "runner.state");
}

#[test]
fn everything_may_be_used_from_any_thread() {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<(Owners, Owned<String>, Lent<String>)>();
}
