//! What a command line names: devices, files, numbers.

pub mod devices;
pub mod files;
pub mod numbers;
