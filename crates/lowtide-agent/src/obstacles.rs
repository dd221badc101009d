//! What keeps the process from sleeping, by name: what the program did, and other ways to its device memory.
//!
//! A network card or a disk controller that was told about device memory goes on using it by its physical
//! address, so that memory must not leave. No driver call shows that. The libraries that do it are often loaded
//! and not used, so the evidence is a device file that is open, or a part of the library that is loaded at its start.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use lowtide_proto::Obstacle;
use lowtide_types::variables;

use crate::driver::library;
use crate::settings;

static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes that the process cannot sleep any more, and why.
pub(crate) fn add(name: &str) {
    locked(&NOTED).insert(name.to_owned());
}

/// What the program has open. A process with something of another process is not brought back from a suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opened {
    Memory,
    Event,
    /// A part of the device. Keeps the process from sleeping, too.
    GreenContext,
}

impl Opened {
    fn name(self) -> &'static str {
        match self {
            Opened::Memory => "memory of another process is open (cuIpcOpenMemHandle)",
            Opened::Event => "an event of another process is open (cuIpcOpenEventHandle)",
            Opened::GreenContext => "a green context (cuGreenCtxCreate)",
        }
    }
}

static OPENED: Mutex<BTreeMap<(Opened, u64), u32>> = Mutex::new(BTreeMap::new());

/// Notes that the program opened something.
pub(crate) fn opened(what: Opened, key: u64) {
    *locked(&OPENED).entry((what, key)).or_default() += 1;
}

/// Notes that the program closed something, which may be its own.
pub(crate) fn closed(what: Opened, key: u64) {
    if let Entry::Occupied(mut count) = locked(&OPENED).entry((what, key)) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// Returns why the process can sleep, but cannot be suspended.
pub(crate) fn to_suspend() -> Vec<String> {
    opened_of(|what| what != Opened::GreenContext)
}

fn opened_of(is_asked: impl Fn(Opened) -> bool) -> Vec<String> {
    let kinds: BTreeSet<Opened> = locked(&OPENED).keys().map(|(what, _)| *what).collect();
    kinds.into_iter().filter(|what| is_asked(*what)).map(|what| what.name().to_owned()).collect()
}

/// Notes that code of the agent panicked.
pub(crate) fn add_panic() {
    add("a panic of the agent");
}

/// Returns what was noted and lasts.
pub(crate) fn noted() -> Vec<String> {
    let open = opened_of(|what| what == Opened::GreenContext);
    locked(&NOTED).iter().cloned().chain(open).collect()
}

fn locked<T>(table: &'static Mutex<T>) -> MutexGuard<'static, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Open device files, by how their paths begin.
const DEVICES: [(&str, Obstacle); 3] = [
    ("/dev/infiniband/", Obstacle::Rdma),
    ("/dev/gdrdrv", Obstacle::Gdrcopy),
    ("/dev/nvidia-fs", Obstacle::Cufile),
];

/// Loaded libraries, by how the names of their files begin.
const LIBRARIES: [(&str, Obstacle); 4] = [
    ("libucp.", Obstacle::Ucx),
    ("libuct.", Obstacle::Ucx),
    ("nvshmem_bootstrap", Obstacle::Nvshmem),
    ("nvshmem_transport", Obstacle::Nvshmem),
];

/// Where the multi-process service listens, unless a variable says another folder.
const MPS_FOLDER: &str = "/tmp/nvidia-mps";

/// The libraries that the program loaded with a scope of their own before everybody's, where the agent's functions are.
static DEEP: Mutex<BTreeSet<CString>> = Mutex::new(BTreeSet::new());

/// Notes that the program loads such a library.
pub(crate) fn loads_deep(path: &CStr) {
    locked(&DEEP).insert(path.to_owned());
}

/// Returns the other ways to device memory that there are now, with what was seen.
pub(crate) fn seen() -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |obstacle: Obstacle, seen: &str| {
        let name = format!("{} ({seen})", obstacle.title());
        if !settings::is_ignored(obstacle) && !found.contains(&name) {
            found.push(name);
        }
    };
    // What cannot be read may be in the way.
    let (open, mapped) = (open_files(), mapped_files());
    for (start, obstacle) in DEVICES {
        match &open {
            Ok(paths) => {
                for path in paths.iter().filter(|path| path.starts_with(start)) {
                    add(obstacle, &format!("{path} is open"));
                }
            }
            Err(error) => {
                add(obstacle, &format!("whether {start} is open cannot be read: {error}"));
            }
        }
    }
    for (start, obstacle) in LIBRARIES {
        match &mapped {
            Ok(names) => {
                for name in names.iter().filter(|name| name.starts_with(start)) {
                    add(obstacle, &format!("{name} is loaded"));
                }
            }
            Err(error) => {
                add(obstacle, &format!("whether {start} is loaded cannot be read: {error}"));
            }
        }
    }
    // Not locked meanwhile: the loader may run code of a library that loads another one.
    let deep = locked(&DEEP).clone();
    for path in deep.iter().filter(|path| library::seeks_driver(path)) {
        let name = path.to_string_lossy();
        let name = name.rsplit('/').next().unwrap_or_default();
        add(Obstacle::Deepbind, &format!("{name} finds the driver past the agent"));
    }
    let folder = variables::get("CUDA_MPS_PIPE_DIRECTORY").map_or(MPS_FOLDER.into(), PathBuf::from);
    if folder.join("control").exists() {
        add(Obstacle::Mps, &format!("{}/control exists", folder.display()));
    }
    found
}

/// Returns what the process has open. What it closes meanwhile is left out.
fn open_files() -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir("/proc/thread-self/fd")? {
        match fs::read_link(entry?.path()) {
            Ok(path) => paths.push(path.to_string_lossy().into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(paths)
}

/// Returns the names of the files that are mapped, among them all libraries that are loaded.
fn mapped_files() -> io::Result<BTreeSet<String>> {
    let maps = fs::read("/proc/thread-self/maps")?;
    let maps = String::from_utf8_lossy(&maps);
    Ok(maps.lines().filter_map(|line| Some(line.rsplit_once('/')?.1.to_owned())).collect())
}
