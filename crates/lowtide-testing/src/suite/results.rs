//! Results as JSON, for machines that run a suite and are gone afterwards.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use lowtide_device::nvml::Nvml;
use serde::Serialize;
use serde_json::json;

use super::target::Target;

/// The outcome of one case.
#[derive(Serialize)]
pub(super) struct CaseOutcome {
    pub(super) name: String,
    pub(super) passed: bool,
    pub(super) message: Option<String>,
    pub(super) ms: u128,
}

/// Writes `SUITE-TARGET.json` into `folder`.
///
/// # Panics
/// If the file cannot be written.
pub(super) fn write(
    folder: &Path,
    (suite, target): (&str, Target),
    skipped: Option<&str>,
    cases: &[CaseOutcome],
) {
    let device = target.device().ok().map(|device| device.info().name.clone());
    let driver = if target == Target::Host {
        None
    } else {
        Nvml::load().and_then(|nvml| nvml.driver_version()).ok()
    };
    let passed = cases.iter().filter(|case| case.passed).count();
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let results = json!({
        "suite": suite,
        "target": target.to_string(),
        "device": device,
        "driver": driver,
        "unix_time_s": since.map_or(0, |since| since.as_secs()),
        "passed": passed,
        "failed": cases.len() - passed,
        "skipped": skipped,
        "cases": cases,
    });
    let text = serde_json::to_string_pretty(&results).expect("plain data");
    let file = folder.join(format!("{suite}-{target}.json"));
    std::fs::write(&file, text).expect("the results can be written");
}
