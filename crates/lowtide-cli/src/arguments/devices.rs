//! The devices that a command line names: which one is meant, and what is said where it is missing.

use std::fmt;

use lowtide_device::{Device, DeviceId, Error, known_devices};
use lowtide_types::ParseDeviceIdError;

/// A device that was named and is not available.
#[derive(Debug)]
pub struct MissingDevice {
    /// The device that was named.
    pub wanted: DeviceId,
    /// The devices that are available.
    pub known: Vec<DeviceId>,
    /// The reason, where one is known.
    pub reason: Option<String>,
}

impl fmt::Display for MissingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<String> = self.known.iter().map(ToString::to_string).collect();
        write!(f, "{} is not available (this machine has ", self.wanted)?;
        match known.as_slice() {
            [] => f.write_str("no device)")?,
            known => write!(f, "{})", known.join(", "))?,
        }
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl std::error::Error for MissingDevice {}

/// Reads the name of a device. `cpu`, as Python calls it, is `host`.
///
/// # Errors
/// If it cannot be the name of one.
pub fn named(text: &str) -> Result<DeviceId, ParseDeviceIdError> {
    if text == "cpu" { Ok(DeviceId::Host) } else { text.parse() }
}

/// Returns the device that is meant where none was named: the first GPU, or `host` without one.
pub fn best() -> DeviceId {
    known_devices().into_iter().find(|id| *id != DeviceId::Host).unwrap_or(DeviceId::Host)
}

/// Opens a device.
///
/// # Errors
/// [`MissingDevice`] where there is no such device, and whatever else the device says.
pub fn open(id: DeviceId) -> anyhow::Result<Device> {
    Device::open(id).map_err(|error| {
        let reason = match error {
            Error::UnknownDevice { .. } => None,
            Error::NoLibrary { .. }
            | Error::MissingEntryPoint { .. }
            | Error::DriverTooOld { .. } => Some(error.to_string()),
            // The device is there, and does not work.
            error => return error.into(),
        };
        let mut known = known_devices();
        known.sort_by_key(|id| *id == DeviceId::Host);
        MissingDevice { wanted: id, known, reason }.into()
    })
}
