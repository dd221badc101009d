//! What lowtide asks of the operating system: memory that is left, processes and their ends, files that
//! no other user can exchange, libraries.

pub(crate) mod exit;
pub mod headroom;
pub mod identity;
pub(crate) mod library;
pub(crate) mod memory;
pub mod private_files;
pub mod process;
pub mod process_tree;
pub mod records;
pub mod tallies;
pub mod yama;
