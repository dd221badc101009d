//! An amount of memory and where it is.

use lowtide_types::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An amount of memory on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceBytes {
    /// The UUID of the GPU, as NVML gives it.
    pub uuid: String,
    /// The memory.
    pub bytes: Bytes,
}
