//! R1–R10: stages that hand the device on.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use lowtide_device::{Bytes, Device, DeviceId};
use lowtide_release::{
    Hook, HookCall, HookPoint, Ladder, Releaser, Request, Rung, RungName, RungOutcome, Stage,
    StageError, Stages, Verdict, rungs::Parts,
};

use super::ground::{Ground, quietly};
use super::pieces::{Framework, Log, Noted, RealClock, Store, Tensor, Watched};
use super::proofs;

proofs! {
    r1_cached_memory_goes_back_to_the_driver needs ["trim"];
    r2_without_a_framework_it_says_no_device needs [];
    r3_without_a_device_nothing_is_done needs [];
    r4_every_kind_of_module_is_torn_down_by_one_contract needs ["trim"];
    r5_the_end_of_a_stage_is_its_drop_by_a_panic_too needs ["trim"];
    r6_the_peak_is_the_largest_module_and_not_the_sum needs ["trim"];
    r6_the_peak_of_a_stage_counts_its_tasks needs ["trim"];
    r6_what_would_not_fit_is_refused_before_the_load needs ["trim"];
    r7_groups_then_their_environment_go_before_the_trim needs ["libraries", "trim"];
    r7_a_group_that_hangs_is_named_and_left_behind needs ["libraries", "trim"];
    r7_groups_of_one_release_alone_go_in_their_place needs ["trim"];
    r8_what_is_not_installed_is_named_and_the_model_goes needs ["drop", "trim"];
    r9_a_module_is_loaded_again_and_its_teardown_costed needs ["trim"];
    r9_an_owner_is_filled_again_after_a_shutdown needs ["drop", "trim"];
    r10_a_module_of_ones_own_joins_with_one_line needs ["trim"];
}

fn r1_cached_memory_goes_back_to_the_driver(ground: &Ground) {
    drop(ground.block(24));
    ground.assert_in_use(24, "freed, and still cached");
    let receipt = ground.releaser.empty_cache();
    ground.assert_in_use(0, "the cache is empty");
    ground.assert_freed(&receipt, 24);
    assert_eq!(receipt.verdict, Verdict::Released);
}

fn r2_without_a_framework_it_says_no_device(ground: &Ground) {
    let releaser = Releaser::without_device(Arc::new(ground.clock.clone()));
    for receipt in [releaser.empty_cache(), releaser.shutdown()] {
        assert_eq!(receipt.verdict, Verdict::NoDevice);
        assert!(!receipt.verdict.is_proved() && receipt.rungs.is_empty(), "nothing is proved");
        assert!(receipt.line().contains("on no device: no-device"), "{}", receipt.line());
        assert!(receipt.to_string().contains("`lowtide doctor`"), "what to do: {receipt}");
        assert!(
            receipt.detailed().to_string().contains("unknown"),
            "no number is made up: {receipt}"
        );
    }
}

fn r3_without_a_device_nothing_is_done(ground: &Ground) {
    assert!(Device::open(DeviceId::Cuda(63)).is_err(), "no machine has that many");
    // A framework is there, with memory and hooks of its own; only the device is missing.
    let (releaser, log) =
        (Releaser::without_device(Arc::new(ground.clock.clone())), Log::default());
    let noting = log.clone();
    let framework = Framework::noting(ground, "framework", move || noting.note("trim"));
    drop(framework.tensor(8));
    let sessions = Store::new(ground, "sessions", 8);
    let _plugged = [
        releaser.add_allocator(framework.clone()),
        releaser.add_hook(HookPoint::Sessions, sessions.hook(&log)),
    ];
    let model = releaser.owners().own("model", log.on_drop("model"));
    let receipt = releaser.release(Request::new("all", Ladder::whole()));
    assert_eq!(receipt.verdict, Verdict::NoDevice);
    assert_eq!(log.take(), [""; 0], "nobody was asked");
    assert!(model.with(|_| ()).is_some(), "what is owned stays");
    ground.assert_in_use(16, "nothing was done");
}

