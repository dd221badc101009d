//! What keeps an examination from harming the program: its memory, its own references, the collector at rest, one examination at a time, calls that outlive the interpreter.

pub(crate) mod ending;
pub(crate) mod one_at_a_time;
pub(crate) mod own_memory;
pub(crate) mod own_references;
