//! R16–R24: a shutdown that really frees.

use std::sync::Arc;

use lowtide_device::{Bytes, Device};
use lowtide_pool::{Block, Pool};
use lowtide_release::{
    Holder, Hook, HookPoint, Ladder, LedgerKind, Lent, Owned, Releaser, Request, RungOutcome,
    Verdict,
};
use tracing::Level;

use super::ground::Ground;
use super::pieces::{Framework, Log, Noted, Watched, logged};
use super::proofs;

proofs! {
    r16_it_synchronises_before_anything_goes needs ["quiesce", "drop"];
    r17_a_partial_start_is_shut_down_and_twice_is_once needs ["drop", "trim"];
    r18_all_that_an_engine_has_goes_and_is_named needs ["drop", "trim"];
    r19_wrappers_go_before_what_they_wrap needs ["drop", "trim"];
    r20_memory_comes_back_while_the_runner_is_kept needs ["drop", "trim"];
    r21_who_survives_is_named_by_path_and_count needs ["drop", "trim"];
    r21_a_witness_of_the_release_is_believed needs ["trim"];
    r22_captured_graphs_are_a_line_of_their_own needs ["drop"];
    r23_it_works_on_every_kind_of_device needs ["drop", "trim"];
    r24_collect_then_trim_then_one_line needs ["collect", "trim"];
}

fn r16_it_synchronises_before_anything_goes(ground: &Ground) {
    let log = Log::default();
    let clock = Arc::new(ground.clock.clone());
    let releaser = ground.releaser_with(Watched::noting(ground, &log), clock);
    let model = releaser.owners().own("model", (ground.chunk(24), log.on_drop("model")));
    releaser.shutdown();
    ground.assert_in_use(0, "the model is gone");
    let said = log.take();
    assert_eq!(said[..2], ["synchronise", "model"], "{said:?}");
    drop(model);
}

fn r17_a_partial_start_is_shut_down_and_twice_is_once(ground: &Ground) {
    let owners = ground.releaser.owners();
    // It failed between the model and the rest.
    let model = owners.own("runner.model", ground.block(24));
    let cache: Owned<Block> = owners.declare("runner.kv_cache").borrows(&model);
    let speculator: Owned<Block> = owners.declare("runner.speculator").borrows(&model);
    let first = ground.releaser.shutdown();
    ground.assert_in_use(0, "what there was is gone");
    ground.assert_freed(&first, 24);
    assert_eq!(first.verdict, Verdict::Released);
    let second = ground.releaser.shutdown();
    ground.assert_in_use(0, "and stays gone");
    assert_eq!((second.verdict, second.freed_bytes), (Verdict::NoEffect, Some(0)));
    let why = second.rung("drop").unwrap().outcome.to_string();
    assert_eq!(why, "skipped: no owner has anything");
    drop((model, cache, speculator));
}

/// What an engine has, in the order in which it comes to be; the first is what all others use.
const PARTS: [&str; 13] = [
    "runner.model",
    "runner.config.forward_contexts",
    "runner.kv_cache_config",
    "runner.kv_caches",
    "runner.attention_groups",
    "runner.model_state",
    "runner.speculator.target",
    "runner.speculator.draft",
    "runner.pooling",
    "runner.graphs",
    "runner.intermediate_tensors",
    "runner.encoder_cache",
    "runner.workspace",
];

fn r18_all_that_an_engine_has_goes_and_is_named(ground: &Ground) {
    let owners = ground.releaser.owners();
    let mut runner = Vec::new();
    for (number, name) in PARTS.into_iter().enumerate() {
        let part = owners.own(name, ground.block(8)).bytes(Block::size);
        runner.push(if number == 0 { part } else { part.borrows(PARTS[0]) });
    }
    ground.assert_in_use(8 * 13, "all is there");
    let receipt = ground.releaser.shutdown();
    ground.assert_in_use(0, "all is gone");
    let dropped = receipt.rung("drop").unwrap();
    assert_eq!(dropped.expected_bytes, Some(Bytes::mib(8 * 13)));
    let mut named: Vec<_> = dropped.touched.iter().map(|touch| touch.what.as_str()).collect();
    assert_eq!(named.last(), Some(&PARTS[0]), "the model goes last");
    let mut parts = PARTS;
    parts.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, parts, "each under its own name");
    assert!(runner.iter().all(|part| part.with(|_| ()).is_none()));
}

