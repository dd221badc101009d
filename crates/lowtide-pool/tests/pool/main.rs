//! The pool on `host` and on devices that only count: one program, because linking takes longer than
//! most of the tests.

mod ahead;
mod another_size;
mod apart;
mod arrivals;
mod broken;
mod bytes;
mod forked;
mod game;
mod halfway;
mod hands;
mod host_memory;
mod inside;
mod large;
mod limits;
mod model;
mod odd;
mod packed;
mod pool;
mod room;
mod sleep;
mod strays;
mod together;
mod written;
