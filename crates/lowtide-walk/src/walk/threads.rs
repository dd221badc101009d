//! Threads that help with a walk. They exist only during a part of it.
//!
//! The calling thread has the interpreter's lock and waits for them, so nothing changes under their
//! hands. They have no thread state of the interpreter: they may read objects, and nothing else.
//! Signals are for the program's own threads.

use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::ptr::null_mut;
use std::thread;

/// With fewer objects than this, threads cost more time than they save.
const WORTH_THREADS: usize = 100_000;
/// More threads than this wait for memory and for each other.
const THREADS_MOST: usize = 8;
/// What a thread needs of its stack is a few KiB.
const STACK_BYTES: usize = 256 << 10;

/// Returns how many threads walk over so many objects, the calling one included.
pub(crate) fn threads_for(objects: usize) -> NonZeroUsize {
    if objects < WORTH_THREADS {
        return NonZeroUsize::MIN;
    }
    let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    NonZeroUsize::new(THREADS_MOST).map_or(cores, |most| cores.min(most))
}

/// Runs `own` in this thread and `help` in up to `threads - 1` others, and returns when all have
/// ended. If the system refuses a thread, there are fewer: `own` must be able to do everything.
pub(crate) fn together(threads: NonZeroUsize, help: impl Fn() + Sync, own: impl FnOnce()) {
    if threads == NonZeroUsize::MIN {
        return own();
    }
    thread::scope(|scope| {
        let blocked = Blocked::all();
        for _ in 1..threads.get() {
            let thread = thread::Builder::new().name("lowtide-walk".into()).stack_size(STACK_BYTES);
            if thread.spawn_scoped(scope, &help).is_err() {
                break;
            }
        }
        drop(blocked);
        own();
    });
}

/// While this exists, no signal is handled in this thread, and in no thread that it starts.
pub(crate) struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks every signal.
    pub(crate) fn all() -> Blocked {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: it writes a whole set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the first set was written, and it writes the second. It cannot fail: the
        // operation is one that exists.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: it was written.
        Blocked(unsafe { before.assume_init() })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn is_blocked(signal: i32) -> bool {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: it writes a whole set and changes nothing.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr()) };
        // SAFETY: the set was written.
        unsafe { libc::sigismember(mask.as_ptr(), signal) == 1 }
    }

    #[test]
    fn helpers_handle_no_signals_and_the_caller_does() {
        let (helpers, blocked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let help = || {
            helpers.fetch_add(1, Ordering::Relaxed);
            let all = [libc::SIGINT, libc::SIGALRM, libc::SIGUSR1].into_iter().all(is_blocked);
            blocked.fetch_add(usize::from(all), Ordering::Relaxed);
        };
        together(NonZeroUsize::new(4).unwrap(), help, || assert!(!is_blocked(libc::SIGINT)));
        assert_eq!((helpers.into_inner(), blocked.into_inner()), (3, 3));
        assert!(!is_blocked(libc::SIGINT));
    }

    #[test]
    fn few_objects_have_one_thread() {
        assert_eq!(threads_for(WORTH_THREADS - 1), NonZeroUsize::MIN);
        assert!(threads_for(WORTH_THREADS).get() <= THREADS_MOST);
    }
}
