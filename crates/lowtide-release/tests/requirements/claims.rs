//! R45: what `released` means. Each kind of release claims something before it starts, and the device's
//! number decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use lowtide_device::{Bytes, DeviceId, Usage};
use lowtide_pool::{Scope, SleepPolicy};
use lowtide_release::{
    ClaimBasis, Gauge, Hook, HookPoint, Ladder, LedgerKind, Mode, Pauses, Receipt, Request, Resume,
    Stages, Target as ReleaseTarget, Verdict,
};
use lowtide_testing::suite::Target;

use super::ground::Ground;
use super::proofs;

proofs! {
    r45_a_shutdown_that_leaves_blocks_is_partial needs ["drop", "trim"];
    r45_a_second_shutdown_has_nothing_to_prove needs [];
    r45_a_second_shutdown_claims_what_the_first_one_left needs ["drop", "trim"];
    r45_a_second_shutdown_is_pinned_by_the_same_reference needs ["drop"];
    r45_a_target_that_is_met_is_released_and_its_holders_are_named needs ["drop"];
    r45_a_task_that_keeps_memory_is_not_released needs ["trim"];
    r45_memory_outside_the_allocators_may_grow_once needs [];
    r45_a_stage_that_leaves_a_block_is_partial needs ["trim"];
    r45_a_cache_claims_what_a_trim_can_return needs ["trim"];
    r45_a_resume_after_a_pause_that_trimmed_is_a_success needs [];
    r45_where_others_move_the_only_number_nothing_is_proved needs [];
    r45_between_runs_cheap_caches_and_names_the_hooks_it_does_not_run needs ["caches"];
    r45_what_is_left_is_in_every_receipt needs ["trim"];
}

#[track_caller]
fn assert_claim(receipt: &Receipt, basis: ClaimBasis, mib: u64) {
    let claim = receipt.claim.expect("it was climbed");
    assert_eq!((claim.basis, claim.bytes), (basis, Bytes::mib(mib)), "{receipt}");
}

fn r45_a_shutdown_that_leaves_blocks_is_partial(ground: &Ground) {
    let owners = ground.releaser.owners();
    let model = owners.own("engine.model", ground.block(32));
    let forgotten = ground.block(48);
    let receipt = ground.releaser.shutdown();
    ground.assert_in_use(48, "the model is gone");
    assert_claim(&receipt, ClaimBasis::Owned, 80);
    assert_eq!(receipt.verdict, Verdict::Partial, "{receipt}");
    assert!(receipt.line().contains("32.0 MiB freed of 80.0 MiB claimed"), "{receipt}");
    let ledger = receipt.ledger.as_ref().unwrap();
    let unclaimed = ledger.lines.iter().find(|line| line.kind == LedgerKind::Live).unwrap();
    assert!(
        unclaimed.name.contains("since ") && unclaimed.name.contains("ground.rs:"),
        "{receipt}"
    );
    assert_eq!(unclaimed.bytes, Bytes::mib(48));
    drop(forgotten);
    let receipt = ground.releaser.shutdown();
    ground.assert_in_use(0, "everything is gone");
    assert_claim(&receipt, ClaimBasis::Owned, 48);
    assert_eq!(receipt.verdict, Verdict::Released, "{receipt}");
    drop(model);
}

fn r45_a_second_shutdown_has_nothing_to_prove(ground: &Ground) {
    let _model = ground.releaser.owners().own("engine.model", ground.block(8));
    assert_eq!(ground.releaser.shutdown().verdict, Verdict::Released);
    let receipt = ground.releaser.shutdown();
    assert_claim(&receipt, ClaimBasis::Owned, 0);
    assert_eq!(receipt.verdict, Verdict::NoEffect, "{receipt}");
}

fn r45_a_second_shutdown_claims_what_the_first_one_left(ground: &Ground) {
    let model = ground.releaser.owners().own("engine.model", ground.block(8));
    let forgotten = ground.block(16);
    let receipt = ground.releaser.shutdown();
    assert_claim(&receipt, ClaimBasis::Owned, 24);
    assert_eq!(receipt.verdict, Verdict::Partial, "{receipt}");
    drop(model); // The handle is gone, the block is still there.
    let receipt = ground.releaser.shutdown();
    assert_claim(&receipt, ClaimBasis::Owned, 16);
    assert_eq!(receipt.verdict, Verdict::NoEffect, "{receipt}");
    drop(forgotten);
    assert_eq!(ground.releaser.shutdown().verdict, Verdict::Released);
    let receipt = ground.releaser.shutdown();
    assert_eq!(receipt.verdict, Verdict::NoEffect, "{receipt}");
    // A GPU's number may move by itself.
    let says_so = receipt.line().contains("no-effect, nothing to free (");
    assert!(says_so || ground.target == Target::Cuda, "{receipt}");
}

