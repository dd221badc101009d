//! The idle server off the device altogether: this process asks a helper to suspend it, and to bring it back.
//!
//! While it is suspended it calls neither the driver nor NVML. The numbers are the helper's.

use lowtide::device::{Bytes, DeviceId};
use lowtide::release::Verdict;
use lowtide_proto::helper::{
    Answer, Ask, Connection, Resume, StepTime, Suspend, Suspended, Target,
};
use serde::Serialize;

use super::setup::Setup;
use crate::commands::suspend_trial::{OwnHelper, refused};
use crate::text::page;

/// The longest time for each step.
const LIMIT_MS: u64 = 60_000;

/// The idle server suspended, or the reason why that is not shown.
#[derive(Serialize)]
pub(super) struct Away {
    /// The device memory of this process before it was suspended.
    pub(super) before_bytes: Option<Bytes>,
    /// The same while it was suspended.
    pub(super) after_bytes: Option<Bytes>,
    /// The time that the driver took to take it off the device.
    pub(super) out_s: Option<f64>,
    /// The time that the driver took to bring it back.
    pub(super) back_s: Option<f64>,
    /// The reason why it is not shown.
    pub(super) why_not: Option<String>,
}

impl Away {
    fn not(why: String) -> Away {
        Away {
            before_bytes: None,
            after_bytes: None,
            out_s: None,
            back_s: None,
            why_not: Some(why),
        }
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

/// Suspends this process, whose memory sleeps, and brings it back.
pub(super) fn go(setup: &Setup) -> Away {
    if !matches!(setup.device.id(), DeviceId::Cuda(_)) {
        let why = "on a GPU the server would leave the device, context and all; host memory stays \
                   with its process";
        return Away::not(why.to_owned());
    }
    go_and_return().unwrap_or_else(|error| Away::not(format!("{error:#}")))
}

fn go_and_return() -> anyhow::Result<Away> {
    let Some(own) = OwnHelper::new("demo")? else {
        return Ok(Away::not("the helper is not installed beside this program".to_owned()));
    };
    let (mut connection, target) = (own.helper.connect()?, Target::of(std::process::id())?);
    let (lock_limit_ms, limit_ms, force, is_alone) = (LIMIT_MS, LIMIT_MS, false, false);
    let ask = Suspend { target, lock_limit_ms, limit_ms, force, is_alone };
    let Suspended { steps, devices, verdict, .. } = match connection.ask(Ask::Suspend(ask)) {
        Ok(Answer::Suspended(suspended)) => suspended,
        Ok(answer @ Answer::Refused { .. }) => return refused(answer),
        // Nobody knows whether it is suspended.
        _ => return Ok(Away::not(come_back(&mut connection, target).1)),
    };
    let (back_s, _) = come_back(&mut connection, target);
    let before = devices.iter().map(|device| device.process_before).sum();
    let after = devices.iter().map(|device| device.process_after).sum();
    if verdict != Verdict::Released {
        return Ok(Away::not(format!("the driver does not report processes here ({verdict})")));
    }
    let out_s = Some(total(&steps));
    Ok(Away { before_bytes: before, after_bytes: after, out_s, back_s, why_not: None })
}

/// Brings this process back. One that cannot come back ends: each of its driver calls would wait for ever.
fn come_back(connection: &mut Connection, target: Target) -> (Option<f64>, String) {
    let ask = Resume { target, maps: Vec::new(), wait_ms: LIMIT_MS, limit_ms: LIMIT_MS };
    match connection.ask(Ask::Resume(ask)) {
        Ok(Answer::Resumed(resumed)) => {
            (Some(total(&resumed.steps)), "the helper gave no answer".to_owned())
        }
        answer => {
            page::complain(&format!("the demo ends, because it could not come back: {answer:?}"));
            std::process::exit(3);
        }
    }
}

fn total(steps: &[StepTime]) -> f64 {
    steps.iter().map(|time| time.took_s).sum()
}
