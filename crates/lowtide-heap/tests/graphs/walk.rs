//! Files of the crate `lowtide-walk`, for the unit tests in them: that crate is linked to an interpreter,
//! which a test program is not. These files need none.
#![allow(
    dead_code,
    unreachable_pub,
    unsafe_code,
    reason = "they are here for their tests, and read and write tables"
)]

#[path = "../../../lowtide-walk/src/crew.rs"]
mod crew;
#[path = "../../../lowtide-walk/src/huge.rs"]
mod huge;
#[path = "../../../lowtide-walk/src/kind.rs"]
mod kind;
#[path = "../../../lowtide-walk/src/out_of_memory.rs"]
mod out_of_memory;
#[path = "../../../lowtide-walk/src/pieces.rs"]
mod pieces;
#[path = "../../../lowtide-walk/src/prefetch.rs"]
mod prefetch;
#[path = "../../../lowtide-walk/src/table.rs"]
mod table;
