//! `lowtide run`: starts a program with the agent in it, in this program's own place.
#![allow(unsafe_code, reason = "calls a function of the agent, and sets what signals do")]

use std::env;
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, anyhow, bail, ensure};
use clap::builder::{EnumValueParser, TypedValueParser as _};
use lowtide_device::cuda::Driver;
use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::{Helper, Target};
use lowtide_proto::{MemoryCap, Obstacle, WITHOUT_GPU};
use lowtide_release::parse_time;
use lowtide_types::Bytes;

use crate::commands::started;
use crate::program::ending::Ending;
use crate::text::page;

/// The file of the agent.
const AGENT: &str = "liblowtide_agent.so";
/// The folder beside the agent whose `sitecustomize.py` adopts projects in Python programs.
const ADOPT: &str = "adopt";
/// The variable that names the first process of a run to all its processes.
const FAMILY: &str = "LOWTIDE_FAMILY";
/// What stands before the agent's version in the output of the process that tries it.
const AGENT_VERSION: &str = "lowtide's agent: ";
/// The options of `AddressSanitizer`.
const SANITIZER: &str = "ASAN_OPTIONS";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The program is not changed. Its CUDA memory of 2 MiB or more per allocation leaves the device while \
                  the program sleeps, and comes back before the program's next use of the device. `lowtide status` \
                  shows what stays on the device and what keeps a program from sleeping.\n\n\
                  Programs that the loader gives no preload library (static ones, set-user-id ones) run as without \
                  lowtide.\n\n\
                  Examples:\n  lowtide run --idle 5m -- python serve.py\n  lowtide run --idle 5m --to suspend -- \
                  python serve.py\n  lowtide run --share --priority batch -- python train.py"
)]
pub(crate) struct Options {
    /// Put the program to sleep when it has not used the device for so long: 30s, 5m, 1h. Without it, the
    /// program sleeps only when `lowtide sleep` says so.
    #[arg(long, value_name = "TIME", value_parser = time)]
    idle: Option<String>,
    /// What idleness leads to: `sleep` takes the program's memory off the device and leaves its context, some
    /// hundred MiB; `suspend` leaves nothing, and takes a few tenths of a second longer each way.
    #[arg(long, value_name = "STATE", default_value = "sleep", requires = "idle")]
    to: To,
    /// How long a use of the device tries to wake the program; then it fails with the driver's out-of-memory error,
    /// or 999 for another reason than room, and the program stays asleep. Without it: 60s.
    #[arg(long, value_name = "TIME", value_parser = time)]
    wake_timeout: Option<String>,
    /// Take turns with other programs that share the GPU: the program keeps its memory as long as nobody needs the room,
    /// gives way when somebody does, also in the middle of its work, and waits where it finds no room itself.
    /// `lowtide status` shows who has the room and who waits.
    #[arg(long)]
    share: bool,
    /// How long a call of a program that shares waits for room; then it fails with the driver's out-of-memory error.
    /// Without it: 10m.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "share", conflicts_with = "wake_timeout")]
    wait: Option<String>,
    /// Whose wait ends first: `interactive` where a person waits for the answer, `batch` for work that can wait.
    /// Waiting raises the class.
    #[arg(
        long,
        value_name = "CLASS",
        value_parser = ["interactive", "normal", "batch"],
        default_value = "normal",
        requires = "share"
    )]
    priority: String,
    /// What is kept back of a GPU where a program that shares is told how much memory there is for it, once for its
    /// life. Without it: 2GiB, of a small GPU an eighth.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "share")]
    reserve: Option<String>,
    /// The most GPU memory that all processes of the program together may have on each GPU, as a size or a part: 40GiB,
    /// 30%. They are told so much as the whole GPU; what is more fails with the driver's out-of-memory error.
    #[arg(long, value_name = "SIZE", value_parser = cap)]
    memory: Option<String>,
    /// Make each process a program of its own: it takes turns by itself, and has the memory of `--memory` for itself. For
    /// a notebook server, a supervisor, a launcher of jobs. Otherwise all processes of one `run` take turns together.
    #[arg(long)]
    apart: bool,
    /// Let the program sleep although something is in the way that `lowtide status` names: rdma, gdrcopy,
    /// cufile, ucx, nvshmem, mps, sync-memops, deepbind. Only if nothing but the program itself uses its memory.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = obstacle)]
    despite: Vec<Obstacle>,
    /// Have the Python package in the program adopt a project that loads models: its clean-up becomes
    /// releases with receipts. The package must be installed in the program's environment.
    #[arg(
        long,
        value_name = "PROJECT",
        value_delimiter = ',',
        value_parser = EnumValueParser::<Project>::new().try_map(adoptable)
    )]
    adopt: Vec<Project>,
    /// Run the program without lowtide if the agent is missing, broken or of another version. Otherwise it does
    /// not start, and this ends with 3.
    #[arg(long)]
    without_agent_if_broken: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What idleness leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum To {
    Sleep,
    Suspend,
}

