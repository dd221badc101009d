//! Every answer about a graph, on random graphs, on graphs with a shape, and what it takes in memory.

mod counting;
mod memory;
mod model;
mod pythonic;
mod shapes;
mod walk;

use walk::{ask, safety};