struct Model {
    weights: Block,
    _noted: Noted,
}

struct Wrapper {
    model: Lent<Model>,
    log: Log,
    name: &'static str,
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        // What it wraps is still whole when it goes.
        self.log.note(format!("{} of {}", self.name, self.model.weights.size()));
    }
}

fn r19_wrappers_go_before_what_they_wrap(ground: &Ground) {
    let (owners, log) = (ground.releaser.owners(), Log::default());
    let model = Model { weights: ground.block(24), _noted: log.on_drop("model") };
    let model = owners.own("runner.model", model);
    let wrap = |name: &'static str, path: &str| {
        let model = model.lend(&format!("{path}.model")).unwrap();
        owners.own(path, Wrapper { model, log: log.clone(), name })
    };
    // Registered before what they use: what they say counts, not when they came.
    let graphs = wrap("graphs", "runner.graphs").borrows("runner.pooling");
    let pooling = wrap("pooling", "runner.pooling");
    let receipt = ground.releaser.shutdown();
    ground.assert_in_use(0, "the last reference has fallen");
    assert_eq!(log.take(), ["graphs of 24.0 MiB", "pooling of 24.0 MiB", "model"]);
    assert!(receipt.holders.is_empty(), "{receipt}");
    drop((pooling, graphs));
}

struct Runner {
    model: Owned<Block>,
    cache: Owned<Block>,
}

fn r20_memory_comes_back_while_the_runner_is_kept(ground: &Ground) {
    let owners = ground.releaser.owners();
    let model = owners.own("runner.model", ground.block(24));
    let cache = owners.own("runner.kv_cache", ground.block(16)).borrows(&model);
    let runner = Runner { model, cache };
    ground.assert_in_use(40, "loaded");
    let receipt = ground.releaser.shutdown();
    ground.assert_in_use(0, "in the same process, with the runner in scope");
    ground.assert_freed(&receipt, 40);
    assert_eq!(runner.model.with(Block::size), None);
    assert_eq!(runner.cache.with(Block::size), None);
}

fn r21_who_survives_is_named_by_path_and_count(ground: &Ground) {
    let model = ground.releaser.owners().own("runner.model", ground.block(24)).bytes(Block::size);
    let pooling = [model.lend("runner.pooling.model"), model.lend("runner.pooling.model")];
    let receipt = ground.releaser.shutdown();
    ground.assert_in_use(24, "held");
    assert_eq!(receipt.verdict, Verdict::Pinned);
    let [holder] = receipt.holders.as_slice() else { panic!("one path: {receipt}") };
    let named = (holder.path.as_str(), holder.holds.as_str(), holder.count, holder.held);
    assert_eq!(named, ("runner.pooling.model", "runner.model", 2, Some(Bytes::mib(24))));
    assert!(receipt.advice.iter().any(|line| line.contains("drop runner.pooling.model")));
    drop(pooling);
    let receipt = ground.releaser.shutdown();
    ground.assert_in_use(0, "let go, and trimmed");
    assert!(receipt.verdict == Verdict::Released && receipt.holders.is_empty(), "{receipt}");
}

fn r21_a_witness_of_the_release_is_believed(ground: &Ground) {
    let held = Arc::new(ground.block(24));
    let seen = Arc::downgrade(&held);
    let witness = move || {
        let held = Some(seen.upgrade()?.size());
        let cut = Some("del cache['model']".to_owned());
        let by_hand = Some("end the thread 'loader'".to_owned());
        Some(vec![
            Holder { held, cut, ..Holder::new("cache['model']", "runner.model") },
            Holder { held, by_hand, ..Holder::new("thread 'loader': batch", "runner.model") },
            Holder { held, ..Holder::new("runner.pooling.model", "runner.model") },
        ])
    };
    let witness: Arc<dyn Fn() -> Vec<Holder> + Send + Sync> =
        Arc::new(move || witness().unwrap_or_default());
    let ask = || Request::new("shutdown", Ladder::shutdown()).asking(Arc::clone(&witness));
    let receipt = ground.releaser.release(ask());
    ground.assert_in_use(24, "held");
    assert_eq!(receipt.verdict, Verdict::Pinned);
    assert_eq!(receipt.holders[0].path, "cache['model']");
    let advice = [
        "del cache['model']  # lets runner.model go",
        "by hand: end the thread 'loader'",
        "by hand: drop runner.pooling.model, which holds runner.model",
    ];
    assert_eq!(receipt.advice[..3], advice, "{receipt}");
    drop(held);
    let receipt = ground.releaser.release(ask());
    ground.assert_in_use(0, "let go, and trimmed");
    assert!(receipt.verdict == Verdict::Released && receipt.holders.is_empty(), "{receipt}");
    // One that panics names nobody, and costs no receipt.
    let ask = Request::new("shutdown", Ladder::shutdown()).asking(Arc::new(|| panic!("lost")));
    let receipt = ground.releaser.release(ask);
    assert_eq!((receipt.verdict, receipt.claim.unwrap().bytes), (Verdict::Released, Bytes::ZERO));
}

