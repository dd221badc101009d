//! An idle server: the usual way keeps everything on the device. With lowtide the server sleeps down to
//! the floor; on a GPU it then leaves the device altogether. The next task finds every byte at its address.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lowtide::SystemClock;
use lowtide::device::{Bytes, DeviceId};
use lowtide::release::{Idle, IdleOptions, Idling, Receipt, Target, Tick, Verdict};
use lowtide_proto::helper;
use serde_json::json;

use super::scenario::{Play, Size};
use super::setup::ASLEEP;
use crate::commands::helper::{OwnHelper, RoundTrip, round_trip, total_s};
use crate::text::page;

/// The memory of an idle server, in units and blocks: weights that are kept and a cache that is discarded.
const SERVER: [Size; 2] = [(ASLEEP, LAYERS), (4, 1)];
const LAYERS: u64 = 8;
/// The idle time before memory is freed.
const QUIET: Duration = Duration::from_millis(200);
/// If the server is not idle after this time, something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two questions to the policy.
const TICK: Duration = Duration::from_millis(10);
/// The longest time for this process to be suspended.
const LIMIT_MS: u64 = 60_000;

pub(super) fn today(play: &mut Play<'_>) -> anyhow::Result<()> {
    let _served = play.load_server(SERVER)?;
    play.begin()?;
    thread::sleep(QUIET);
    play.end()
}

pub(super) fn with_lowtide(play: &mut Play<'_>) -> anyhow::Result<()> {
    let Play { setup, releaser, .. } = *play;
    // The demo waits for nobody who starts beside it.
    let give_way = Duration::ZERO;
    let options = IdleOptions { enabled: true, after: QUIET, give_way, ..IdleOptions::default() };
    let idle = Idle::new(options, Arc::new(SystemClock::default()));
    // Beside the floor, the memory of others and the growth of the context may be in use.
    let beside = setup.others + setup.slack;
    let target = match &setup.floor {
        Ok(floor) if !setup.counts_own => Target::Under(*floor + beside),
        _ => Target::Floor,
    };
    let idling = Idling::new(releaser, &idle).to(target);
    let task = idling.work()?;
    let [weights, _cache] = play.load_server(SERVER)?;
    let addresses = || weights.iter().map(|filled| filled.block.address()).collect::<Vec<_>>();
    let loaded_at = addresses();
    play.begin()?;
    drop(task);
    let receipt = released(&idling)?;
    play.end()?;
    let suspended = suspend_and_resume(setup.device.id()).map_err(|error| format!("{error:#}"));
    let words = match &suspended {
        Ok(([before, after], [out_s, back_s])) => {
            format!("context and all: {before} → {after} in {out_s:.2} s, back in {back_s:.2} s")
        }
        Err(why_not) => format!("not shown: {why_not}"),
    };
    let (bytes, times) = suspended.clone().ok().unzip();
    let value = json!({
        "before_bytes": bytes.map(|[before, _]| before), "after_bytes": bytes.map(|[_, after]| after),
        "out_s": times.map(|[out_s, _]| out_s), "back_s": times.map(|[_, back_s]| back_s),
        "why_not": suspended.as_ref().err(),
    });
    play.scenario.suspended = Some(value);
    play.scenario.rows.push(("suspended", words));
    let _task = idling.work()?;
    let woken = play.hold("awake")?;
    let is_right = setup.content.is_right(&weights)? && addresses() == loaded_at;

    let (stays, before) = (play.scenario.today.after_bytes, play.scenario.today.before_bytes);
    play.check(setup.same(stays, before, 0), format!("today {stays} stay in use"));
    let needed = play.start + setup.units(SERVER.iter().map(|(units, _)| units).sum());
    play.check_peak(needed, LAYERS + 1, "weights and cache");
    play.check(receipt.verdict.is_proved(), "the idle release reached its target");
    play.scenario.receipts.push(receipt);
    let after = play.scenario.with.after_bytes;
    let (is_floor, what) = match &setup.floor {
        Err(reason) => (false, format!(", and the floor is not known: {reason}")),
        Ok(floor) if beside == Bytes::ZERO => (after <= *floor, format!("; the floor is {floor}")),
        Ok(floor) => {
            let most = *floor + beside;
            let what = format!("; a bare context uses {floor}, with its growth up to {most}");
            (after <= most, what)
        }
    };
    play.check(is_floor, format!("{after} in use while idle{what}"));
    if let Ok(([_, left], _)) = suspended {
        play.check(left == Bytes::ZERO, format!("{left} in use while it is suspended"));
    }
    let is_back = setup.same(woken, play.scenario.with.before_bytes, LAYERS + 1)
        && woken <= play.scenario.with.peak_bytes + setup.slack;
    play.check(is_back, format!("the next task wakes the server: {woken} in use again"));
    play.check(is_right, "every byte of the weights is right, at the same addresses");
    Ok(())
}

// Asks the policy again and again, as the timer of a server does.
fn released(idling: &Idling) -> anyhow::Result<Receipt> {
    let began = Instant::now();
    loop {
        match idling.tick() {
            Tick::Released(receipt) => return Ok(receipt),
            Tick::No(decision) => {
                let waited = began.elapsed();
                ensure!(waited < PATIENCE, "not idle after {} s: {decision:?}", waited.as_secs());
                thread::sleep(TICK);
            }
        }
    }
}

// While this process is suspended it calls neither the driver nor NVML: the numbers are the helper's. Returns its
// device memory before and meanwhile, and the seconds that the driver took to suspend it and to bring it back.
fn suspend_and_resume(id: DeviceId) -> anyhow::Result<([Bytes; 2], [f64; 2])> {
    ensure!(
        id != DeviceId::Host,
        "on a GPU the server would leave the device, context and all; host memory stays with its process"
    );
    let own = OwnHelper::new("demo")?.context("the helper is not installed beside this program")?;
    let this = helper::Target::of(std::process::id())?;
    let RoundTrip { suspended, back_s } = round_trip(&own.helper, this, LIMIT_MS, false)?;
    let back_s = back_s.unwrap_or_else(|error| {
        // Each of its driver calls would wait for ever.
        page::complain(&format!("the demo ends, because it could not come back: {error:#}"));
        std::process::exit(3)
    });
    let helper::Suspended { steps, devices, verdict, .. } = suspended?;
    let before: Option<Bytes> = devices.iter().map(|device| device.process_before).sum();
    let after = devices.iter().map(|device| device.process_after).sum();
    let known = before.zip(after).filter(|_| verdict == Verdict::Released);
    let why_not = || format!("the driver does not report processes here ({verdict})");
    Ok((known.with_context(why_not)?.into(), [total_s(&steps), back_s]))
}
