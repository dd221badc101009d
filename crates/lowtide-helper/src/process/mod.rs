//! A process and its devices, as the kernel, the driver and NVML report them.

pub(crate) mod checkpoint;
pub(crate) mod handle;
pub(crate) mod readings;
