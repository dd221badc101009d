//! The floor: the memory that a bare context uses on a device, as it was last measured.
//!
//! `lowtide doctor` measures it in a child process and stores it, for each device and driver. A release
//! reads it from there, because a process that has a context cannot measure what one uses.

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;

use lowtide_device::{Bytes, DeviceInfo};
use serde::{Deserialize, Serialize};

/// A measured floor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// The UUID of the device.
    pub uuid: String,
    /// The version of the driver.
    pub driver: String,
    /// The memory that a bare context used.
    #[serde(rename = "floor_bytes")]
    pub bytes: Bytes,
    /// The time of the measurement, in seconds since 1970.
    pub measured_at_s: u64,
    /// The first error when each operation of the device was tried once; `None` if there was none.
    pub trial_failure: Option<String>,
}

/// Returns the file of floors; `None` if neither `XDG_CACHE_HOME` nor `HOME` is set.
pub fn file() -> Option<PathBuf> {
    let variable =
        |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(cache.join("lowtide").join("floor.json"))
}

/// Reads all stored floors. A file that is missing or cannot be read has none.
pub fn recall() -> Vec<Floor> {
    let text = file().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Reads the floor of a device, whichever driver it was last measured with.
pub fn of(device: &DeviceInfo) -> Option<Bytes> {
    let uuid = device.uuid.as_deref()?;
    let own = recall().into_iter().filter(|floor| floor.uuid == uuid);
    own.max_by_key(|floor| floor.measured_at_s).map(|floor| floor.bytes)
}

/// Stores floors, in the place of all that were stored before.
///
/// # Errors
/// Those of the file system; `NotFound` if [`file()`] has no answer.
pub fn remember(floors: &[Floor]) -> io::Result<()> {
    let missing =
        || io::Error::new(io::ErrorKind::NotFound, "neither XDG_CACHE_HOME nor HOME is set");
    let file = file().ok_or_else(missing)?;
    let folder = file.parent().ok_or_else(missing)?;
    fs::create_dir_all(folder)?;
    // Written aside and moved over, so that nobody reads half a file.
    let aside = folder.join(format!("floor.{}", std::process::id()));
    let written = fs::write(&aside, serde_json::to_string_pretty(floors)?);
    let moved = written.and_then(|()| fs::rename(&aside, &file));
    if moved.is_err() {
        let _ = fs::remove_file(&aside);
    }
    moved
}
