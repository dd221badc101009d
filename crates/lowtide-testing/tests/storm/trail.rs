//! The last operations of every thread, for a failure's report, and the failure itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::figures;

/// The operations that are kept of each thread.
const KEPT: usize = 24;
/// A thread without a new operation for this long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// The beginning of the message of every panic that the storm itself raises.
pub(crate) const ON_PURPOSE: &str = "on purpose";

static TRAILS: Mutex<Vec<Arc<Trail>>> = Mutex::new(Vec::new());
static SEED: AtomicU64 = AtomicU64::new(0);

struct Trail {
    name: String,
    last: Mutex<(Instant, VecDeque<String>)>,
}

thread_local! {
    static OWN: RefCell<Option<Arc<Trail>>> = const { RefCell::new(None) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the operations of this thread until it is dropped.
pub(crate) struct Recorded(Arc<Trail>);

impl Recorded {
    pub(crate) fn new(name: impl Into<String>) -> Recorded {
        let last = Mutex::new((Instant::now(), VecDeque::new()));
        let trail = Arc::new(Trail { name: name.into(), last });
        lock(&TRAILS).push(Arc::clone(&trail));
        OWN.with_borrow_mut(|own| *own = Some(Arc::clone(&trail)));
        Recorded(trail)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        lock(&TRAILS).retain(|trail| !Arc::ptr_eq(trail, &self.0));
        OWN.with_borrow_mut(|own| *own = None);
    }
}

/// Records what this thread is about to do.
pub(crate) fn note(operation: impl Display) {
    OWN.with_borrow(|own| {
        let Some(trail) = own else { return };
        let mut last = lock(&trail.last);
        last.0 = Instant::now();
        last.1.push_back(operation.to_string());
        if last.1.len() > KEPT {
            last.1.pop_front();
        }
    });
}

/// Panics on purpose, where a caller's code may.
pub(crate) fn panic_on_purpose(place: &str) -> ! {
    panic!("{ON_PURPOSE}: {place}")
}

/// Makes every panic that the storm did not raise a failure, and counts the others.
pub(crate) fn watch_panics(seed: u64) {
    SEED.store(seed, SeqCst);
    panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let message = text.unwrap_or("without a message");
        if message.starts_with(ON_PURPOSE) {
            figures::with(|figures| figures.panics += 1);
            return;
        }
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        fail(format!("a panic at {place}: {message}"));
    }));
}

/// Fails if a thread hangs. Called again and again by the child's first thread.
pub(crate) fn fail_if_one_hangs() {
    let hangs = |trail: &&Arc<Trail>| lock(&trail.last).0.elapsed() > HANGS_AFTER;
    let hanging = lock(&TRAILS).iter().find(hangs).map(|trail| trail.name.clone());
    if let Some(name) = hanging {
        fail(format!("{name} hangs: no new operation for {} s", HANGS_AFTER.as_secs()));
    }
}

/// Prints the seed and the last operations of each thread, and ends the process with exit code 1.
pub(crate) fn fail(why: impl Display) -> ! {
    static FAILED: Mutex<()> = Mutex::new(());
    let _only_one = lock(&FAILED);
    let me = std::thread::current();
    eprintln!("storm failed in {}: {why}", me.name().unwrap_or("a thread"));
    eprintln!("seed of this child: {}", SEED.load(SeqCst));
    for trail in &*lock(&TRAILS) {
        let last = lock(&trail.last);
        eprintln!("{}, last operation {} ms ago:", trail.name, last.0.elapsed().as_millis());
        for operation in &last.1 {
            eprintln!("    {operation}");
        }
    }
    std::process::exit(1)
}
