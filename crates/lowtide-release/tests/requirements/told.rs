//! R29, R31, R32, R34–R36: what people are told, and that the device is waited for.

use std::sync::{Arc, OnceLock};

use lowtide_device::cuda::Driver;
use lowtide_device::nvml::Nvml;
use lowtide_device::{Attempt, Bytes, Error, processes, survey};
use lowtide_pool::SleepPolicy;
use lowtide_release::{Gate, HookPoint, Ladder, LedgerKind, Reading, Request, Target, Verdict};
use lowtide_testing::double::Double;
use lowtide_testing::suite;
use tracing::Level;

use super::ground::Ground;
use super::pieces::{Framework, Log, Store, Watched, logged};
use super::proofs;

proofs! {
    r29_the_driver_is_looked_up_under_names_that_are_said needs [];
    r31_all_streams_are_synchronised_before_and_after needs ["quiesce", "trim"];
    r32_the_summary_has_before_after_and_freed needs ["trim"];
    r34_a_missed_target_names_what_is_left_and_what_frees_it needs ["trim", "sleep"];
    r35_each_step_says_what_it_touched_or_that_it_was_nothing needs ["trim"];
    r36_others_on_the_device_and_what_works_are_shown needs [];
}

fn r29_the_driver_is_looked_up_under_names_that_are_said(_: &Ground) {
    let survey = survey::survey();
    let libraries = [
        ("LOWTIDE_CUDA_LIBRARY", survey.cuda.tried, Driver::load().err()),
        ("LOWTIDE_NVML_LIBRARY", survey.nvml.tried, Nvml::load().err()),
    ];
    for (variable, tried, error) in libraries {
        let is_found = |attempt: &Attempt| attempt.failure.is_none();
        // A variable names one file and no other; without it there are several names.
        let is_named = std::env::var_os(variable).is_some_and(|path| !path.is_empty());
        if tried.last().is_some_and(is_found) {
            assert!(
                !tried[..tried.len() - 1].iter().any(is_found),
                "the first that loads: {tried:?}"
            );
            continue;
        }
        assert!(is_named || tried.len() >= 2, "{tried:?}");
        let Some(Error::NoLibrary { .. }) = &error else { panic!("{variable}: {error:?}") };
        let text = error.unwrap().to_string();
        for attempt in tried {
            assert!(text.contains(&attempt.name), "{} is not in: {text}", attempt.name);
            assert!(attempt.failure.is_some_and(|said| !said.is_empty()), "the loader's words");
        }
        assert!(text.contains(variable) || is_named, "and what to do: {text}");
    }
}

fn r31_all_streams_are_synchronised_before_and_after(ground: &Ground) {
    let log = Log::default();
    let gate: Arc<OnceLock<Gate>> = Arc::default();
    let (noting, looking) = (log.clone(), Arc::clone(&gate));
    let device = Watched::new(ground, move || {
        let is_open = looking.get().is_some_and(|gate| gate.state().open);
        noting.note(if is_open { "synchronise, open" } else { "synchronise" });
    });
    let releaser = ground.releaser_with(device, Arc::new(ground.clock.clone()));
    gate.set(releaser.gate().clone()).unwrap();
    let noting = log.clone();
    let framework = Framework::noting(ground, "framework", move || noting.note("trim"));
    drop(framework.tensor(16));
    let model = Store::new(ground, "model", 8);
    let _plugged = [
        releaser.add_allocator(framework.clone()),
        releaser.add_hook(HookPoint::ToHost, model.hook(&log)),
    ];
    let ladder = Ladder::of(vec![
        Arc::new(lowtide_release::rungs::Quiesce),
        Arc::new(lowtide_release::rungs::TO_HOST),
        Arc::new(lowtide_release::rungs::Trim),
    ]);
    releaser.release(Request::new("idle", ladder));
    ground.assert_in_use(0, "all is back");
    let said = log.take();
    let expected = ["synchronise", "model", "synchronise", "trim", "synchronise", "synchronise"];
    assert_eq!(said, expected, "the last with the gate still closed");
}

fn mib(bytes: Bytes) -> String {
    let hundredths = (bytes.0 * 100 + (1 << 19)) >> 20;
    format!("{}.{:02} MiB", hundredths / 100, hundredths % 100)
}

