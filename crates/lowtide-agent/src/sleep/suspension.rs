//! Taking the whole process off its devices, and bringing it back.
//!
//! A suspended process has nothing on a device, not even a context. Another process, the helper, has the driver
//! do that. The process sleeps by then, and the gate keeps every call out of the driver, which would wait there, or
//! end the process. While the process is suspended the agent calls neither the driver nor NVML.
#![allow(
    unsafe_code,
    reason = "asks the C library where this library is, and names the helper as a tracer"
)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::{
    self, Connection, DeviceBytes, Helper, ProcessState, Refusal, Resume, Suspend, Suspended,
    Target,
};
use lowtide_proto::{Answer, NoRoom, Resumed, Status};
use lowtide_types::{Bytes, DeviceId};

use crate::gate;
use crate::memory::context::ProgramContext;

/// The time that the driver waits for the process's work, which there is none of.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// The time for the driver's copy of what cannot sleep, and back. A copy that takes longer goes on.
const LIMIT: Duration = Duration::from_secs(120);

/// True from the moment when the process began to exit: nothing is suspended any more.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// How this process is suspended, and what is remembered of it meanwhile.
pub(crate) struct Suspension {
    /// The reason instead, where there is no helper. Found once: the program may change its variables later,
    /// and nobody can read them meanwhile.
    helper: Result<Helper, String>,
    /// The connection over which the process was suspended. It leads back without a new file, thread or process,
    /// unless the helper has ended meanwhile.
    kept: Mutex<Option<Connection>>,
    /// This process. Found before the first suspend: looking for it takes a file.
    target: OnceLock<Target>,
    before: Mutex<Option<Before>>,
}

/// A connection to the helper for a suspend, and this process.
pub(crate) type Way = (Connection, Target);

/// What nobody can ask the driver while the process is suspended.
struct Before {
    status: Status,
    /// The memory with which the process comes back, as the helper said.
    needs: Vec<DeviceBytes>,
    /// The memory that comes back with the wake.
    maps: Vec<DeviceBytes>,
    device: Option<DeviceId>,
}

impl Suspension {
    /// Finds the helper. Starts nothing.
    pub(crate) fn new() -> Suspension {
        let (kept, target, before) = (Mutex::default(), OnceLock::new(), Mutex::default());
        Suspension { helper: helper(), kept, target, before }
    }

    /// Connects to the helper for a suspend.
    ///
    /// # Errors
    /// The reason why the process cannot be suspended.
    pub(crate) fn connect_to_suspend(&self) -> Result<Way, String> {
        check_not_exiting()?;
        self.connect()
    }

