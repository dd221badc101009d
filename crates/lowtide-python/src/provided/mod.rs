//! What Python provides for a release: a device, hooks and settings, and the request itself.

pub(crate) mod device;
pub(crate) mod hooks;
pub(crate) mod request;