fn r45_a_second_shutdown_is_pinned_by_the_same_reference(ground: &Ground) {
    let model = ground.releaser.owners().own("engine.model", ground.block(8));
    let leak = model.lend("metrics.watched");
    for handle in [Some(model), None] {
        // A cache beside it does not make the answer better.
        drop(ground.block(16));
        let receipt = ground.releaser.shutdown();
        ground.assert_in_use(8, "held");
        assert_claim(&receipt, ClaimBasis::Owned, 24);
        assert_eq!((receipt.verdict, receipt.holders.len()), (Verdict::Pinned, 1), "{receipt}");
        drop(handle);
    }
    drop(leak);
    assert_eq!(ground.releaser.shutdown().verdict, Verdict::Released);
}

fn r45_a_target_that_is_met_is_released_and_its_holders_are_named(ground: &Ground) {
    for was_shut_down in [false, true] {
        let model = ground.releaser.owners().own("engine.model", ground.block(24));
        let leak = model.lend("metrics.watched");
        if was_shut_down {
            assert_eq!(ground.releaser.shutdown().verdict, Verdict::Pinned);
        }
        let request = Request::new("limit", Ladder::gradual());
        let receipt = ground.releaser.release(request.to(ReleaseTarget::Floor));
        ground.assert_in_use(0, "asleep");
        assert!(model.lend("main").is_none(), "it was dropped");
        assert_eq!((receipt.verdict, receipt.holders.len()), (Verdict::Released, 1), "{receipt}");
        assert!(receipt.to_string().contains("held: engine.model by metrics.watched"), "{receipt}");
        ground.pool.wake(Scope::Whole).unwrap();
        drop(leak);
        ground.releaser.shutdown();
    }
    // A target that the reference keeps it from is missed because of that reference.
    let kept = ground.tagged("kept", SleepPolicy::Keep, 24);
    let model = ground.releaser.owners().own("engine.model", kept);
    let leak = model.lend("metrics.watched");
    for _ in 0..2 {
        let request = Request::new("limit", Ladder::gradual());
        let receipt = ground.releaser.release(request.to(ReleaseTarget::Floor));
        assert_eq!((receipt.verdict, receipt.holders.len()), (Verdict::Pinned, 1), "{receipt}");
    }
    drop(leak);
}

fn r45_a_task_that_keeps_memory_is_not_released(ground: &Ground) {
    let stages = Stages::new(&ground.releaser);
    let _model = ground.block(64);
    drop(ground.block(16));
    let first = stages.between("task 0");
    assert_claim(&first, ClaimBasis::Cached, 16);
    assert_eq!(first.verdict, Verdict::Released);
    let mut kept = Vec::new();
    for task in 1..12 {
        kept.push(ground.block(50));
        drop(ground.block(16));
        let receipt = stages.between(&format!("task {task}"));
        assert_claim(&receipt, ClaimBasis::Level, 16 + 50 * task);
        assert_eq!(receipt.verdict, Verdict::Partial, "{receipt}");
        let told = format!("{} more are in use than after the first task", Bytes::mib(50 * task));
        assert!(receipt.advice.iter().any(|line| line.contains(&told)), "{receipt}");
    }
    let trend = stages.trend();
    assert!(trend.rising, "{trend}");
    ground.assert_same(trend.per_update_bytes, 50, "by task");
    // Let go, it is at the level again.
    kept.clear();
    assert_eq!(stages.between("the last task").verdict, Verdict::Released);
    assert_eq!(stages.between("nothing").verdict, Verdict::Released, "nothing to do is a success");
}

fn r45_memory_outside_the_allocators_may_grow_once(ground: &Ground) {
    if ground.target == Target::Host {
        return; // It has no context, so that nothing can be loaded into one.
    }
    let stages = Stages::new(&ground.releaser);
    assert_eq!(stages.between("first").verdict, Verdict::Released);
    // A matrix product loads modules, which stay.
    let _modules = ground.chunk(64);
    assert_eq!(stages.between("loads").verdict, Verdict::Released);
    assert_eq!(stages.between("uses").verdict, Verdict::Released);
    // What grows in every task is not a library.
    let mut leaks = vec![ground.chunk(64)];
    stages.between("leaks once");
    for task in 0..3 {
        leaks.push(ground.chunk(64));
        let receipt = stages.between("leaks");
        assert_eq!(receipt.verdict, Verdict::NoEffect, "{task}: {receipt}");
    }
}

fn r45_a_stage_that_leaves_a_block_is_partial(ground: &Ground) {
    let stages = Stages::new(&ground.releaser);
    let stage = stages.load("reranker", || Ok::<_, ()>(ground.block(40))).unwrap();
    let forgotten = ground.block(24);
    let receipt = stage.finish();
    ground.assert_in_use(24, "forgotten");
    assert_eq!(receipt.verdict, Verdict::Partial, "{receipt}");
    drop(forgotten);
    ground.releaser.empty_cache();
    let stage = stages.load("reranker", || Ok::<_, ()>(ground.chunk(40))).unwrap();
    let receipt = stage.finish();
    assert_eq!(receipt.verdict, Verdict::Released, "memory of no allocator: {receipt}");
    ground.assert_in_use(0, "gone");
}

