//! This machine and this process: the numbers of the kernel, the C library and NVML, the agent, processes that end.

pub(crate) mod agent;
pub(crate) mod numbers;
pub(crate) mod process_tree;
pub(crate) mod suspended;