/// A stage with a module of any type: it is torn down, its memory goes, then its parent's.
fn comes_and_goes<M>(ground: &Ground, name: &str, load: impl FnOnce(Tensor, Noted) -> M) {
    let log = Log::default();
    let noting = log.clone();
    let framework = Framework::noting(ground, "framework", move || noting.note("trim"));
    let _plugged = ground.releaser.add_allocator(framework.clone());
    let stages = Stages::new(&ground.releaser);
    let parent = (framework.tensor(8), log.on_drop("parent"));
    let parent = stages.load("pipeline", || Ok::<_, ()>(parent)).unwrap();
    let module = load(framework.tensor(24), log.on_drop("model"));
    let stage: Stage<'_, M> = stages.load(name, || Ok::<_, ()>(module)).unwrap();
    ground.assert_in_use(32, name);
    let receipt = stage.finish();
    ground.assert_in_use(8, name);
    ground.assert_freed(&receipt, 24);
    assert_eq!(receipt.verdict, Verdict::Released);
    drop(parent);
    ground.assert_in_use(0, "the parent is torn down after it");
    assert_eq!(log.take(), ["model", "trim", "parent", "trim"], "{name}");
}

fn r4_every_kind_of_module_is_torn_down_by_one_contract(ground: &Ground) {
    #[expect(dead_code, reason = "held for its drop")]
    struct Reranker(Tensor, Noted);
    #[expect(dead_code, reason = "held for its drop")]
    enum Compressor {
        Loaded(Tensor, Noted),
    }
    trait Embedder {}
    impl Embedder for Reranker {}
    comes_and_goes(ground, "reranker", Reranker);
    comes_and_goes(ground, "generator", |weights, noted| vec![(Arc::new(weights), noted)]);
    comes_and_goes(ground, "compressor", Compressor::Loaded);
    comes_and_goes(ground, "embedder", |weights, noted| {
        Box::new(Reranker(weights, noted)) as Box<dyn Embedder>
    });
    comes_and_goes(ground, "somebody's own", |weights, noted| (weights, noted));
}

fn r5_the_end_of_a_stage_is_its_drop_by_a_panic_too(ground: &Ground) {
    let stages = Stages::new(&ground.releaser);
    let load = || Ok::<_, lowtide_pool::Error>(ground.block(24));
    {
        let _stage = stages.load("scope", load).unwrap();
        ground.assert_in_use(24, "loaded");
    }
    ground.assert_in_use(0, "the scope ended");
    let work = || {
        let _stage = stages.load("work", load).unwrap();
        panic!("the work failed");
    };
    let failed = quietly(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)));
    assert!(failed.is_err());
    ground.assert_in_use(0, "the work panicked");
    // What a loader left in the cache when it failed goes back too.
    let failed = stages.load("load", || {
        drop(ground.block(24));
        Err::<(), _>("no such file")
    });
    assert!(matches!(failed, Err(StageError::Load("no such file"))));
    ground.assert_in_use(0, "the load failed");
    let receipts = stages.report().stages;
    let verdicts: Vec<_> = receipts.iter().map(|stage| stage.receipt.verdict).collect();
    assert_eq!(verdicts, [Verdict::Released; 3], "and each has its receipt");
}

fn r6_the_peak_is_the_largest_module_and_not_the_sum(ground: &Ground) {
    let (stages, mut seen) = (Stages::new(&ground.releaser), Vec::new());
    for (name, mib) in [("reranker", 16), ("generator", 40), ("embedder", 24)] {
        // Each brings a framework of its own, which leaves nothing to the others.
        let framework = Framework::new(ground, name);
        ground.releaser.add_allocator(framework.clone()).keep();
        let stage = stages.load(name, || Ok::<_, ()>(framework.tensor(mib))).unwrap();
        seen.push(ground.in_use());
        stage.finish();
        seen.push(ground.in_use());
    }
    ground.assert_same(*seen.iter().max().unwrap(), 40, "the most that the device ever said");
    let report = stages.report();
    ground.assert_same(report.largest_bytes.0.cast_signed(), 40, "the largest");
    ground.assert_same(report.sum_bytes.0.cast_signed(), 80, "the sum");
    assert!(report.peak_bytes < report.sum_bytes + ground.releaser.inventory().floor().unwrap());
}

fn r6_the_peak_of_a_stage_counts_its_tasks(ground: &Ground) {
    let stages = Stages::new(&ground.releaser);
    let framework = Framework::new(ground, "framework");
    ground.releaser.add_allocator(framework.clone()).keep();
    let stage = stages.load("model", || Ok::<_, ()>(framework.tensor(16))).unwrap();
    for task in ["first", "second"] {
        drop(framework.tensor(24));
        stages.between(task);
        ground.assert_in_use(16, "the task's buffers are back");
    }
    stage.finish();
    let report = stages.report();
    ground.assert_same(report.stages[0].own_peak_bytes.0.cast_signed(), 40, "the model and a task");
    assert_eq!(report.peak_bytes, report.stages[0].peak_bytes);
}

