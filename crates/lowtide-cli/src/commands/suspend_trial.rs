//! Whether a process can be suspended here, found out on a disposable one.
//!
//! A helper of its own does it, in a folder that is removed afterwards: `doctor` leaves no process behind. The
//! disposable process is no child of that helper, as programs of people are none.

use lowtide_device::DeviceId;
use lowtide_device::nvml::Nvml;
use lowtide_device::private_files::PrivateFolder;
use lowtide_device::survey::Capability;
use lowtide_helper::trial;
use lowtide_proto::helper::{self, Refusal, Target};

use crate::commands::floor;
use crate::commands::helper::{OwnHelper, RoundTrip, round_trip, total_s};

/// The longest wait for the driver's lock: nothing else runs in the disposable process.
const LOCK_LIMIT_MS: u64 = 10_000;

/// The times that the trial took, in seconds.
struct Trial {
    out_s: f64,
    back_s: f64,
}

/// Tries it, and notes the result with a capability that the driver announces.
pub(crate) fn note(capability: &mut Capability, id: DeviceId) {
    if !capability.works {
        return;
    }
    let tried = attempt(id);
    remember(&tried);
    match tried {
        Ok(Some(Trial { out_s, back_s })) => {
            capability.detail = format!(
                "a process was taken off the device in {out_s:.2} s and came back in {back_s:.2} s"
            );
            capability.advice = None;
        }
        Ok(None) => {
            capability
                .detail
                .push_str("; not tried: the helper is not installed beside this program");
        }
        Err(error) => {
            capability.works = false;
            capability.detail = format!("tried, and failed: {error:#}");
            capability.advice = advice(&error);
        }
    }
}

/// Remembers what the trial says about the driver: the helper asks before it suspends a process.
fn remember(tried: &anyhow::Result<Option<Trial>>) {
    let refusal = |error: &anyhow::Error| error.downcast_ref::<Refusal>().cloned();
    let failure = match tried {
        Ok(Some(_)) => None,
        Ok(None) => return,
        Err(error) => match refusal(error).filter(trial::is_about_driver) {
            Some(refusal) => Some(refusal.to_string()),
            None => return,
        },
    };
    let driver = Nvml::kept().and_then(|nvml| nvml.driver_version());
    if let (Ok(driver), Ok(folder)) = (driver, PrivateFolder::of_user()) {
        // It is tried again where it could not be written.
        let _written = trial::remember(&folder, &helper::Trial { driver, failure });
    }
}

fn advice(error: &anyhow::Error) -> Option<String> {
    let advice = match error.downcast_ref::<Refusal>()? {
        Refusal::Forbidden { .. } => {
            "programs that are started with `lowtide run` name the helper as their tracer; for others, as root: \
             sysctl kernel.yama.ptrace_scope=0"
        }
        Refusal::NoRoom { .. } => "`lowtide ps` shows what else uses the device",
        _ => return None,
    };
    Some(advice.to_owned())
}

/// Suspends and resumes a process with a bare context; `None` if the helper is not installed.
fn attempt(id: DeviceId) -> anyhow::Result<Option<Trial>> {
    let Some(own) = OwnHelper::new("trial")? else { return Ok(None) };
    let RoundTrip { suspended, back_s } = floor::with_bare_process(id, |pid| {
        round_trip(&own.helper, Target::of(pid)?, LOCK_LIMIT_MS, true)
    })?;
    Ok(Some(Trial { out_s: total_s(&suspended?.steps), back_s: back_s? }))
}