fn r22_captured_graphs_are_a_line_of_their_own(ground: &Ground) {
    let releaser = &ground.releaser;
    let _weights = ground.tagged("weights", lowtide_pool::SleepPolicy::Offload, 24);
    let graphs = releaser.owners().own("runner.graphs", ground.chunk(8));
    let manager = Arc::new(graphs);
    let counted = Arc::clone(&manager);
    let buffers = move || counted.with(lowtide_device::Chunk::size).unwrap_or_default();
    let _plugged = releaser.add_account(LedgerKind::Graphs, "captured graphs", buffers);
    let ledger = releaser.ledger().unwrap();
    assert_eq!(ledger.of(LedgerKind::Graphs), Bytes::mib(8));
    assert_eq!(ledger.of(LedgerKind::Live), Bytes::mib(24), "apart from the weights");
    let said = ground.device.usage().unwrap().in_use();
    assert_eq!(ledger.sum(), said.0.cast_signed(), "and all of it is the device's number");
    assert!(ledger.to_string().contains("captured graphs"), "{ledger}");
    releaser.shutdown();
    ground.assert_in_use(24, "the graphs are gone");
    assert_eq!(releaser.ledger().unwrap().of(LedgerKind::Graphs), Bytes::ZERO);
}

fn r23_it_works_on_every_kind_of_device(ground: &Ground) {
    // The kind of this run, and one that is nothing but books: the same lines for both.
    let (books, _) = Device::dry_run(Bytes::gib(1));
    let on_books = ground.releaser_with(Arc::new(books.clone()), Arc::new(ground.clock.clone()));
    let pool_of_books = Pool::new(&books).unwrap();
    on_books.add_pool(&pool_of_books);
    let here: (&Device, &Pool, &Releaser) = (&ground.device, &ground.pool, &ground.releaser);
    for (device, pool, releaser) in [here, (&books, &pool_of_books, &on_books)] {
        let before = device.usage().unwrap().in_use();
        let weights = pool.block(Bytes::mib(24)).unwrap();
        let model = releaser.owners().own("runner.model", weights);
        let receipt = releaser.shutdown();
        let kind = device.info().id;
        assert_eq!((receipt.device, receipt.verdict), (Some(kind), Verdict::Released));
        assert_eq!(device.usage().unwrap().in_use(), before, "{kind}");
        drop(model);
    }
}

fn r24_collect_then_trim_then_one_line(ground: &Ground) {
    let (releaser, log) = (&ground.releaser, Log::default());
    let noting = log.clone();
    let framework = Framework::noting(ground, "framework", move || noting.note("trim"));
    releaser.add_allocator(framework.clone()).keep();
    let (lost, noting) = (std::sync::Mutex::new(Some(framework.tensor(16))), log.clone());
    let collector = Hook::new("collector", move |_| {
        noting.note("collect");
        drop(lost.lock().unwrap().take());
        Ok(Vec::new())
    });
    let _plugged = releaser.add_hook(HookPoint::Collect, collector);
    let model = releaser.owners().own("runner.model", framework.tensor(24));
    let (receipt, lines) = logged(Level::INFO, || releaser.shutdown());
    ground.assert_in_use(0, "all is back");
    let said = log.take();
    assert_eq!((said[0].as_str(), said[said.len() - 2].as_str()), ("collect", "trim"), "{said:?}");
    assert_eq!(said[said.len() - 1], "trim", "the last trim comes after the last collection");
    assert_eq!(receipt.rung("trim").unwrap().outcome, RungOutcome::Done);
    let [line] = lines.as_slice() else { panic!("one line when it is done: {lines:?}") };
    assert!(line.starts_with("INFO") && line.contains(&receipt.line()), "{line}");
    assert!(line.contains("released"), "{line}");
    drop(model);
}
