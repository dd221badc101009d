//! The helper, as commands use it: that of this user, what it has suspended, and one for a command alone.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};
use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::{
    Answer, Ask, DeviceBytes, Helper, HelperError, Refusal, Resume, StepTime, Suspend, Suspended,
    Target, is_privileged,
};
use serde::Serialize;

use crate::text::page;

fn this_program() -> anyhow::Result<PathBuf> {
    let program = env::current_exe().context("finding this program")?;
    Ok(program.canonicalize().unwrap_or(program))
}

/// Returns the helper of this user.
pub(super) fn of_user() -> anyhow::Result<Helper> {
    let program = Helper::find_program(&this_program()?)?;
    Ok(Helper::new(PrivateFolder::of_user()?.path(), program))
}

/// A helper for one command alone. It ends with its folder, which is removed when this is dropped.
pub(crate) struct OwnHelper {
    pub(crate) helper: Helper,
    folder: PrivateFolder,
}

impl OwnHelper {
    /// Describes one; `None` if the helper is not installed. Starts nothing.
    pub(crate) fn new(name: &str) -> anyhow::Result<Option<OwnHelper>> {
        let program = match Helper::find_program(&this_program()?) {
            Ok(program) => program,
            Err(HelperError::NotInstalled { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let name = format!("{name}-{}", std::process::id());
        let folder = PrivateFolder::create(&PrivateFolder::of_user()?.path().join(name))?;
        Ok(Some(OwnHelper { helper: Helper::new(folder.path(), program), folder }))
    }
}

impl Drop for OwnHelper {
    fn drop(&mut self) {
        // The helper ends when its socket is gone.
        if let Err(error) = fs::remove_dir_all(self.folder.path()) {
            page::complain(&format!("{} stays: {error}", self.folder.path().display()));
        }
    }
}

/// The variable that a helper of root does not take, and what to do instead.
const LIBRARY: &str = "LOWTIDE_CUDA_LIBRARY";
const IGNORED: &str = "LOWTIDE_CUDA_LIBRARY does not reach the helper, which runs as root; name the library's folder in \
                       /etc/ld.so.conf.d and run ldconfig";

/// Returns the error that an answer is which was not hoped for.
pub(crate) fn refused<T>(answer: Answer) -> anyhow::Result<T> {
    match answer {
        Answer::Refused { refusal } => {
            let about_driver = matches!(refusal, Refusal::NoDriver { .. });
            let ignored = about_driver && is_privileged() && env::var_os(LIBRARY).is_some();
            let error = anyhow::Error::from(refusal);
            Err(if ignored { error.context(IGNORED) } else { error })
        }
        answer => bail!("the helper answered something else: {}", answer.to_line()),
    }
}

/// The longest time for each step of a round trip.
const LIMIT_MS: u64 = 60_000;

/// A process that was suspended and brought back.
pub(super) struct RoundTrip {
    /// What the helper said when it was off the device.
    pub(super) suspended: anyhow::Result<Suspended>,
    /// The seconds that the driver took to bring it back.
    pub(super) back_s: anyhow::Result<f64>,
}

/// Suspends a process and brings it back. The lock of its driver is waited for at most `lock_limit_ms`.
pub(super) fn round_trip(
    helper: &Helper,
    target: Target,
    lock_limit_ms: u64,
    force: bool,
) -> anyhow::Result<RoundTrip> {
    let mut connection = helper.connect()?;
    let (limit_ms, wait_ms, is_alone) = (LIMIT_MS, lock_limit_ms, false);
    let suspend = Suspend { target, lock_limit_ms, limit_ms, force, is_alone };
    let suspended = match connection.ask(Ask::Suspend(suspend)) {
        Ok(Answer::Suspended(suspended)) => Ok(suspended),
        Ok(answer @ Answer::Refused { .. }) => return refused(answer),
        // Without an answer nobody knows whether it is suspended.
        Ok(answer) => refused(answer),
        Err(error) => Err(error.into()),
    };
    let resume = Resume { target, needs: Vec::new(), maps: Vec::new(), wait_ms, limit_ms };
    let back_s = match connection.ask(Ask::Resume(resume)) {
        Ok(Answer::Resumed(resumed)) => Ok(total_s(&resumed.steps)),
        Ok(answer) => refused(answer),
        Err(error) => Err(error.into()),
    };
    Ok(RoundTrip { suspended, back_s })
}

/// Returns the time that these steps took.
pub(super) fn total_s(steps: &[StepTime]) -> f64 {
    steps.iter().map(|time| time.took_s).sum()
}

/// A process that is suspended, for `ps` and `status`.
#[derive(Debug, Serialize)]
pub(crate) struct SuspendedProcess {
    /// The process.
    pub(crate) pid: u32,
    /// The step that was begun last; `None` if nothing is under way.
    pub(crate) step: Option<&'static str>,
    /// The memory that must be free before it can come back, by device.
    pub(crate) needs: Vec<DeviceBytes>,
}

impl SuspendedProcess {
    /// Returns the need in words.
    pub(crate) fn need(&self) -> String {
        let needs: Vec<String> =
            self.needs.iter().map(|need| format!("{} on {}", need.bytes, need.uuid)).collect();
        match (self.step, needs.as_slice()) {
            (Some(step), _) => format!("on its way ({step})"),
            (None, []) => "suspended; what it needs to come back is not known".to_owned(),
            (None, needs) => format!("suspended; needs {} to come back", needs.join(", ")),
        }
    }
}

/// Returns the processes of this user that are suspended or on their way, by the helper's journal. Asks no
/// driver and starts nothing.
pub(crate) fn suspended() -> anyhow::Result<Vec<SuspendedProcess>> {
    let folder = PrivateFolder::of_user()?;
    if let Some(journal) = lowtide_helper::unreadable(folder.path())? {
        page::complain(&format!(
            "{} cannot be read: processes that were suspended before are not listed. `lowtide resume PID` brings \
             one back; remove the file when none is left",
            journal.display()
        ));
    }
    suspended_now()
}

/// Returns the same without a word about a journal that cannot be read.
pub(super) fn suspended_now() -> anyhow::Result<Vec<SuspendedProcess>> {
    let records = lowtide_helper::records(PrivateFolder::of_user()?.path())?;
    let alive = records
        .into_iter()
        .filter(|record| Target::of(record.target.pid).is_ok_and(|target| target == record.target));
    let process = |record: lowtide_helper::Record| SuspendedProcess {
        pid: record.target.pid,
        step: record.step.map(lowtide_proto::helper::Step::as_str),
        needs: record.needs,
    };
    Ok(alive.map(process).collect())
}
