//! The floor: what a bare context costs on a device, as it was last measured.
//!
//! `lowtide doctor` measures it with a disposable child and remembers it, for each device and driver.
//! A release reads it from there: whoever holds a context cannot measure what one costs.

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;

use lowtide_device::{Bytes, DeviceInfo};
use serde::{Deserialize, Serialize};

/// A floor, and how it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// The device it was measured on.
    pub uuid: String,
    /// The driver it was measured with.
    pub driver: String,
    /// What a bare context cost.
    #[serde(rename = "floor_bytes")]
    pub bytes: Bytes,
    /// When, in seconds since 1970.
    pub measured_at_s: u64,
    /// What went wrong when each operation was tried once; `None`: nothing.
    pub trial_failure: Option<String>,
}

/// Where floors are remembered; `None` where neither `XDG_CACHE_HOME` nor `HOME` says.
pub fn file() -> Option<PathBuf> {
    let variable =
        |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(cache.join("lowtide").join("floor.json"))
}

/// All that are remembered. A file that is not there, or not ours to read, remembers nothing.
pub fn recall() -> Vec<Floor> {
    let text = file().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// The one of this device, by whichever driver measured it last.
pub fn of(device: &DeviceInfo) -> Option<Bytes> {
    let uuid = device.uuid.as_deref()?;
    let own = recall().into_iter().filter(|floor| floor.uuid == uuid);
    own.max_by_key(|floor| floor.measured_at_s).map(|floor| floor.bytes)
}

/// Remembers these.
///
/// # Errors
/// The file system's; `NotFound` where there is no place for them.
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