fn r6_what_would_not_fit_is_refused_before_the_load(ground: &Ground) {
    let floor = ground.releaser.inventory().floor().unwrap();
    let stages = Stages::new(&ground.releaser).budget(floor + Bytes::mib(48));
    let refused = stages.load_needing("large", Bytes::mib(64), || -> Result<(), ()> {
        panic!("it was loaded though it does not fit")
    });
    assert!(matches!(refused, Err(StageError::WouldNotFit { .. })));
    // What is only cached makes room first.
    let framework = Framework::new(ground, "framework");
    let _plugged = ground.releaser.add_allocator(framework.clone());
    drop(framework.tensor(40));
    let stage = stages.load_needing("fits", Bytes::mib(40), || Ok::<_, ()>(ground.block(40)));
    drop(stage.unwrap());
    ground.assert_in_use(0, "both are gone");
    assert!(!stages.report().to_string().contains("above the budget"));
    // What came in without its size is told afterwards.
    drop(stages.load("unasked", || Ok::<_, ()>(ground.block(64))).unwrap());
    let report = stages.report().to_string();
    assert!(report.contains("above the budget of "), "{report}");
}

fn r7_groups_then_their_environment_go_before_the_trim(ground: &Ground) {
    let log = Log::default();
    let clock = Arc::new(ground.clock.clone());
    let releaser = ground.releaser_with(Watched::noting(ground, &log), clock);
    let noting = log.clone();
    let framework = Framework::noting(ground, "framework", move || noting.note("trim"));
    drop(framework.tensor(16));
    let groups = Store::new(ground, "model-parallel groups", 8);
    let environment = Store::new(ground, "distributed environment", 8);
    let _plugged = [
        releaser.add_allocator(framework.clone()),
        releaser.add_hook(HookPoint::Libraries, groups.hook(&log)),
        releaser.add_hook(HookPoint::Libraries, environment.hook(&log)),
    ];
    let receipt = releaser.shutdown();
    ground.assert_in_use(0, "all is back");
    ground.assert_freed(&receipt, 32);
    let said = log.take();
    assert_eq!(said[..3], ["synchronise", "model-parallel groups", "distributed environment"]);
    let trimmed = said.iter().position(|what| what == "trim").expect("it was trimmed");
    assert!(trimmed > 2 && said[trimmed + 1] == "synchronise", "{said:?}");
}

fn r7_a_group_that_hangs_is_named_and_left_behind(ground: &Ground) {
    let (releaser, log) = (ground.releaser_on(RealClock::new(ground)), Log::default());
    let (end, ended) = mpsc::channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let hangs = move |_: &HookCall| {
        // Until the proof ends: nobody sends.
        let _ = ended.lock().unwrap().recv();
        Ok(Vec::new())
    };
    let environment = Store::new(ground, "distributed environment", 8);
    let limit = Duration::from_millis(20);
    let _plugged = [
        releaser
            .add_hook(HookPoint::Libraries, Hook::new("model-parallel groups", hangs).limit(limit)),
        releaser.add_hook(HookPoint::Libraries, environment.hook(&log)),
    ];
    drop(ground.block(16));
    let receipt = releaser.shutdown();
    drop(end);
    ground.assert_in_use(0, "the second and the trim ran all the same");
    ground.assert_freed(&receipt, 24);
    let RungOutcome::Failed { why } = &receipt.rung("libraries").unwrap().outcome else {
        panic!("the hang is reported: {receipt}")
    };
    assert_eq!(why, "model-parallel groups: did not end within 20 ms and was left behind");
    assert_eq!(log.take(), ["distributed environment"]);
    ground.assert_same(receipt.rung("trim").unwrap().freed_bytes.unwrap(), 16, "trim");
}

fn r7_groups_of_one_release_alone_go_in_their_place(ground: &Ground) {
    let (groups, log) = (Store::new(ground, "groups", 8), Log::default());
    drop(ground.block(16));
    let asked: Arc<dyn Rung> = Arc::new(Parts::new(RungName::Libraries, vec![groups.hook(&log)]));
    let ladder = Ladder::shutdown().replace(&RungName::Libraries, &asked);
    let receipt = ground.releaser.release(Request::new("shutdown", ladder).alone());
    ground.assert_in_use(0, "the groups are gone, and what was cached");
    assert_eq!(receipt.rung("libraries").unwrap().touched[0].what, "groups");
    // Whoever did not ask for it keeps its own.
    let receipt = ground.releaser.shutdown();
    let libraries = receipt.rung("libraries").unwrap();
    assert_eq!(libraries.outcome.to_string(), "skipped: no library is known");
}

