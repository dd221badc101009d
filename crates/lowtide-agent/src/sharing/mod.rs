//! Memory that several processes use by legacy handles (`cuIpcGetMemHandle`).
//!
//! The driver refuses such handles for virtual memory, which all memory that can sleep is. So the agents make and
//! read them. The process that has the memory gives its chunks, as file descriptors, to the agent of the process that
//! opens it, and stays awake for as long as somebody has it open. Their connection is the record of that: it ends
//! with the process, however that ends.

pub(crate) mod exports;
pub(crate) mod handle;
pub(crate) mod imports;
mod link;

pub(crate) use link::spare_files;
