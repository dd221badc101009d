//! The types that the tables of the front page tell, and the words of the verdicts.

use lowtide::pool;
use lowtide::prelude::*;

const PAGE: &str = include_str!("../src/front_page.md");

#[expect(dead_code, reason = "only compiled: it holds if the types do")]
fn the_fields_have_these_types(
    usage: &Usage,
    reading: &Reading,
    report: &StagesReport,
    stage: StageReport,
    receipt: Receipt,
    (holder, line, trend): (Holder, &LedgerLine, &Trend),
) {
    let _: [Bytes; 4] = [usage.total, usage.free, usage.reserved, usage.in_use()];
    let _: [Option<Bytes>; 4] = [reading.driver, reading.free, reading.own, reading.in_use()];
    let _: [Bytes; 2] = [reading.allocated, reading.reserved];
    let _: Option<i64> = reading.freed_since(reading);

    let _: [Bytes; 3] = [report.peak_bytes, report.largest_bytes, report.sum_bytes];
    let _: (Option<Bytes>, [f64; 2]) =
        (report.budget_bytes, [report.cleaning_s, report.cleaning_share]);
    let _: &Vec<StageReport> = &report.stages;
    let _: (String, [Bytes; 2]) = (stage.name, [stage.own_peak_bytes, stage.peak_bytes]);
    let _: (f64, Receipt) = (stage.teardown_s, stage.receipt);

    let _: (String, String, String) =
        (receipt.line(), receipt.to_string(), receipt.detailed().to_string());
    let _: (String, Verdict, Option<Claim>) = (receipt.name, receipt.verdict, receipt.claim);
    let _: Option<Bytes> = receipt.claim.map(|claim| claim.bytes);
    let _: (Option<i64>, [Reading; 2]) = (receipt.freed_bytes, [receipt.before, receipt.after]);
    let _: (Option<Target>, Vec<Holder>, Option<Ledger>) =
        (receipt.target, receipt.holders, receipt.ledger);
    let _: (Vec<RungReceipt>, Vec<String>, f64) = (receipt.rungs, receipt.advice, receipt.took_s);
    let _: ([String; 2], usize, Option<Bytes>, Option<String>) =
        ([holder.path, holder.holds], holder.count, holder.held, holder.since);
    let _: (LedgerKind, &String, String) = (line.kind, &line.name, line.to_string());
    let _: (Bytes, bool, i64) = (line.bytes, trend.rising, trend.per_update_bytes);
}

#[expect(dead_code, reason = "only compiled: it holds if the calls return these")]
fn the_calls_return_these(
    releaser: &Releaser,
    stages: &Stages,
    stage: Stage<'_, Block>,
    idling: Idling,
) -> Result<(), Box<dyn std::error::Error>> {
    let owners: &Owners = releaser.owners();
    let _: (Owners, Plan, Gate) = (owners.clone(), owners.plan(), releaser.gate().clone());
    let _: (Receipt, StagesReport, Trend) = (stage.finish(), stages.report(), stages.trend());
    serde_json::to_string(&(stages.report(), stages.trend()))?;
    let load = || Err::<Block, String>("none".to_owned());
    let _: Result<Stage<'_, Block>, StageError<String>> = stages.load("model", load);
    let _: IdleOptions = "5m".parse()?;
    let _: Working = idling.work()?;
    let _: std::io::Result<IdleThread> = IdleThread::start(idling);
    let mut request = Request::new("now", Ladder::cache());
    request.when_busy = WhenBusy::Refuse;
    releaser.release(request);
    Ok(())
}

#[test]
fn a_release_waits_for_passes_as_long_as_it_says() {
    let device = Device::host(HostOptions::default()).unwrap();
    let releaser = releaser(&device);
    let wait = Request::new("by default", Ladder::cache()).when_busy;
    assert_eq!(wait, WhenBusy::Wait(std::time::Duration::from_secs(60)));
    let pass = releaser.gate().enter();
    let mut refusing = Request::new("now", Ladder::gradual());
    refusing.when_busy = WhenBusy::Refuse;
    let told =
        std::thread::scope(|scope| scope.spawn(|| releaser.release(refusing)).join().unwrap());
    assert_eq!(told.verdict, Verdict::Busy);
    drop(pass);
}

#[expect(dead_code, reason = "only compiled: it holds if the fields are there")]
fn the_errors_have_these_fields(
    error: &pool::Error,
    stage: &StageError<String>,
    restoring: &RestoreError,
    busy: &Busy,
) -> Vec<String> {
    let of_pool = match error {
        pool::Error::OutOfMemory { requested, cached, .. } => format!("{requested} {cached}"),
        pool::Error::Asleep { tag } => tag.clone(),
        pool::Error::BackupLimit { needed, most } => format!("{needed} {most}"),
        pool::Error::NoRoom { needed, free, holders, .. } => format!("{needed} {free} {holders}"),
        _ => String::new(),
    };
    let of_stage = match stage {
        StageError::WouldNotFit { needed, available, .. } => format!("{needed} {available}"),
        StageError::Load(error) => error.clone(),
        _ => String::new(),
    };
    let of_work = match restoring {
        RestoreError::Wake(error) => error.to_string(),
        _ => String::new(),
    };
    vec![of_pool, of_stage, of_work, busy.active.to_string()]
}

#[test]
fn handles_are_cloned_and_shared_by_threads() {
    fn clones<T: Clone + Send + Sync>() {}
    fn shares<T: Send + Sync>() {}
    clones::<(Device, Pool, Releaser, Stages)>();
    clones::<(Pauses, Gate, Idling)>();
    shares::<(Block, Owned<Block>, Lent<Block>)>();
}

#[test]
fn every_verdict_is_on_the_page_with_its_word() {
    let verdicts = [
        Verdict::Released,
        Verdict::Partial,
        Verdict::NoEffect,
        Verdict::Pinned,
        Verdict::Busy,
        Verdict::Unverified,
        Verdict::NoDevice,
        Verdict::Failed,
    ];
    for verdict in verdicts {
        let row = format!("`{verdict:?}`, \"{verdict}\"");
        assert!(PAGE.contains(&row), "{row}");
    }
}

#[test]
fn every_type_that_the_page_links_to_is_in_the_prelude() {
    let library = include_str!("../src/lib.rs");
    let prelude = library.split("pub mod prelude {").nth(1).unwrap().split("\n}").next().unwrap();
    let names: Vec<&str> = prelude.split(|letter: char| !letter.is_alphanumeric()).collect();
    let links = ["](device::", "](pool::", "](release::"].map(|begin| PAGE.split(begin).skip(1));
    let linked = links.into_iter().flatten().map(|rest| rest.split([')', ':']).next().unwrap());
    let types: Vec<&str> = linked.filter(|name| name.starts_with(char::is_uppercase)).collect();
    assert!(types.len() > 20, "{types:?}");
    for name in types {
        assert!(names.contains(&name), "{name} is not in the prelude");
    }
}