    /// Connects to the helper, and starts it where there is none.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn connect_to_helper(&self) -> Result<Connection, String> {
        let connection = self.helper.as_ref().map_err(Clone::clone)?.connect();
        connection.map_err(|error| with_causes(&error))
    }

    /// Returns whether there is a helper to suspend this process.
    pub(crate) fn has_helper(&self) -> bool {
        self.helper.is_ok()
    }

    /// Connects to the helper, and lets it attach to this process where the system asks for that.
    fn connect(&self) -> Result<Way, String> {
        self.named(self.connect_to_helper()?)
    }

    /// Returns a connection that was made before the process fell asleep, or another one to a helper that runs: it does
    /// not wait long for a question.
    pub(crate) fn renewed(&self, connection: Connection) -> Result<Connection, String> {
        if connection.is_open() {
            return Ok(connection);
        }
        let running = self.helper.as_ref().map_err(Clone::clone)?.running();
        let running = running.map_err(|error| with_causes(&error))?;
        let gone = "the helper has ended; the process stays asleep";
        Ok(self.named(running.ok_or(gone)?)?.0)
    }

    fn named(&self, connection: Connection) -> Result<Way, String> {
        // SAFETY: takes a number. Fails where nothing restricts tracing.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(connection.pid())) };
        Ok((connection, self.target()?))
    }

    fn target(&self) -> Result<Target, String> {
        if let Some(known) = self.target.get() {
            return Ok(*known);
        }
        let found = Target::of(std::process::id()).map_err(|error| with_causes(&error))?;
        Ok(*self.target.get_or_init(|| found))
    }

    /// Has the helper try the driver on a disposable process, if nobody has. An idle program has the time for that,
    /// and it is not to be the first that a driver fails with.
    pub(crate) fn try_driver(&self) {
        if let Ok((mut connection, _)) = self.connect() {
            // The result is the helper's to remember.
            let _tried = connection.ask(helper::Ask::Try);
        }
    }

    /// Remembers what nobody can ask while the process is suspended.
    pub(crate) fn remember(&self, status: Status, contexts: &[Arc<ProgramContext>]) {
        let maps = contexts.iter().filter_map(|context| {
            let (uuid, bytes) = (context.device.info().uuid.clone()?, context.asleep());
            (bytes > Bytes::ZERO).then_some(DeviceBytes { uuid, bytes })
        });
        let device = contexts.first().map(|context| context.device.id());
        *self.before() = Some(Before { status, needs: Vec::new(), maps: maps.collect(), device });
    }

    /// Returns the status of the process as it was before it was suspended, with that said; `None` if it is
    /// not suspended.
    pub(crate) fn status(&self) -> Option<Status> {
        if !gate::is_suspended() {
            return None;
        }
        self.before().as_ref().map(|before| Status { is_suspended: true, ..before.status.clone() })
    }

    /// Returns the room without which the helper does not bring the process back to a device; `None` where it is not
    /// suspended, or had nothing there.
    pub(crate) fn need_on(&self, uuid: &str) -> Option<Bytes> {
        let before = self.before();
        let before = before.as_ref().filter(|_| gate::is_suspended())?;
        let all = before.needs.iter().chain(&before.maps);
        Some(all.filter(|need| need.uuid == uuid).map(|need| need.bytes).sum())
            .filter(|sum| *sum > Bytes::ZERO)
    }

    /// Takes the process off its devices. It sleeps, and the gate is closed to every call.
    ///
    /// # Errors
    /// The reason why it is not suspended, or not known to be. Then the gate stays closed to a wake, and a touch asks
    /// for the process back.
    pub(crate) fn suspend(
        &self,
        mut connection: Connection,
        target: Target,
    ) -> Result<Suspended, String> {
        let suspend = Suspend {
            target,
            lock_limit_ms: LOCK_LIMIT.as_millis() as u64,
            limit_ms: LIMIT.as_millis() as u64,
            force: false,
            // A library that communicates is only loaded here. What its communication needs, memory that others
            // can reach, is an obstacle: with one this process would not have slept, and never gets here.
            is_alone: true,
        };
        let answer = connection.ask(helper::Ask::Suspend(suspend));
        // Without an answer nobody knows which question a later one would be for.
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) =
            answer.is_ok().then_some(connection);
        let refusal = match answer {
            Ok(helper::Answer::Suspended(suspended)) => {
                if let Some(before) = &mut *self.before() {
                    before.needs.clone_from(&suspended.needs);
                }
                return Ok(suspended);
            }
            Ok(helper::Answer::Refused { refusal }) => refusal,
            // Nobody knows what it did.
            Ok(other) => return Err(format!("the helper answered something else: {other:?}")),
            Err(error) => return Err(with_causes(&error)),
        };
        let is_back = match &refusal {
            // It goes on; the next call that needs the device waits for it.
            Refusal::Unfinished { .. } => return Err(refusal.to_string()),
            Refusal::Driver { state: ProcessState::Running, .. } => true,
            Refusal::Driver { .. } | Refusal::WrongState { .. } | Refusal::Broken { .. } => {
                matches!(self.resume(), Ok(Answer::Resumed(_)))
            }
            // What these say was found before anything was done, or is undone.
            _ => true,
        };
        if !is_back {
            return Err(format!("{refusal}; the next use of the device asks for the process back"));
        }
        gate::fall_asleep();
        Err(format!("{refusal}; the process stays asleep"))
    }

    /// Brings the process back to its devices, where it sleeps on.
    ///
    /// # Errors
    /// The reason why it stays suspended.
    pub(crate) fn resume(&self) -> Result<Answer, String> {
        let began = Instant::now();
        if !gate::is_suspended() {
            return Ok(Answer::Resumed(Resumed { took_s: 0.0, steps: Vec::new() }));
        }
        let (needs, maps, device) = match &*self.before() {
            Some(before) => (before.needs.clone(), before.maps.clone(), before.device),
            None => (Vec::new(), Vec::new(), None),
        };
        match self.ask_to_resume(&needs, &maps) {
            Ok(helper::Answer::Resumed(resumed)) => {
                gate::fall_asleep();
                let took_s = began.elapsed().as_secs_f64();
                Ok(Answer::Resumed(Resumed { took_s, steps: resumed.steps }))
            }
            Ok(helper::Answer::Refused {
                refusal: Refusal::NoRoom { device: uuid, needed, free, holders },
            }) => {
                let holders = if device.is_some() { holders } else { format!("{uuid}: {holders}") };
                let device = device.unwrap_or(DeviceId::Cuda(0));
                Ok(Answer::NoRoom(NoRoom { device, needed, free, holders }))
            }
            Ok(helper::Answer::Refused { refusal }) => Err(refusal.to_string()),
            Ok(other) => Err(format!("the helper answered something else: {other:?}")),
            Err(error) => Err(error),
        }
    }

    // Over the connection that is kept; if that has ended, over a new one, which is then kept.
    fn ask_to_resume(
        &self,
        needs: &[DeviceBytes],
        maps: &[DeviceBytes],
    ) -> Result<helper::Answer, String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.target()?;
        let limit_ms = LIMIT.as_millis() as u64;
        let resume = || {
            let (needs, maps) = (needs.to_vec(), maps.to_vec());
            helper::Ask::Resume(Resume { target, needs, maps, wait_ms: 0, limit_ms })
        };
        if let Some(mut connection) = kept.take()
            && let Ok(answer) = connection.ask(resume())
        {
            *kept = Some(connection);
            return Ok(answer);
        }
        let mut connection = self.connect()?.0;
        let answer = connection.ask(resume()).map_err(|error| with_causes(&error));
        *kept = answer.is_ok().then_some(connection);
        answer
    }

    fn before(&self) -> MutexGuard<'_, Option<Before>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that the process has begun to exit.
