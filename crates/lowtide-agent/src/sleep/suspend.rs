//! Taking the whole process off its devices, and bringing it back.
//!
//! A suspended process has nothing on a device, not even a context. Another process, the helper, has the driver
//! do that. First the process sleeps, because the driver's own copy is slow; then the gate keeps every call out
//! of the driver, which would wait there, or end the process. While the process is suspended the agent calls
//! neither the driver nor NVML.
#![allow(
    unsafe_code,
    reason = "asks the C library where this library is, and for what runs at exit"
)]

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::{self, DeviceBytes, Helper, Refusal, Resume, Suspend, Target};
use lowtide_proto::{Answer, NoRoom, Resumed, Status};
use lowtide_types::{Bytes, DeviceId};

use crate::control::worker::Job;
use crate::gate;
use crate::memory::allocations::Home;
use crate::say::say;
use crate::sleep::agent::{self, Agent};

/// The time that the driver waits for the process's work, which there is none of.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// The time for the driver's copy of what cannot sleep, and back. A copy that takes longer goes on.
const LIMIT: Duration = Duration::from_secs(120);
/// The time that calls of other threads have to return before a suspend gives up.
const CLOSING_LIMIT: Duration = Duration::from_millis(5);
/// The time for which a process that exits waits for room on the device.
const EXIT_LIMIT: Duration = Duration::from_secs(10);
/// The pause between two attempts to find room at exit.
const PAUSE: Duration = Duration::from_millis(50);

/// True from the moment when the process began to exit: nothing is suspended any more.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// How this process is suspended, and what is known of it meanwhile.
pub(crate) struct Suspending {
    /// The reason instead, where there is no helper. Found once: the program may change its variables later,
    /// and nobody can read them meanwhile.
    helper: Result<Helper, String>,
    known: Mutex<Option<Known>>,
}

/// What nobody can ask the driver while the process is suspended.
struct Known {
    status: Status,
    /// The memory that comes back with the wake.
    maps: Vec<DeviceBytes>,
    device: Option<DeviceId>,
}

impl Suspending {
    /// Finds the helper, and has the process resumed before it exits. Starts nothing.
    pub(crate) fn new() -> Suspending {
        watch_exit();
        Suspending { helper: helper(), known: Mutex::default() }
    }

    /// Connects to the helper, and lets it attach to this process where the system asks for that.
    fn connect(&self) -> Result<(helper::Connection, Target), String> {
        let connection = self.helper.as_ref().map_err(Clone::clone)?.connect();
        let connection = connection.map_err(|error| with_causes(&error))?;
        // SAFETY: takes a number. Fails where nothing restricts tracing.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(connection.pid())) };
        let target = Target::of(std::process::id()).map_err(|error| with_causes(&error))?;
        Ok((connection, target))
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the status of the process as it was before it was suspended, with that said; `None` if it is
    /// not suspended.
    pub(crate) fn status(&self) -> Option<Status> {
        if !gate::is_suspended() {
            return None;
        }
        self.known().as_ref().map(|known| Status { is_suspended: true, ..known.status.clone() })
    }
}

/// Has the helper try the driver on a disposable process, if nobody has. An idle program has the time for that,
/// and it is not to be the first that a driver fails with.
pub(crate) fn try_driver() {
    let Some(agent) = agent::get() else { return };
    if let Ok((mut connection, _)) = agent.suspending.connect() {
        // The result is the helper's to remember.
        let _tried = connection.ask(helper::Ask::Try);
    }
}

/// Returns whether an idle program is to be suspended, as `LOWTIDE_IDLE_TO` says.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| match std::env::var("LOWTIDE_IDLE_TO").as_deref() {
        Ok("suspend") => true,
        Ok("sleep" | "") | Err(_) => false,
        Ok(word) => {
            say!("LOWTIDE_IDLE_TO={word}: it is `sleep` or `suspend`");
            false
        }
    })
}

