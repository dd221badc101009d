//! Every answer against its definition, on random graphs that are small enough to try everything.

mod answers;
mod cuts;
mod naive;
mod paths;
