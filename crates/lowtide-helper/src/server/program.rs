//! The start of the program: its variables, leaving its starter, one instance.
#![allow(unsafe_code, reason = "forks before there is any thread, and sets this process up")]

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::private_files::{PrivateFileError, PrivateFolder};
use lowtide_device::tallies;
use lowtide_proto::helper::is_privileged;
use lowtide_proto::line::{SocketFile, at_socket, is_from_this_user};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::{process, stdio};

use crate::operation::journal::{Journal, name_of_journal, name_of_socket};
use crate::operation::lock_table::LockTable;
use crate::operation::machine_locks::MachineLocks;
use crate::operation::service::Service;
use crate::operation::{recovery, trial};
use crate::process::checkpoint::CheckpointDriver;
use crate::server::serving::{self, Place};
use crate::server::standing::Standing;

/// The time without use after which the helper ends. Starting one anew takes up to three seconds.
const IDLE: Duration = Duration::from_secs(600);
/// The time for which a helper waits for another one that is ending.
const INSTANCE_LIMIT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(5);
/// The files that this process may have open, where it may say so itself.
const FILES: u64 = 1 << 16;

const USAGE: &str = "lowtide-helper FOLDER: suspends and resumes processes for other parts of lowtide, which start it. \
                     FOLDER is the folder of this user's agents.";

