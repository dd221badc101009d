//! What is under way. One operation at a time is at work on a device, and one on a process.
//!
//! An operation takes all that it needs at once, so that two never wait for each other. One that nobody
//! waits for any more keeps its devices until its step ends; others are refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lowtide_proto::helper::{Refusal, Step, Target};

/// The longest wait before the desk is looked at again: an operation may be left alone meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// Something that one operation has at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A device, by its UUID.
    Device(String),
    /// A process, by its number.
    Process(u32),
}

/// An operation on a process.
#[derive(Debug)]
pub(crate) struct Work {
    target: Target,
    step: Mutex<Option<(Step, Instant)>>,
    is_left: AtomicBool,
}

impl Work {
    /// Begins an operation.
    pub(crate) fn new(target: Target) -> Arc<Work> {
        Arc::new(Work { target, step: Mutex::new(None), is_left: AtomicBool::new(false) })
    }

    /// Notes the step that begins.
    pub(crate) fn begin(&self, step: Step) {
        *lock(&self.step) = Some((step, Instant::now()));
    }

    /// Returns the step that began last.
    pub(crate) fn step(&self) -> Option<Step> {
        lock(&self.step).map(|(step, _)| step)
    }

    /// Notes that nobody waits for it any more.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::SeqCst);
    }

    /// Returns whether nobody waits for it any more.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::SeqCst)
    }

    fn in_the_way_of(&self, key: &Key) -> Refusal {
        let pid = self.target.pid;
        match (key, *lock(&self.step)) {
            (Key::Device(device), Some((step, since))) if self.is_left() => {
                let ran_ms = since.elapsed().as_millis() as u64;
                Refusal::DeviceTaken { device: device.clone(), pid, step, ran_ms }
            }
            _ => Refusal::UnderWay { pid },
        }
    }
}

/// All operations of this helper.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    taken: Mutex<BTreeMap<Key, Arc<Work>>>,
    changed: Condvar,
}

/// The right to be at work on devices and processes. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Seat {
    desk: Arc<Desk>,
    keys: BTreeSet<Key>,
}

impl Desk {
    /// Waits until nobody else has one of these, up to a moment, and takes them all.
    pub(crate) fn take(
        self: &Arc<Desk>,
        keys: BTreeSet<Key>,
        work: &Arc<Work>,
        deadline: Instant,
    ) -> Result<Seat, Refusal> {
        let mut taken = lock(&self.taken);
        loop {
            let in_the_way = keys.iter().find_map(|key| Some((key, taken.get(key)?)));
            let Some((key, other)) = in_the_way else {
                taken.extend(keys.iter().map(|key| (key.clone(), Arc::clone(work))));
                return Ok(Seat { desk: Arc::clone(self), keys });
            };
            let now = Instant::now();
            if now >= deadline || other.is_left() || work.is_left() {
                return Err(other.in_the_way_of(key));
            }
            let pause = LOOK.min(deadline - now);
            let waited = self.changed.wait_timeout(taken, pause);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.taken).is_empty()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.desk.taken).retain(|key, _| !self.keys.contains(key));
        self.desk.changed.notify_all();
    }
}

/// Locks; a thread that panicked has left plain data that is right.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn keys(devices: &[&str], pid: u32) -> BTreeSet<Key> {
        let devices = devices.iter().map(|device| Key::Device((*device).to_owned()));
        devices.chain([Key::Process(pid)]).collect()
    }

    fn work(pid: u32) -> Arc<Work> {
        Work::new(Target { pid, start_ticks: 1 })
    }

    #[test]
    fn an_operation_waits_for_its_device_and_not_for_others() {
        let (desk, far) = (Arc::new(Desk::default()), Instant::now() + Duration::from_secs(600));
        let first = desk.take(keys(&["a"], 1), &work(1), far).expect("it is free");
        let other = desk.take(keys(&["b"], 2), &work(2), far).expect("another device");
        let now = Instant::now();
        let refused = desk.take(keys(&["a", "b"], 3), &work(3), now).expect_err("it is taken");
        assert_eq!(refused, Refusal::UnderWay { pid: 1 });
        thread::scope(|scope| {
            let waiting = scope.spawn(|| desk.take(keys(&["a", "b"], 3), &work(3), far));
            drop((first, other));
            waiting.join().expect("no panic").expect("both are free now");
        });
        assert!(desk.is_empty());
    }

    #[test]
    fn one_that_was_left_alone_is_named_at_once() {
        let (desk, far) = (Arc::new(Desk::default()), Instant::now() + Duration::from_secs(600));
        let hung = work(7);
        hung.begin(Step::Lock);
        let _seat = desk.take(keys(&["a"], 7), &hung, far).expect("it is free");
        hung.leave();
        let refused = desk.take(keys(&["a"], 8), &work(8), far).expect_err("it is taken");
        let Refusal::DeviceTaken { device, pid: 7, step: Step::Lock, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!(device, "a");
        desk.take(keys(&["b"], 8), &work(8), far).expect("other devices go on");
    }
}
