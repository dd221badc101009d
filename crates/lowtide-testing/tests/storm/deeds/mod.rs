//! What the threads of a world do.

mod blocks;
mod forks;
mod releases;
mod strays;
mod trouble;
mod turns;

use crate::player::Player;

pub(crate) use releases::tick;
pub(crate) use trouble::plug;

/// A name, the deed, and how often it is done compared with the others.
type Entry = (&'static str, fn(&mut Player), u64);

/// Every deed.
pub(crate) const DEEDS: &[Entry] = &[
    ("alloc", blocks::alloc, 40),
    ("free", blocks::free, 25),
    ("check", blocks::check, 40),
    ("rewrite", blocks::rewrite, 20),
    ("hand over", blocks::hand_over, 5),
    ("take over", blocks::take_over, 5),
    ("stream", blocks::stream, 5),
    ("sleep", turns::sleep, 6),
    ("wake", turns::wake, 12),
    ("stray", strays::stray, 6),
    ("trim", turns::trim, 6),
    ("numbers", turns::numbers, 4),
    ("work", releases::work, 12),
    ("own", releases::own, 6),
    ("look at owner", releases::look_at_owner, 6),
    ("empty cache", releases::empty_cache, 3),
    ("shutdown", releases::shutdown, 1),
    ("release", releases::release, 4),
    ("stage", releases::stage, 3),
    ("task", releases::task, 2),
    ("pause", releases::pause, 3),
    ("neighbour", trouble::neighbour, 2),
    ("fault", trouble::fault, 12),
    ("host budget", trouble::host_budget, 4),
    ("fork", forks::fork, 2),
];
