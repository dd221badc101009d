//! Reasons not to sleep that no driver call shows: other ways to the program's device memory.
//!
//! A network card or a disk controller that was told about device memory goes on using it by its physical
//! address, so that memory must not leave. The libraries that do this are often loaded and not used, so the
//! evidence is a device file that is open, or a part of the library that is loaded at its start.
#![allow(unsafe_code, reason = "asks the loader which libraries are loaded")]

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

use lowtide_proto::Obstacle;

use crate::say::say;

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

/// Returns the reasons that hold now, with what was seen.
pub(crate) fn names() -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |obstacle: Obstacle, seen: &str| {
        let name = format!("{} ({seen})", obstacle.title());
        if !is_ignored(obstacle) && !found.contains(&name) {
            found.push(name);
        }
    };
    for path in open_files() {
        let path = path.to_string_lossy();
        for (start, obstacle) in DEVICES {
            if path.starts_with(start) {
                add(obstacle, &format!("{path} is open"));
            }
        }
    }
    for library in libraries() {
        let name = Path::new(&library).file_name().unwrap_or_default().to_string_lossy();
        for (start, obstacle) in LIBRARIES {
            if name.starts_with(start) {
                add(obstacle, &format!("{name} is loaded"));
            }
        }
    }
    let folder = env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or(MPS_FOLDER.into(), PathBuf::from);
    if folder.join("control").exists() {
        add(Obstacle::Mps, &format!("{}/control exists", folder.display()));
    }
    found
}

/// Returns whether `LOWTIDE_DESPITE` says that an obstacle is none.
pub(crate) fn is_ignored(obstacle: Obstacle) -> bool {
    static IGNORED: OnceLock<Vec<Obstacle>> = OnceLock::new();
    let ignored = IGNORED.get_or_init(|| {
        let text = env::var("LOWTIDE_DESPITE").unwrap_or_default();
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let of = |word: &str| {
            let obstacle = word.parse();
            obstacle.inspect_err(|error| say!("LOWTIDE_DESPITE: {error}")).ok()
        };
        words.filter_map(of).collect()
    });
    ignored.contains(&obstacle)
}

/// Returns what the process has open; nothing where it cannot look.
fn open_files() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

/// Returns the files of the libraries that are loaded.
fn libraries() -> Vec<String> {
    unsafe extern "C" fn note(
        library: *mut libc::dl_phdr_info,
        _size: usize,
        list: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's description, for the time of this call.
        let name = unsafe { (*library).dlpi_name };
        if !name.is_null() {
            // SAFETY: the loader's C string.
            let name = unsafe { CStr::from_ptr(name) };
            // SAFETY: the list that is passed below.
            let list = unsafe { &mut *list.cast::<Vec<String>>() };
            list.push(name.to_string_lossy().into_owned());
        }
        0
    }
    let mut list = Vec::<String>::new();
    // SAFETY: `note` gets the list, which lives until this returns.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut list).cast()) };
    list
}
