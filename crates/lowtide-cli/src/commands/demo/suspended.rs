//! The idle server off the device altogether: this process asks a helper to suspend it, and to bring it back.
//!
//! While it is suspended it calls neither the driver nor NVML. The numbers are the helper's.

use lowtide::device::{Bytes, DeviceId};
use lowtide::release::Verdict;
use lowtide_proto::helper::{
    Answer, Ask, Connection, Resume, StepTime, Suspend, Suspended, Target,
};
use serde::Serialize;

use crate::commands::helper::{OwnHelper, refused};
use crate::text::page;

/// The longest time for each step.
const LIMIT_MS: u64 = 60_000;

/// The idle server suspended, or the reason why that is not shown.
#[derive(Default, Serialize)]
pub(super) struct Suspension {
    /// The device memory of this process before it was suspended.
    before_bytes: Option<Bytes>,
    /// The same while it was suspended.
    pub(super) after_bytes: Option<Bytes>,
    /// The time that the driver took to take it off the device.
    out_s: Option<f64>,
    /// The time that the driver took to bring it back.
    back_s: Option<f64>,
    /// The reason why it is not shown.
    why_not: Option<String>,
}

impl Suspension {
    /// Suspends this process, whose memory sleeps, and brings it back.
    pub(super) fn try_out(id: DeviceId) -> Suspension {
        if !matches!(id, DeviceId::Cuda(_)) {
            return Suspension::not(
                "on a GPU the server would leave the device, context and all; host memory stays with its process",
            );
        }
        go_and_return().unwrap_or_else(|error| Suspension::not(format!("{error:#}")))
    }

    fn not(why: impl Into<String>) -> Suspension {
        Suspension { why_not: Some(why.into()), ..Suspension::default() }
    }

    /// Returns it in words.
    pub(super) fn words(&self) -> String {
        let bytes = self.before_bytes.zip(self.after_bytes);
        match (bytes, self.out_s.zip(self.back_s), &self.why_not) {
            (Some((before, after)), Some((out_s, back_s)), _) => format!(
                "context and all: {before} → {after} in {out_s:.2} s, back in {back_s:.2} s"
            ),
            (_, _, why) => format!("not shown: {}", why.as_deref().unwrap_or("unknown")),
        }
    }
}

fn go_and_return() -> anyhow::Result<Suspension> {
    let Some(own) = OwnHelper::new("demo")? else {
        return Ok(Suspension::not("the helper is not installed beside this program"));
    };
    let (mut connection, target) = (own.helper.connect()?, Target::of(std::process::id())?);
    let (lock_limit_ms, limit_ms, force, is_alone) = (LIMIT_MS, LIMIT_MS, false, false);
    let ask = Suspend { target, lock_limit_ms, limit_ms, force, is_alone };
    let answer = connection.ask(Ask::Suspend(ask));
    if let Ok(answer @ Answer::Refused { .. }) = answer {
        return refused(answer);
    }
    // Without an answer nobody knows whether it is suspended.
    let back_s = Some(come_back(&mut connection, target));
    let Ok(Answer::Suspended(Suspended { steps, devices, verdict, .. })) = answer else {
        return Ok(Suspension::not("the helper gave no answer"));
    };
    if verdict != Verdict::Released {
        let why = format!("the driver does not report processes here ({verdict})");
        return Ok(Suspension::not(why));
    }
    let before_bytes = devices.iter().map(|device| device.process_before).sum();
    let after_bytes = devices.iter().map(|device| device.process_after).sum();
    let out_s = Some(total(&steps));
    Ok(Suspension { before_bytes, after_bytes, out_s, back_s, why_not: None })
}

/// Brings this process back, and returns how long that took. One that cannot come back ends: each of its
/// driver calls would wait for ever.
fn come_back(connection: &mut Connection, target: Target) -> f64 {
    let ask = Resume { target, maps: Vec::new(), wait_ms: LIMIT_MS, limit_ms: LIMIT_MS };
    match connection.ask(Ask::Resume(ask)) {
        Ok(Answer::Resumed(resumed)) => total(&resumed.steps),
        answer => {
            page::complain(&format!("the demo ends, because it could not come back: {answer:?}"));
            std::process::exit(3);
        }
    }
}

fn total(steps: &[StepTime]) -> f64 {
    steps.iter().map(|time| time.took_s).sum()
}