/// A project that the Python package can adopt.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Project {
    Autorag,
    DoclingServe,
    LmmsEval,
    Sglang,
    /// Refused with what to do instead.
    #[value(hide = true)]
    Vllm,
}

/// Executes the command; returns only if that fails.
pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    let without = match find_agent().and_then(|agent| Ok((checked(&agent)?, agent))) {
        Ok((preloaded, agent)) => {
            command.env("LD_PRELOAD", preloaded).env(SANITIZER, sanitizer_options());
            prepare(&mut command, options, &agent)?;
            String::new()
        }
        Err(error) if options.without_agent_if_broken => {
            format!("runs without lowtide: {error:#}")
        }
        Err(error) => return Err(error),
    };
    if !without.is_empty() {
        page::complain(&format!("the program {without}"));
    } else if let Err(error) = Driver::find_library() {
        page::complain(&format!(
            "warning: nothing of this program can be freed here, and it runs as without lowtide; {WITHOUT_GPU}. \
             {error}"
        ));
    }
    let folder = PrivateFolder::of_user();
    let noted = folder.as_ref().map_err(|error| anyhow!("{error}"));
    let noted = noted.and_then(|folder| Ok((folder, started::note(folder, &without)?)));
    let noted = noted.inspect_err(|error| {
        page::complain(&format!("`lowtide status` will not list the program: {error:#}"));
    });
    if IGNORES_PIPES.load(Relaxed) {
        let ignore = || {
            // SAFETY: in this process, which is about to be the program.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: it may be called there.
        unsafe { command.pre_exec(ignore) };
    }
    let error = command.exec();
    if let Ok((folder, name)) = noted {
        folder.remove(&name)?;
    }
    Err(error).with_context(|| format!("running {}", options.command[0].display()))
}

/// Whether this program was started with SIGPIPE ignored, as services are. Rust's runtime ignores it for itself, and
/// undoes that for what is started.
static IGNORES_PIPES: AtomicBool = AtomicBool::new(false);

/// What the loader calls before Rust's runtime starts.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_PIPES: extern "C" fn() = look_at_pipes;

/// Notes whether SIGPIPE is ignored.
extern "C" fn look_at_pipes() {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: fills a structure of ours.
    unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), found.as_mut_ptr()) };
    // SAFETY: zeros are one, too.
    let found = unsafe { found.assume_init() };
    IGNORES_PIPES.store(found.sa_sigaction == libc::SIG_IGN, Relaxed);
}