fn r45_a_cache_claims_what_a_trim_can_return(ground: &Ground) {
    // Small blocks share a chunk: it stays while one of them is live.
    let mut small: Vec<_> = (0..64).map(|_| ground.pool.block(Bytes(64 << 10)).unwrap()).collect();
    let kept = small.pop();
    drop(small);
    drop(ground.block(24));
    let receipt = ground.releaser.empty_cache();
    let left = ground.pool.counts().physical;
    assert!(left > Bytes::ZERO, "the chunk of the live block");
    assert_eq!(receipt.verdict, Verdict::Released, "{receipt}");
    drop(kept);
}

fn r45_a_resume_after_a_pause_that_trimmed_is_a_success(ground: &Ground) {
    let pauses = Pauses::new(&ground.releaser);
    drop(ground.block(24));
    let paused = pauses.pause(Mode::Abort, Duration::from_secs(1)).unwrap();
    assert_eq!(paused.receipt().unwrap().verdict, Verdict::Released);
    let receipt = paused.resume(Resume::default()).receipt.unwrap();
    assert_claim(&receipt, ClaimBasis::Cached, 0);
    assert_eq!(receipt.verdict, Verdict::Released, "{receipt}");
}

/// A device whose driver tells nobody's share, with a neighbour that comes and goes.
struct Shared {
    device: lowtide_device::Device,
    neighbour: Arc<AtomicUsize>,
}

impl Gauge for Shared {
    fn id(&self) -> DeviceId {
        Gauge::id(&self.device)
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        let mut usage = self.device.usage()?;
        usage.total += Bytes::gib(1);
        usage.free += Bytes::gib(1).saturating_sub(Bytes::mib(self.neighbour.load(SeqCst) as u64));
        Ok(usage)
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        self.device.synchronize()
    }
}

fn r45_where_others_move_the_only_number_nothing_is_proved(ground: &Ground) {
    let neighbour = Arc::new(AtomicUsize::new(100));
    let gauge = Shared { device: ground.device.clone(), neighbour: Arc::clone(&neighbour) };
    let clock = Arc::new(ground.clock.clone());
    let releaser = ground.releaser_with(Arc::new(gauge), clock);
    releaser.add_pool(&ground.pool);
    let moves = Arc::clone(&neighbour);
    let hook = Hook::new("a moment", move |_| {
        // Another process allocates or ends while this one is released.
        let _ = moves.fetch_update(SeqCst, SeqCst, |mib| Some(if mib == 100 { 200 } else { mib }));
        Ok(Vec::new())
    });
    let collects = releaser.add_hook(HookPoint::Collect, hook);
    drop(ground.block(24));
    let receipt = releaser.empty_cache();
    assert_eq!(receipt.verdict, Verdict::Unverified, "{receipt}");
    assert!(receipt.line().contains("76.0 MiB more in use, 24.0 MiB claimed"), "{receipt}");
    assert!(receipt.advice.iter().any(|line| line.contains("others moved")), "{receipt}");
    // Where nobody moves it, the number is as good as one's own.
    drop(collects);
    drop(ground.block(24));
    assert_eq!(releaser.empty_cache().verdict, Verdict::Released);
}

fn r45_between_runs_cheap_caches_and_names_the_hooks_it_does_not_run(ground: &Ground) {
    let releaser = &ground.releaser;
    let (cleared, compiled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let count = |calls: &Arc<AtomicUsize>| {
        let calls = Arc::clone(calls);
        move |_: &lowtide_release::HookCall| {
            calls.fetch_add(1, SeqCst);
            Ok(Vec::new())
        }
    };
    let _cache = releaser.add_hook(HookPoint::Caches, Hook::new("tokens", count(&cleared)));
    let compiler = Hook::new("compiler", count(&compiled)).costly();
    let _compiler = releaser.add_hook(HookPoint::Caches, compiler);
    let session = Hook::new("session", |_| Ok(Vec::new()));
    let _session = releaser.add_hook(HookPoint::Sessions, session);
    let missing = Hook::new("communicator", |_| Ok(Vec::new())).unless(|| Some("none".to_owned()));
    let _missing = releaser.add_hook(HookPoint::Libraries, missing);
    let receipt = Stages::new(releaser).between("task");
    assert_eq!((cleared.load(SeqCst), compiled.load(SeqCst)), (1, 0));
    assert_eq!(receipt.not_run, ["sessions: session", "caches: compiler"], "{receipt}");
    let text = receipt.to_string();
    assert!(text.contains("not run: sessions: session, caches: compiler"), "{text}");
    // The ladder that frees only cached memory leaves them all alone, and says so.
    let receipt = releaser.empty_cache();
    assert!(receipt.not_run.contains(&"caches: tokens".to_owned()), "{receipt}");
}

fn r45_what_is_left_is_in_every_receipt(ground: &Ground) {
    let _kept = ground.block(24);
    drop(ground.block(8));
    let receipt = ground.releaser.empty_cache();
    assert_eq!(receipt.verdict, Verdict::Released);
    let text = receipt.to_string();
    assert!(text.contains("left: ") && text.contains("live 24.0 MiB default"), "{text}");
}