fn r8_what_is_not_installed_is_named_and_the_model_goes(ground: &Ground) {
    let releaser = &ground.releaser;
    let model = releaser.owners().own("runner.model", ground.block(24));
    let groups = Store::new(ground, "groups", 8);
    let missing = |name: &str, what: &'static str| {
        Hook::new(name, |_| panic!("it is not installed")).unless(move || Some(what.to_owned()))
    };
    let _plugged = [
        releaser.add_hook(
            HookPoint::Libraries,
            missing("vllm.parallel_state", "vllm is not installed"),
        ),
        releaser.add_hook(HookPoint::Libraries, groups.hook(&Log::default()).unless(|| None)),
        releaser.add_hook(HookPoint::Caches, missing("dynamo", "torch._dynamo is not imported")),
    ];
    let receipt = releaser.shutdown();
    ground.assert_in_use(0, "the model is gone");
    assert_eq!(receipt.verdict, Verdict::Released, "what is missing spoils nothing");
    assert!(model.with(|_| ()).is_none());
    let outcome = |rung: &str| receipt.rung(rung).unwrap().outcome.to_string();
    assert_eq!(outcome("libraries"), "done", "the other part of it was there");
    let libraries = receipt.rung("libraries").unwrap();
    assert_eq!(libraries.skipped, ["vllm.parallel_state: vllm is not installed"]);
    assert_eq!(libraries.touched.len(), 1);
    assert!(
        receipt
            .detailed()
            .to_string()
            .contains("; skipped vllm.parallel_state: vllm is not installed"),
        "{receipt}"
    );
    let all_missing = "skipped: dynamo: torch._dynamo is not imported";
    assert_eq!(outcome("caches"), all_missing, "nothing of it is there");
    assert_eq!(outcome("collect"), "skipped: no collector of a host language is registered");
}

fn r9_a_module_is_loaded_again_and_its_teardown_costed(ground: &Ground) {
    struct Slow<'a>(Option<lowtide_pool::Block>, &'a Ground);
    impl Drop for Slow<'_> {
        fn drop(&mut self) {
            drop(self.0.take());
            self.1.clock.advance(Duration::from_millis(250));
        }
    }
    let stages = Stages::new(&ground.releaser);
    for turn in ["first", "second"] {
        let load = || Ok::<_, ()>(Slow(Some(ground.block(24)), ground));
        let stage = stages.load("reranker", load).unwrap();
        ground.assert_in_use(24, turn);
        let receipt = stage.finish();
        ground.assert_in_use(0, turn);
        let dropped = receipt.rung("drop").unwrap();
        assert!((dropped.took_s - 0.25).abs() < 1e-9, "{} s", dropped.took_s);
    }
    let report = stages.report();
    let of_stages: f64 = report.stages.iter().map(|stage| stage.teardown_s).sum();
    assert!(report.stages.iter().all(|stage| stage.teardown_s >= 0.25), "{report:?}");
    assert!((report.cleaning_s - of_stages).abs() < 1e-9, "{report:?}");
}

fn r9_an_owner_is_filled_again_after_a_shutdown(ground: &Ground) {
    let model = ground.releaser.owners().own("runner.model", ground.block(24));
    for turn in ["first", "second"] {
        ground.assert_in_use(24, turn);
        assert_eq!(ground.releaser.shutdown().verdict, Verdict::Released);
        ground.assert_in_use(0, turn);
        model.put(ground.block(24));
    }
}

fn r10_a_module_of_ones_own_joins_with_one_line(ground: &Ground) {
    /// Knows nothing of lowtide.
    struct Mine {
        weights: Vec<lowtide_pool::Block>,
    }
    let stages = Stages::new(&ground.releaser);
    let load = || Ok::<_, ()>(Mine { weights: vec![ground.block(16), ground.block(8)] });

    let mine = stages.load("mine", load).unwrap(); // the line

    assert_eq!(mine.weights.len(), 2, "it is used as if there were no stage");
    ground.assert_in_use(24, "loaded");
    let receipt = mine.finish();
    ground.assert_in_use(0, "torn down");
    assert_eq!((receipt.name.as_str(), receipt.verdict), ("stage mine", Verdict::Released));
}