fn r32_the_summary_has_before_after_and_freed(ground: &Ground) {
    let _live = ground.block(16);
    drop(ground.block(24));
    let before = ground.device.usage().unwrap().in_use();
    let receipt = ground.releaser.empty_cache();
    let after = ground.device.usage().unwrap().in_use();
    let own = |reading: Reading| {
        reading.own.map_or_else(String::new, |own| format!(" ({} by this process)", mib(own)))
    };
    let (driver, own) = ([before, after].map(mib), [receipt.before, receipt.after].map(own));
    let freed = mib(Bytes(receipt.freed_bytes.unwrap().unsigned_abs()));
    assert_eq!(
        receipt.summary(),
        format!(
            "Before: allocated     16.00 MiB, reserved     40.00 MiB; in use on the device {:>13}{}\n\
             After:  allocated     16.00 MiB, reserved     16.00 MiB; in use on the device {:>13}{}\n\
             Freed:  allocated      0.00 MiB, reserved     24.00 MiB; in use on the device {:>13}",
            driver[0], own[0], driver[1], own[1], freed
        )
    );
    if ground.target == suite::Target::Host {
        assert_eq!(
            (driver, freed.as_str()),
            (["40.00 MiB", "16.00 MiB"].map(str::to_owned), "24.00 MiB")
        );
    }
}

fn r34_a_missed_target_names_what_is_left_and_what_frees_it(ground: &Ground) {
    let _weights = ground.tagged("weights", SleepPolicy::Offload, 24);
    drop(ground.block(16));
    let to_floor = |ladder| ground.releaser.release(Request::new("idle", ladder).to(Target::Floor));
    let (receipt, lines) = logged(Level::WARN, || to_floor(Ladder::cache()));
    ground.assert_in_use(24, "the weights are left");
    assert_eq!(receipt.verdict, Verdict::Partial);
    let left = "24.0 MiB are live (weights, since ";
    let way = "): free them, or climb to `sleep`";
    let is_told = |line: &String| line.starts_with(left) && line.ends_with(way);
    assert!(receipt.advice.iter().any(is_told), "{receipt}");
    let [line] = lines.as_slice() else { panic!("one clear warning: {lines:?}") };
    assert!(line.starts_with("WARN") && line.contains(left), "{line}");
    assert!(!line.contains("cached"), "what went is not named: {line}");
    // What it advises helps.
    let (receipt, lines) = logged(Level::WARN, || to_floor(Ladder::whole()));
    ground.assert_in_use(0, "it climbed to sleep");
    assert!(receipt.rung("fallback").is_none(), "and no further: {receipt}");
    assert_eq!((receipt.verdict, lines), (Verdict::Released, Vec::new()));
}

fn r35_each_step_says_what_it_touched_or_that_it_was_nothing(ground: &Ground) {
    drop(ground.block(24));
    let told = || {
        let (receipt, mut lines) = logged(Level::DEBUG, || ground.releaser.empty_cache());
        lines.retain(|line| line.starts_with("DEBUG"));
        assert_eq!(lines.len(), receipt.rungs.len(), "a line for each step: {lines:?}");
        lines
    };
    let lines = told();
    ground.assert_in_use(0, "trimmed");
    assert!(lines[0].contains("skipped: no collector"), "{lines:?}");
    assert!(lines[1].contains("touched pool, cached memory"), "{lines:?}");
    let lines = told();
    ground.assert_in_use(0, "nothing more");
    assert!(
        lines[1].contains("0.0 MiB freed") && lines[1].contains("touched nothing"),
        "{lines:?}"
    );
}

fn r36_others_on_the_device_and_what_works_are_shown(ground: &Ground) {
    let _chunk = ground.chunk(24);
    // Only the double can be told to have somebody else on it.
    let double = (ground.target == suite::Target::Double).then(Double::take);
    if let Some(double) = &double {
        double.configure("foreign=4242:48MiB");
    }
    let usage = ground.device.usage().unwrap();
    let holders = processes::of(&ground.device).unwrap();
    assert_eq!(holders.sum(), (usage.total - usage.free).0.cast_signed(), "{holders}");
    let held = |pid| holders.processes.iter().find(|holder| holder.pid == pid)?.held;
    if ground.target != suite::Target::Cuda {
        // In a container a GPU's driver may tell other PIDs than ours.
        assert!(held(std::process::id()) >= Some(Bytes::mib(24)), "{holders}");
    }
    let ledger = ground.releaser.ledger().unwrap();
    assert_eq!(ledger.sum(), usage.in_use().0.cast_signed(), "{ledger}");
    if double.is_some() {
        assert_eq!(held(4242), Some(Bytes::mib(48)), "{holders}");
        assert_eq!(ledger.of(LedgerKind::Others), Bytes::mib(48), "{ledger}");
        assert!(ledger.to_string().contains("pid 4242"), "{ledger}");
    }
    let survey = survey::survey();
    let id = ground.device.info().id;
    let here = survey.devices.iter().find(|device| device.info.id == id).expect("it is listed");
    for what in ["virtual_memory", "digest", "suspend", "per_process"] {
        let capability = &here.capabilities[what];
        assert!(!capability.detail.is_empty(), "{what}: how that is known");
        assert!(capability.works || capability.advice.is_some(), "{what}: or what to do");
    }
    for library in [&survey.cuda, &survey.nvml] {
        assert_eq!(library.available, library.reason.is_none(), "{library:?}");
        assert!(!library.available || library.version.is_some(), "{library:?}");
    }
}