/// Runs the program `lowtide-helper`: leaves whoever started it, and serves until nobody needs it.
pub fn main() -> ExitCode {
    let Err(error) = start() else { return ExitCode::SUCCESS };
    eprintln!("lowtide-helper: {error}");
    ExitCode::from(2)
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{USAGE}")]
    Usage,
    #[error(transparent)]
    Folder(#[from] PrivateFileError),
    #[error("{0}")]
    Os(#[from] io::Error),
}

fn start() -> Result<(), StartError> {
    close_inherited();
    raise_limits();
    let mut arguments = env::args_os().skip(1);
    let path = match (arguments.next(), arguments.next()) {
        (Some(path), None) => path,
        (Some(role), Some(parent)) if role == trial::ROLE => {
            trial::play(&parent.to_string_lossy());
            return Ok(());
        }
        _ => return Err(StartError::Usage),
    };
    if !Path::new(&path).is_absolute() {
        return Err(StartError::Usage);
    }
    start_clean(&path)?;
    let (starter, path) = (starter(), Path::new(&path));
    if starter.is_none() {
        // Nobody could be served without it.
        PrivateFolder::create(path)?;
    }
    if !leave()? {
        return Ok(());
    }
    serve(path, starter)
}

/// Returns the connection to the process that started this one, which is its first client: its standard input.
fn starter() -> Option<UnixStream> {
    let input = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    is_from_this_user(&input).then_some(input)
}

/// Starts this program again where a variable is set that a helper must not have: a preloaded library is
/// loaded already, and would take part.
fn start_clean(path: &OsString) -> io::Result<()> {
    let trusts = !is_privileged();
    let is_kept = |name: &OsString| {
        let name = name.to_string_lossy();
        let is_loaders = name.starts_with("LD_") && (name != "LD_LIBRARY_PATH" || !trusts);
        let is_ours = name.starts_with("LOWTIDE_") && !trusts;
        !is_loaders && !is_ours && (trusts || name != "HOME") && !name.starts_with("CUDA_")
    };
    if env::vars_os().all(|(name, _)| is_kept(&name)) {
        return Ok(());
    }
    let kept = env::vars_os().filter(|(name, _)| is_kept(name));
    Err(Command::new(env::current_exe()?).arg(path).env_clear().envs(kept).exec())
}

/// Closes the files of the process that started this one: a resident process would keep them open.
fn close_inherited() {
    // SAFETY: this process has opened nothing yet.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if closed == 0 {
        return;
    }
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(Result::ok);
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for number in numbers.collect::<Vec<_>>().into_iter().filter(|number| *number > 2) {
        // SAFETY: as above. The one that listed them is closed already.
        unsafe { libc::close(number) };
    }
}

/// Raises the limits that this process has from its starter as far as the system allows. What comes back needs files,
/// threads and memory, however few of them the program around the agent may have.
fn raise_limits() {
    use Resource::{As, Cpu, Data, Fsize, Memlock, Nofile, Nproc};
    for resource in [As, Cpu, Data, Fsize, Memlock, Nofile, Nproc] {
        let hard = getrlimit(resource).maximum;
        // No limit at all is refused for files.
        let most = hard.filter(|_| resource == Nofile).map(|hard| hard.max(FILES));
        let raised = setrlimit(resource, Rlimit { current: most, maximum: most });
        if raised.is_err() {
            // Only root may do that.
            let _raised = setrlimit(resource, Rlimit { current: hard, maximum: hard });
        }
    }
    // A limit that stays is an error of a write, as a full disk is.
    // SAFETY: this process has one thread and no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Leaves the process that started this one: a new process goes on, in a session of its own. Returns false in the
/// old process, which ends.
fn leave() -> io::Result<bool> {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        _ => return Ok(false),
    }
    // A new process leads no session.
    let _session = process::setsid();
    process::umask(Mode::RWXG | Mode::RWXO);
    env::set_current_dir("/")?;
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    stdio::dup2_stdin(&nothing)?;
    stdio::dup2_stdout(&nothing)?;
    stdio::dup2_stderr(&nothing)?;
    Ok(true)
}

fn serve(path: &Path, mut starter: Option<UnixStream>) -> Result<(), StartError> {
    let settings = Settings::of_environment();
    let (place, journal) = match take_place(path, &settings.refused_writes, &mut starter) {
        Ok(Some((place, journal))) => (Some(place), journal),
        Ok(None) => return Ok(()),
        Err(error) if starter.is_none() => return Err(error),
        // A full disk, or somebody else's folder: whoever is suspended comes back all the same.
        Err(error) => (None, Journal::nowhere(error.to_string())),
    };
    if place.is_some() {
        tallies::begin("helper", Some(path.to_owned()));
    }
    let service = Arc::new(Service {
        driver: CheckpointDriver::default(),
        lock_table: Arc::new(LockTable::default()),
        journal,
        machine: MachineLocks::new(settings.locks),
    });
    recovery::begin(&service);
    // Clients connect meanwhile. A driver that is missing is told to whoever asks.
    let early = Arc::clone(&service);
    thread::Builder::new().spawn(move || early.driver.driver().map(drop))?;
    serving::serve(place.as_ref(), starter, &service, settings.idle);
    Ok(())
}

/// Takes the place of the only helper in a folder, with its journal; `None` if another helper has it.
fn take_place(
    path: &Path,
    refused_writes: &[u32],
    starter: &mut Option<UnixStream>,
) -> Result<Option<(Place, Journal)>, StartError> {
    let folder = PrivateFolder::create(path)?;
    let Some(instance) = only_instance(&folder, starter)? else { return Ok(None) };
    let path = folder.path().join(name_of_socket());
    let standing = Arc::new(Standing::start(folder.path())?);
    // A helper that was killed has left it.
    folder.remove(&name_of_socket())?;
    let journal = Journal::open(folder, name_of_journal(), refused_writes.to_vec())?;
    let listener = at_socket(&path, |path| UnixListener::bind(path))?;
    listener.set_nonblocking(true)?;
    Ok(Some((
        Place { listener, file: SocketFile::of(path), standing, _instance: instance },
        journal,
    )))
}

/// Becomes the only helper of this user and namespace; `None` if another one is. The starter need not wait: it asks that
/// one.
fn only_instance(
    folder: &PrivateFolder,
    starter: &mut Option<UnixStream>,
) -> Result<Option<File>, StartError> {
    let name = format!("{}.lock", name_of_socket());
    let file = match folder.open_existing(&name)? {
        Some(file) => file,
        None => match folder.create_file(&name) {
            Ok(file) => file,
            // Somebody was faster.
            Err(error) => folder.open_existing(&name)?.ok_or(error)?,
        },
    };
    let deadline = Instant::now() + INSTANCE_LIMIT;
    // Another one may be ending.
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                drop(starter.take());
                thread::sleep(PAUSE);
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
}

/// What tests tell the helper, in `LOWTIDE_HELPER`: `idle_ms=NUMBER,locks=FOLDER,full=WRITE+WRITE`.
struct Settings {
    idle: Duration,
    locks: Option<PathBuf>,
    refused_writes: Vec<u32>,
}

impl Settings {
    fn of_environment() -> Settings {
        let text = env::var("LOWTIDE_HELPER").unwrap_or_default();
        let mut settings = Settings { idle: IDLE, locks: None, refused_writes: Vec::new() };
        for (name, value) in text.split(',').filter_map(|word| word.split_once('=')) {
            match name {
                "idle_ms" => settings.idle = value.parse().map_or(IDLE, Duration::from_millis),
                "locks" => settings.locks = Some(PathBuf::from(value)).filter(|path| path.is_dir()),
                "full" => {
                    let numbers = value.split('+').filter_map(|number| number.parse().ok());
                    settings.refused_writes = numbers.collect();
                }
                _ => {}
            }
        }
        settings
    }
}
