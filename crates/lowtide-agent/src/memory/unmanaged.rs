//! Memory that stays on the device while the process sleeps: the program took it in a way that the pool
//! does not cover. It is counted, so that `status` and the ledger can say what it is.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_proto::Staying;
use lowtide_types::Bytes;

/// The way in which memory was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Less than a page of virtual memory, or with a pitch.
    Plain,
    /// Memory that the agent could not take for itself.
    Refused,
    Array,
    Managed,
    /// From the driver's own pools, in the order of a stream.
    Pool,
    /// The program's own virtual memory.
    Virtual,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] =
        [Kind::Plain, Kind::Refused, Kind::Array, Kind::Managed, Kind::Pool, Kind::Virtual];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Plain => "plain memory of less than 2 MiB or with a pitch (cuMemAlloc)",
            Kind::Refused => "allocations that the agent could not take",
            Kind::Array => "arrays (cuArrayCreate)",
            Kind::Managed => "managed memory (cuMemAllocManaged)",
            Kind::Pool => "the driver's memory pools (cuMemAllocAsync)",
            Kind::Virtual => "virtual memory of the program (cuMemCreate)",
        }
    }
}

/// The name of memory: an address, or a handle, which may equal an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Address(u64),
    Handle(u64),
}

/// One allocation.
struct One {
    kind: Kind,
    bytes: Bytes,
    context: usize,
}

static ALIVE: Mutex<BTreeMap<Key, One>> = Mutex::new(BTreeMap::new());

/// Notes an allocation of a context.
pub(crate) fn add(kind: Kind, name: u64, bytes: Bytes, context: usize) {
    let key = match kind {
        Kind::Array | Kind::Virtual => Key::Handle(name),
        _ => Key::Address(name),
    };
    alive().insert(key, One { kind, bytes, context });
}

/// Gives memory back by a call of the driver, and returns its code. The note goes first: once the driver
/// has the memory, another thread may get it under the same name.
pub(crate) fn give_back(key: Key, call: impl FnOnce() -> i32) -> i32 {
    let one = alive().remove(&key);
    let code = call();
    if let (Some(one), true) = (one, code != 0) {
        alive().insert(key, one);
    }
    code
}

/// Notes that a context is gone, with all that was in it.
pub(crate) fn forget(context: usize) {
    alive().retain(|_, one| one.context != context);
}

/// Returns the memory of a kind in a context.
pub(crate) fn sum(kind: Kind, context: usize) -> Bytes {
    let alive = alive();
    let own = alive.values().filter(|one| one.kind == kind && one.context == context);
    own.map(|one| one.bytes).sum()
}

/// Returns what is alive, by kind.
pub(crate) fn all() -> Vec<Staying> {
    let mut sums = BTreeMap::<Kind, (u64, Bytes)>::new();
    for one in alive().values() {
        let (count, bytes) = sums.entry(one.kind).or_default();
        *count += 1;
        *bytes += one.bytes;
    }
    let of = |(kind, (count, bytes)): (Kind, (u64, Bytes))| Staying {
        what: kind.name().to_owned(),
        count,
        bytes,
    };
    sums.into_iter().map(of).collect()
}

fn alive() -> MutexGuard<'static, BTreeMap<Key, One>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}