/// Sets the variables that tell the agent what was asked for.
fn prepare(command: &mut Command, options: &Options, agent: &Path) -> anyhow::Result<()> {
    if let Some(idle) = &options.idle {
        command.env("LOWTIDE_FREE_ON_IDLE", idle);
    }
    if options.to == To::Suspend {
        // Before the program starts, so that a missing part is said here and not when it is idle.
        Helper::find_program(agent)?;
        command.env("LOWTIDE_IDLE_TO", "suspend");
    }
    if let Some(limit) = &options.wake_timeout {
        command.env("LOWTIDE_WAKE_TIMEOUT", limit);
    }
    if options.share {
        let helper = Helper::new(PrivateFolder::of_user()?.path(), Helper::find_program(agent)?);
        // Before the program starts, which then only connects; and what keeps it from starting is said here.
        if let Err(error) = helper.connect() {
            let error = anyhow!(error);
            page::complain(&format!(
                "warning: the program takes no turns with others for now: {error:#}"
            ));
        }
        command.env("LOWTIDE_SHARE", "1").env("LOWTIDE_PRIORITY", &options.priority);
    }
    // A run inside another one is a program of its own.
    if options.apart {
        command.env_remove(FAMILY);
    } else {
        command.env(FAMILY, Target::of(process::id())?.to_text());
    }
    if let Some(limit) = &options.wait {
        command.env("LOWTIDE_WAIT", limit);
    }
    if let Some(reserve) = &options.reserve {
        command.env("LOWTIDE_RESERVE", reserve);
    }
    if let Some(cap) = &options.memory {
        command.env("LOWTIDE_MEMORY", cap);
    }
    if !options.despite.is_empty() {
        let words: Vec<&str> = options.despite.iter().map(|obstacle| obstacle.word()).collect();
        command.env("LOWTIDE_DESPITE", words.join(","));
    }
    if !options.adopt.is_empty() {
        let names = options.adopt.iter().filter_map(clap::ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|name| name.get_name().to_owned()).collect();
        command.env("LOWTIDE_ADOPT", names.join(","));
        command.env("PYTHONPATH", python_path(agent)?);
    }
    Ok(())
}

/// Returns what is to be preloaded: the agent, behind the libraries that are preloaded already, which see the program's
/// calls as they do without it. Sees first that the loader takes it, in a process of its own, because a loader that does
/// not goes on without.
fn checked(agent: &Path) -> anyhow::Result<OsString> {
    let mut all = env::var_os("LD_PRELOAD").unwrap_or_default();
    if !all.is_empty() {
        all.push(OsStr::new(":"));
    }
    all.push(without_separators(agent)?);
    ensure!(is_whole(agent)?, "the agent cannot be loaded: {} is cut off", agent.display());
    let mut trial = Command::new(env::current_exe().context("finding this program")?);
    trial.arg("agent-version").env("LD_PRELOAD", &all).env("LOWTIDE_AGENT", "off");
    let tried = trial.env(SANITIZER, sanitizer_options());
    // A process that ignores SIGCHLD cannot wait for a child. The program gets what was set before.
    // SAFETY: no other thread waits for a child here.
    let of_children = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let tried = tried.output().context("trying the agent");
    // SAFETY: as it was before.
    unsafe { libc::signal(libc::SIGCHLD, of_children) };
    let tried = tried?;
    let (output, said) =
        (String::from_utf8_lossy(&tried.stdout), String::from_utf8_lossy(&tried.stderr));
    // Other libraries may print something, too, or end the process with a code of theirs.
    let found = output.split_once(AGENT_VERSION).and_then(|(_, rest)| rest.lines().next());
    let (found, own, agent) =
        (found.unwrap_or_default(), env!("CARGO_PKG_VERSION"), agent.display());
    ensure!(
        !found.is_empty(),
        "the agent cannot be loaded: {agent} ({}): {}; install lowtide again",
        tried.status,
        said.trim()
    );
    ensure!(
        found == own,
        "the agent {agent} is of version {found}, and this program of {own}; install both together"
    );
    Ok(all)
}

/// Returns the options of a sanitizer that the program may be linked with. It ends a program in which another library is
/// loaded before its own, as every preloaded one is, unless they say that this is meant.
fn sanitizer_options() -> OsString {
    let mut all = OsString::from("verify_asan_link_order=0");
    if let Some(others) = env::var_os(SANITIZER) {
        all.push(OsStr::new(":"));
        all.push(others);
    }
    all
}