pub(crate) fn begin_exit() {
    IS_EXITING.store(true, SeqCst);
}

/// Checks that the process has not begun to exit.
///
/// # Errors
/// What to say where it has.
pub(crate) fn check_not_exiting() -> Result<(), String> {
    if is_exiting() { Err("the process is about to end".to_owned()) } else { Ok(()) }
}

/// Returns whether the process has begun to exit.
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(SeqCst)
}

fn helper() -> Result<Helper, String> {
    let folder = PrivateFolder::of_user().map_err(|error| with_causes(&error))?;
    let program = Helper::find_program(&own_path()).map_err(|error| with_causes(&error))?;
    Ok(Helper::new(folder.path(), program))
}

/// Returns the file of this library.
fn own_path() -> PathBuf {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let here: *const c_void = (lowtide_is_asleep as extern "C" fn() -> c_int as *const ()).cast();
    // SAFETY: an address of ours; writes one structure.
    let code = unsafe { libc::dladdr(here, found.as_mut_ptr()) };
    // SAFETY: zeros are a value of it.
    let name = unsafe { found.assume_init() }.dli_fname;
    if code == 0 || name.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the loader's C string.
    let name = unsafe { CStr::from_ptr(name) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    // `lowtide run` may have preloaded a link to it.
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Returns the version of this library, for `lowtide run`, which asks before it starts a program.
#[unsafe(no_mangle)]
extern "C" fn lowtide_agent_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns 1 if this process is suspended, else 0, for code in the process that can ask another process instead
/// of the driver: its own question would bring the process back.
#[unsafe(no_mangle)]
extern "C" fn lowtide_is_suspended() -> c_int {
    c_int::from(gate::is_suspended())
}

/// Returns 1 if this process is asleep or suspended, else 0: what a framework counts as its memory is then not on
/// the device.
#[unsafe(no_mangle)]
extern "C" fn lowtide_is_asleep() -> c_int {
    c_int::from(gate::is_asleep())
}

/// Says an error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
