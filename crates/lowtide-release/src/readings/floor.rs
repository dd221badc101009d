//! The floor: the memory that a bare context uses on a device, as it was last measured.
//!
//! `lowtide doctor` measures it in a child process and stores it, for each device and driver. A release
//! reads it from there and never measures one: a process that has a context cannot tell what it uses,
//! and starting another one takes memory.

use std::path::PathBuf;

use lowtide_device::nvml::Nvml;
use lowtide_device::private_files::{PrivateFileError, PrivateFolder};
use lowtide_device::{Bytes, DeviceInfo};
use lowtide_types::variables;
use serde::{Deserialize, Serialize};

const FILE: &str = "floor.json";
/// The largest file of floors that is read. A floor has about 200 bytes.
const MOST_BYTES: u64 = 1 << 20;

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

/// The reason why a floor could not be read, stored or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloorError {
    /// No folder for it is known.
    #[error("neither XDG_CACHE_HOME nor HOME is an absolute path")]
    NoFolder,
    /// The folder or the file cannot be used.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The file has something else in it.
    #[error("{path} is not a list of floors: {source}")]
    NotFloors {
        /// The path of the file.
        path: PathBuf,
        /// The first thing that is wrong with it.
        source: serde_json::Error,
    },
    /// A bare context cannot use this much, or nothing.
    #[error("a bare context cannot use {floor} of a device with {total}")]
    Impossible {
        /// The stored floor.
        floor: Bytes,
        /// The whole memory of the device.
        total: Bytes,
    },
}

impl Floor {
    /// Returns the memory that a bare context uses, unless that cannot be true on a device with so
    /// much memory.
    ///
    /// # Errors
    /// [`FloorError::Impossible`] for nothing, and for more than the device has.
    pub fn on(&self, total: Bytes) -> Result<Bytes, FloorError> {
        let floor = self.bytes;
        let is_possible = floor > Bytes::ZERO && floor <= total;
        if is_possible { Ok(floor) } else { Err(FloorError::Impossible { floor, total }) }
    }
}

/// Returns the folder in which floors are stored; `None` if neither `XDG_CACHE_HOME` nor `HOME` is an
/// absolute path.
pub fn folder() -> Option<PathBuf> {
    let variable =
        |name: &str| variables::get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(cache.join("lowtide"))
}

/// Reads all stored floors; none if there is no file.
///
/// # Errors
/// If the file could be another user's, is no regular file, or has something else in it.
pub fn recall() -> Result<Vec<Floor>, FloorError> {
    let path = folder().ok_or(FloorError::NoFolder)?;
    let Some(folder) = PrivateFolder::open(&path)? else { return Ok(Vec::new()) };
    let Some(text) = folder.read(FILE, MOST_BYTES)? else { return Ok(Vec::new()) };
    serde_json::from_slice(&text)
        .map_err(|source| FloorError::NotFloors { path: path.join(FILE), source })
}

/// Reads the floor of a device, measured with the driver that is installed now. `None` if there is
/// none that can be used; the reason is logged.
pub fn of(device: &DeviceInfo) -> Option<Bytes> {
    of_uuid(device.uuid.as_deref()?, device.total)
}

/// Reads the same for a device with this UUID and so much memory.
pub fn of_uuid(uuid: &str, total: Bytes) -> Option<Bytes> {
    let driver = Nvml::kept().ok()?.driver_version().ok()?;
    let found = recall().and_then(|floors| {
        let floor = floors.iter().find(|floor| floor.uuid == uuid && floor.driver == driver);
        floor.map(|floor| floor.on(total)).transpose()
    });
    found.unwrap_or_else(|error| {
        tracing::warn!(uuid, %error, "the stored floor is not used");
        None
    })
}

/// Stores floors, in the place of all that were stored before.
///
/// # Errors
/// If the folder could be exchanged by another user, and those of the file system.
pub fn remember(floors: &[Floor]) -> Result<(), FloorError> {
    let path = folder().ok_or(FloorError::NoFolder)?;
    let text = serde_json::to_vec_pretty(floors)
        .map_err(|source| FloorError::NotFloors { path: path.join(FILE), source })?;
    Ok(PrivateFolder::create(&path)?.replace(FILE, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_that_cannot_be_true_is_refused() {
        let floor = |bytes| {
            let (uuid, driver) = ("GPU-1".to_owned(), "580.1".to_owned());
            Floor { uuid, driver, bytes, measured_at_s: 1, trial_failure: None }
        };
        let total = Bytes::gib(1);
        assert_eq!(floor(Bytes::mib(500)).on(total).unwrap(), Bytes::mib(500));
        for wrong in [Bytes::ZERO, total + Bytes(1), Bytes(u64::MAX)] {
            assert!(
                matches!(floor(wrong).on(total), Err(FloorError::Impossible { .. })),
                "{wrong}"
            );
        }
    }
}