impl Agent {
    /// Takes the process off its devices. Called by the worker.
    pub(crate) fn suspend(&self) -> Answer {
        if gate::is_suspended() {
            return Answer::Asleep;
        }
        if IS_EXITING.load(SeqCst) {
            return refused("the process is about to end".to_owned());
        }
        // Before the gate closes: a helper that has to be started takes its time.
        let (mut connection, target) = match self.suspending.connect() {
            Ok(connected) => connected,
            Err(why) => return refused(why),
        };
        let receipts = match self.sleep() {
            Answer::Slept { receipts } if gate::is_asleep() => receipts,
            Answer::Asleep => Vec::new(),
            answer => return answer,
        };
        let (status, homes) = (self.status(), self.memory.homes());
        let maps = homes.iter().filter_map(|home| maps_of(home)).collect();
        let device = homes.first().map(|home| home.device.id());
        *self.suspending.known() = Some(Known { status, maps, device });
        if !gate::suspend(CLOSING_LIMIT) {
            return refused(
                "busy: a driver call is under way; the process stays asleep".to_owned(),
            );
        }
        let suspend = Suspend {
            target,
            lock_limit_ms: LOCK_LIMIT.as_millis() as u64,
            limit_ms: LIMIT.as_millis() as u64,
            force: false,
            // A library that communicates is only loaded here. What its communication needs, memory that others
            // can reach, is an obstacle: with one this process would not have slept, and never gets here.
            is_alone: true,
        };
        match connection.ask(helper::Ask::Suspend(suspend)) {
            Ok(helper::Answer::Suspended(suspended)) => Answer::Suspended { receipts, suspended },
            // It goes on; the next call that needs the device waits for it.
            Ok(helper::Answer::Refused { refusal: refusal @ Refusal::Unfinished { .. } }) => {
                refused(refusal.to_string())
            }
            Ok(helper::Answer::Refused { refusal }) => {
                gate::fall_asleep();
                refused(format!("{refusal}; the process stays asleep"))
            }
            // Nobody knows what it did. The next call that needs the device asks for the process back.
            Ok(other) => refused(format!("the helper answered something else: {other:?}")),
            Err(error) => refused(with_causes(&error)),
        }
    }

    /// Brings the process back to its devices, where it sleeps on. Called by the worker.
    pub(crate) fn resume(&self) -> Answer {
        let began = Instant::now();
        if !gate::is_suspended() {
            return Answer::Resumed(Resumed { took_s: 0.0, steps: Vec::new() });
        }
        let (mut connection, target) = match self.suspending.connect() {
            Ok(connected) => connected,
            Err(why) => return refused(why),
        };
        let (maps, device) = match &*self.suspending.known() {
            Some(known) => (known.maps.clone(), known.device),
            None => (Vec::new(), None),
        };
        let limit_ms = LIMIT.as_millis() as u64;
        let resume = Resume { target, maps, wait_ms: 0, limit_ms };
        match connection.ask(helper::Ask::Resume(resume)) {
            Ok(helper::Answer::Resumed(resumed)) => {
                gate::fall_asleep();
                let took_s = began.elapsed().as_secs_f64();
                Answer::Resumed(Resumed { took_s, steps: resumed.steps })
            }
            Ok(helper::Answer::Refused {
                refusal: Refusal::NoRoom { device: uuid, needed, free, holders },
            }) => {
                let holders = if device.is_some() { holders } else { format!("{uuid}: {holders}") };
                let device = device.unwrap_or(DeviceId::Cuda(0));
                Answer::NoRoom(NoRoom { device, needed, free, holders })
            }
            Ok(helper::Answer::Refused { refusal }) => refused(refusal.to_string()),
            Ok(other) => refused(format!("the helper answered something else: {other:?}")),
            Err(error) => refused(with_causes(&error)),
        }
    }
}

fn maps_of(home: &Home) -> Option<DeviceBytes> {
    let (uuid, bytes) = (home.device.info().uuid.clone()?, home.asleep());
    (bytes > Bytes::ZERO).then_some(DeviceBytes { uuid, bytes })
}

fn helper() -> Result<Helper, String> {
    let folder = PrivateFolder::of_user().map_err(|error| with_causes(&error))?;
    let program = Helper::find_program(&own_path()).map_err(|error| with_causes(&error))?;
    Ok(Helper::new(folder.path(), program))
}

/// Returns the file of this library.
fn own_path() -> PathBuf {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let here: *const c_void = (is_wanted as fn() -> bool as *const ()).cast();
    // SAFETY: an address of ours; writes one structure.
    let code = unsafe { libc::dladdr(here, found.as_mut_ptr()) };
    // SAFETY: zeros are a value of it.
    let name = unsafe { found.assume_init() }.dli_fname;
    if code == 0 || name.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the loader's C string.
    let name = unsafe { CStr::from_ptr(name) };
    Path::new(OsStr::from_bytes(name.to_bytes())).to_owned()
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

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Has the process resumed before it exits: what the driver does at exit comes after what is registered here.
fn watch_exit() {
    // SAFETY: the function lives as long as this library, which is never unloaded.
    unsafe { on_exit(before_exit, ptr::null_mut()) };
}

extern "C" fn before_exit(status: c_int, _argument: *mut c_void) {
    IS_EXITING.store(true, SeqCst);
    let Some(agent) = agent::get() else { return };
    let deadline = Instant::now() + EXIT_LIMIT;
    while gate::is_suspended() {
        if !matches!(agent.ask(Job::Resume), Answer::Resumed(_)) && Instant::now() > deadline {
            say!(
                "the process ends while it is suspended: there is no room on the device for its end"
            );
            // SAFETY: writes what the program has printed.
            unsafe { libc::fflush(ptr::null_mut()) };
            // SAFETY: ends the process, as it was about to.
            unsafe { libc::_exit(status) };
        }
        if gate::is_suspended() {
            std::thread::sleep(PAUSE);
        }
    }
}

fn refused(reason: String) -> Answer {
    Answer::Refused { reason }
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