/// Returns whether a library is as long as its header says. The table of its sections is its end; the loader would
/// take a shorter one, and the program die later.
fn is_whole(library: &Path) -> anyhow::Result<bool> {
    let mut header = [0; 64];
    let mut file = File::open(library).with_context(|| format!("opening {}", library.display()))?;
    if file.read_exact(&mut header).is_err() {
        return Ok(false);
    }
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (offset, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    Ok(offset.saturating_add(size * count) <= file.metadata()?.len())
}

/// Prints the version of the agent that is preloaded into this process; nothing if there is none.
pub(crate) fn print_agent_version() -> Ending {
    // SAFETY: looks a name up in what is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"lowtide_agent_version".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the function of this name takes nothing and returns a C string.
        let version: extern "C" fn() -> *const c_char = unsafe { std::mem::transmute(found) };
        // SAFETY: a constant of the agent.
        let version = unsafe { CStr::from_ptr(version()) };
        println!("{AGENT_VERSION}{}", version.to_string_lossy());
    }
    Ending::Proved
}

/// Returns a path of the agent without what separates libraries in `LD_PRELOAD`: its own, or a link to it in this
/// user's folder.
fn without_separators(agent: &Path) -> anyhow::Result<PathBuf> {
    let has_one =
        |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| b" \t\n:".contains(byte));
    if !has_one(agent) {
        return Ok(agent.to_owned());
    }
    let mut hasher = DefaultHasher::new();
    agent.hash(&mut hasher);
    let folder = PrivateFolder::of_user()?;
    let link = folder.path().join(format!("agent-{:016x}.so", hasher.finish()));
    ensure!(
        !has_one(&link),
        "neither {} nor {} can be preloaded: the loader takes blanks and colons for separators; set \
         XDG_RUNTIME_DIR to a folder without them",
        agent.display(),
        folder.path().display()
    );
    if link.read_link().ok().as_deref() != Some(agent) {
        symlink(agent, &link).with_context(|| format!("making {}", link.display()))?;
    }
    Ok(link)
}

/// Puts the folder that adopts before the folders that Python searches already.
fn python_path(agent: &Path) -> anyhow::Result<OsString> {
    let folder = agent.with_file_name(ADOPT);
    if !folder.join("sitecustomize.py").is_file() {
        bail!(
            "--adopt is not installed: {} is missing; the wheel and the archive of `cargo xtask dist` have it",
            folder.join("sitecustomize.py").display()
        );
    }
    let mut all = OsString::from(folder);
    if let Some(others) = env::var_os("PYTHONPATH").filter(|others| !others.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(others);
    }
    Ok(all)
}

/// Finds the agent's library: where `LOWTIDE_AGENT_LIBRARY` says, or beside this program.
fn find_agent() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("LOWTIDE_AGENT_LIBRARY").map(PathBuf::from) {
        if path.is_file() {
            return Ok(path.canonicalize()?);
        }
        bail!("LOWTIDE_AGENT_LIBRARY is {}, which is no file", path.display());
    }
    let program = env::current_exe().context("finding this program")?;
    let folder = program.parent().unwrap_or(&program);
    let places = [folder.join(AGENT), folder.join("../lib/lowtide").join(AGENT)];
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Ok(place.canonicalize()?),
        None => bail!(
            "the agent is missing: {AGENT} is neither beside {} nor in ../lib/lowtide; build it with \
             `cargo build --release -p lowtide-agent`, or set LOWTIDE_AGENT_LIBRARY to its path",
            program.display()
        ),
    }
}

fn adoptable(project: Project) -> Result<Project, &'static str> {
    match project {
        Project::Vllm => Err(
            "vLLM need not be adopted: start it with `--enable-sleep-mode --sleep-mode-backend \
                              lowtide`, in an environment that has lowtide",
        ),
        other => Ok(other),
    }
}

fn obstacle(text: &str) -> Result<Obstacle, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn size(text: &str) -> Result<String, String> {
    text.parse::<Bytes>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn cap(text: &str) -> Result<String, String> {
    text.parse::<MemoryCap>().map(|_| text.to_owned())
}

fn time(text: &str) -> Result<String, String> {
    match parse_time(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("{text:?} is not a time; write 500ms, 30s or 5m")),
    }
}
