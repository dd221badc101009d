//! Names of devices. A name is text that anybody can write down and read back; whether such a device
//! exists is another question, asked where it is opened.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of a device: `host`, `cuda:N`, or a framework's name for a device of its own.
///
/// ```
/// use lowtide_types::DeviceId;
/// assert_eq!("cuda:1".parse(), Ok(DeviceId::Cuda(1)));
/// let own: DeviceId = "xpu:0".parse()?;
/// assert_eq!(own.to_string().parse(), Ok(own));
/// # Ok::<(), lowtide_types::ParseDeviceIdError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceId {
    /// Pages of this machine.
    Host,
    /// The CUDA device with this number, in the driver's order.
    Cuda(u32),
    /// A device that only counts, for replays without hardware.
    DryRun,
    /// A device that lowtide does not drive itself but hears about from a framework: `xpu:0`,
    /// `mps:0`, `cpu`.
    Named(DeviceName),
}

/// The longest name of a device, in bytes.
const LONGEST: usize = 30;

/// A framework's name for a device: lower-case letters, digits, `_`, `-` and `:`, at most 30 bytes.
/// Kept inline, so that an id can be copied and nothing is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName {
    bytes: [u8; LONGEST],
    length: u8,
}

impl DeviceName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.length)];
        // Only ASCII is taken into a name.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for DeviceName {
    type Err = ParseDeviceIdError;

    fn from_str(text: &str) -> Result<DeviceName, ParseDeviceIdError> {
        let is_plain = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b':')
        };
        let starts = text.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        if !starts || text.len() > LONGEST || !text.bytes().all(is_plain) {
            return Err(ParseDeviceIdError { text: text.to_owned() });
        }
        let mut bytes = [0; LONGEST];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(DeviceName { bytes, length: text.len() as u8 })
    }
}

/// A text that cannot be the name of a device.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error(
    "{text:?} is not a device; write `host`, `cuda:0` or another name that `lowtide doctor` lists"
)]
pub struct ParseDeviceIdError {
    text: String,
}

impl FromStr for DeviceId {
    type Err = ParseDeviceIdError;

    fn from_str(text: &str) -> Result<DeviceId, ParseDeviceIdError> {
        match text {
            "host" => Ok(DeviceId::Host),
            "cuda" => Ok(DeviceId::Cuda(0)),
            "dry-run" => Ok(DeviceId::DryRun),
            _ => match text.strip_prefix("cuda:") {
                Some(index) if index.bytes().all(|byte| byte.is_ascii_digit()) => index
                    .parse()
                    .map(DeviceId::Cuda)
                    .map_err(|_| ParseDeviceIdError { text: text.to_owned() }),
                Some(_) => Err(ParseDeviceIdError { text: text.to_owned() }),
                None => text.parse().map(DeviceId::Named),
            },
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Host => f.pad("host"),
            DeviceId::Cuda(index) => f.pad(&format!("cuda:{index}")),
            DeviceId::DryRun => f.pad("dry-run"),
            DeviceId::Named(name) => f.pad(name.as_str()),
        }
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DeviceId, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for DeviceId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DeviceId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_can_be_written_and_read_back() {
        for text in ["host", "cuda:0", "cuda:17", "dry-run", "xpu:0", "mps", "privateuseone:3"] {
            let id: DeviceId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<DeviceId>(&json).unwrap(), id);
        }
        assert_eq!("cuda".parse(), Ok(DeviceId::Cuda(0)));
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        let long = "x".repeat(LONGEST + 1);
        for text in ["", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "GPU", "a b", "é", "9", &long] {
            let error = text.parse::<DeviceId>().unwrap_err();
            assert!(error.to_string().contains("is not a device"), "{error}");
            assert!(serde_json::from_value::<DeviceId>(text.into()).is_err());
        }
        assert!("cuda:99999999999".parse::<DeviceId>().is_err(), "too large a number");
    }
}
