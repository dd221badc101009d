//! What keeps the process from sleeping, by name; and memory that stays on the device while it sleeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_proto::Staying;
use lowtide_types::Bytes;

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static STAYING: Mutex<BTreeMap<&'static str, (u64, Bytes)>> = Mutex::new(BTreeMap::new());

/// Writes a line to the program's standard error. Unlike `eprintln!`, it does not panic where nobody can
/// write there.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _written = writeln!(std::io::stderr(), "lowtide: {}", format_args!($($text)*));
    }};
}
pub(crate) use say;

/// Notes that the process cannot sleep any more, and why.
pub(crate) fn add(name: &str) {
    lock(&NAMES).insert(name.to_owned());
}

/// Returns why the process cannot sleep; empty if it can.
pub(crate) fn names() -> Vec<String> {
    lock(&NAMES).iter().cloned().collect()
}

/// Notes memory that the program took in a way that stays on the device.
pub(crate) fn stays(what: &'static str, bytes: Bytes) {
    let mut staying = lock(&STAYING);
    let (times, sum) = staying.entry(what).or_default();
    *times += 1;
    sum.0 += bytes.0;
}

/// Returns what was noted by [`stays`]. Frees are not counted.
pub(crate) fn staying() -> Vec<Staying> {
    let staying = lock(&STAYING);
    let of = |(what, (times, bytes)): (&&str, &(u64, Bytes))| Staying {
        what: (*what).to_owned(),
        times: *times,
        bytes: *bytes,
    };
    staying.iter().map(of).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
