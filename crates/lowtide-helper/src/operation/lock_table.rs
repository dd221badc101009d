//! The operations that are under way. One at a time is at work on a device, and one on a process.
//!
//! An operation takes all that it needs at once, so that two never wait for each other. One that nobody
//! waits for any more keeps its devices until its step ends; others are refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lowtide_proto::helper::{Refusal, Step, Target};

/// The longest wait before the table is looked at again: an operation may be left alone meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// Something that one operation uses at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    /// A device, by its UUID.
    Device(String),
    /// A process, by its number.
    Process(u32),
}

/// An operation on a process.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) target: Target,
    step: Mutex<Option<(Step, Instant)>>,
    is_left: AtomicBool,
}

impl Operation {
    /// Begins an operation.
    pub(crate) fn new(target: Target) -> Arc<Operation> {
        Arc::new(Operation { target, step: Mutex::new(None), is_left: AtomicBool::new(false) })
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

    fn in_the_way_of(&self, resource: &Resource) -> Refusal {
        let pid = self.target.pid;
        match (resource, *lock(&self.step)) {
            (Resource::Device(device), Some((step, since))) if self.is_left() => {
                let ran_ms = since.elapsed().as_millis() as u64;
                Refusal::DeviceTaken { device: device.clone(), pid, step, ran_ms }
            }
            _ => Refusal::UnderWay { pid },
        }
    }
}

/// All operations of this helper.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    taken: Mutex<BTreeMap<Resource, Arc<Operation>>>,
    changed: Condvar,
}

/// The right to be at work on devices and processes. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Exclusive {
    lock_table: Arc<LockTable>,
    resources: BTreeSet<Resource>,
}

impl LockTable {
    /// Waits until nobody else has one of these, up to a moment, and takes them all.
    pub(crate) fn take(
        self: &Arc<LockTable>,
        resources: BTreeSet<Resource>,
        operation: &Arc<Operation>,
        deadline: Instant,
    ) -> Result<Exclusive, Refusal> {
        let mut taken = lock(&self.taken);
        loop {
            let in_the_way =
                resources.iter().find_map(|resource| Some((resource, taken.get(resource)?)));
            let Some((resource, other)) = in_the_way else {
                taken.extend(
                    resources.iter().map(|resource| (resource.clone(), Arc::clone(operation))),
                );
                return Ok(Exclusive { lock_table: Arc::clone(self), resources });
            };
            let now = Instant::now();
            if now >= deadline || other.is_left() || operation.is_left() {
                return Err(other.in_the_way_of(resource));
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

impl Drop for Exclusive {
    fn drop(&mut self) {
        lock(&self.lock_table.taken).retain(|resource, _| !self.resources.contains(resource));
        self.lock_table.changed.notify_all();
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

    fn resources(devices: &[&str], pid: u32) -> BTreeSet<Resource> {
        let devices = devices.iter().map(|device| Resource::Device((*device).to_owned()));
        devices.chain([Resource::Process(pid)]).collect()
    }

    fn operation(pid: u32) -> Arc<Operation> {
        Operation::new(Target { pid, start_ticks: 1 })
    }

    #[test]
    fn an_operation_waits_for_its_device_and_not_for_others() {
        let (lock_table, far) =
            (Arc::new(LockTable::default()), Instant::now() + Duration::from_secs(600));
        let first = lock_table.take(resources(&["a"], 1), &operation(1), far).expect("it is free");
        let other =
            lock_table.take(resources(&["b"], 2), &operation(2), far).expect("another device");
        let now = Instant::now();
        let refused = lock_table
            .take(resources(&["a", "b"], 3), &operation(3), now)
            .expect_err("it is taken");
        assert_eq!(refused, Refusal::UnderWay { pid: 1 });
        thread::scope(|scope| {
            let waiting =
                scope.spawn(|| lock_table.take(resources(&["a", "b"], 3), &operation(3), far));
            drop((first, other));
            waiting.join().expect("no panic").expect("both are free now");
        });
        assert!(lock_table.is_empty());
    }

    #[test]
    fn one_that_was_left_alone_is_named_at_once() {
        let (lock_table, far) =
            (Arc::new(LockTable::default()), Instant::now() + Duration::from_secs(600));
        let hung = operation(7);
        hung.begin(Step::Lock);
        let _seat = lock_table.take(resources(&["a"], 7), &hung, far).expect("it is free");
        hung.leave();
        let refused =
            lock_table.take(resources(&["a"], 8), &operation(8), far).expect_err("it is taken");
        let Refusal::DeviceTaken { device, pid: 7, step: Step::Lock, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!(device, "a");
        lock_table.take(resources(&["b"], 8), &operation(8), far).expect("other devices go on");
    }
}
