//! The threads that make backups ahead: one for each device that has tagged memory, now or later.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Mutex, MutexGuard};

use lowtide::pool::{AheadNext, Pool};
use lowtide::{AheadShare, AheadThread};

use crate::calls::waiting::lock;

/// The backups that this process makes ahead, if any.
static RUNNING: Mutex<Running> =
    Mutex::new(Running { number: 0, share: None, threads: BTreeMap::new() });

struct Running {
    /// How often backups were begun. Whoever began others cannot end these.
    number: u64,
    share: Option<AheadShare>,
    /// By the number of the device; or why there is no thread.
    threads: BTreeMap<u32, Result<AheadThread, String>>,
}

/// Begins backups with a share, in the place of those that are made already. Returns their number.
pub(crate) fn begin(share: AheadShare) -> u64 {
    let mut running = running();
    running.number += 1;
    running.share = Some(share);
    let (number, before) = (running.number, mem::take(&mut running.threads));
    drop(running);
    // Their last step ends before the first one with the new share begins.
    drop(before);
    number
}

/// Starts the thread of a device, if backups are made ahead.
pub(crate) fn begin_on(device: u32, pool: &Pool) {
    let mut running = running();
    if let Some(share) = running.share {
        let start = || AheadThread::start(pool, share).map_err(|error| error.to_string());
        running.threads.entry(device).or_insert_with(start);
    }
}

/// Ends backups by their number, or any. Waits for the step that is under way.
pub(crate) fn end(number: Option<u64>) {
    let mut running = running();
    if number.is_some_and(|number| number != running.number) {
        return;
    }
    running.share = None;
    let threads = mem::take(&mut running.threads);
    drop(running);
    drop(threads);
}

/// Returns what the backups of this number do on each device, as a word; `None` if they have ended.
pub(crate) fn state(number: u64) -> Option<BTreeMap<u32, String>> {
    let running = running();
    if running.number != number || running.share.is_none() {
        return None;
    }
    let state = |thread: &Result<AheadThread, String>| match thread {
        Err(error) => format!("failed: {error}"),
        Ok(thread) => word(thread.last().map(|report| report.next)).to_owned(),
    };
    Some(running.threads.iter().map(|(device, thread)| (*device, state(thread))).collect())
}

fn running() -> MutexGuard<'static, Running> {
    lock(&RUNNING)
}

fn word(next: Option<AheadNext>) -> &'static str {
    match next {
        Some(AheadNext::Nothing) => "done",
        Some(AheadNext::NoRoom) => "no room",
        _ => "working",
    }
}
