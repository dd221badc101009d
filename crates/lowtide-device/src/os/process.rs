//! Forks: how something notices that it is in a child of the process that made it.
//!
//! A forked child has copies of its parent's tables and handles, and none of its threads. If it used
//! them it would work on the parent's memory, or wait for a thread that does not exist. So everything
//! that belongs to one process remembers that process's generation, and refuses in every other.
//!
//! The generation is a number in a page that the kernel clears in a forked child, however it was forked.
//! Looking at it costs one load, and no call of the kernel.
#![allow(unsafe_code, reason = "maps the page, and registers a C handler for forks")]

use std::io::{self, ErrorKind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use lowtide_types::{debug_as, kernel_text};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

pub use super::exit::has_begun as has_exit_begun;
use crate::{Error, Result};

/// The process that something was made in. A forked child has another generation than its parent.
///
/// ```
/// use lowtide_device::process::Generation;
///
/// let made_in = Generation::current();
/// assert!(made_in.is_current()); // false in a child that is forked later
/// ```
#[derive(Clone, Copy)]
pub struct Generation {
    number: u64,
    /// The number of the process that looks; zero in a child that has none yet.
    of_this_process: &'static AtomicU64,
}

impl Generation {
    /// Returns the generation of this process.
    pub fn current() -> Generation {
        /// The last number given to this process or its ancestors.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let of_this_process = cell();
        let known = of_this_process.load(Ordering::Acquire);
        if known != 0 {
            return Generation { number: known, of_this_process };
        }
        let next = LAST.fetch_add(1, Ordering::SeqCst) + 1;
        // Another thread may have been faster.
        let number = of_this_process
            .compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|faster| faster, |_| next);
        Generation { number, of_this_process }
    }

    /// Returns whether this process is the one that the generation was taken in. Costs one load.
    #[inline]
    pub fn is_current(self) -> bool {
        self.of_this_process.load(Ordering::Relaxed) == self.number
    }

    /// Refuses in a child of the process that the generation was taken in.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub fn check(self) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked) }
    }
}

impl PartialEq for Generation {
    fn eq(&self, other: &Generation) -> bool {
        self.number == other.number
    }
}

impl Eq for Generation {}

debug_as!(Generation, |it| "Generation({})", it.number);

/// Returns the time at which a process started, in clock ticks since the boot. `process` is a PID or `self`.
///
/// # Errors
/// Those of reading `/proc`.
pub fn start_ticks(process: &str) -> io::Result<u64> {
    let stat = kernel_text(format!("/proc/{process}/stat"))?;
    // The name of the program is in parentheses and may contain anything.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
    let start = fields.and_then(|mut fields| fields.nth(19)?.parse().ok());
    start.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "/proc/PID/stat is not as known"))
}

/// The page, once it is mapped.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// Stands in for the page where none can be had; then only the C library's forks are noticed.
static WITHOUT_PAGE: AtomicU64 = AtomicU64::new(0);

// No lock and no `Once`: a fork may come at any time, and would leave them as they are in the child.
fn cell() -> &'static AtomicU64 {
    let mut at = PAGE.load(Ordering::Acquire);
    if at.is_null() {
        let mapped = map_cleared_in_children();
        let new = mapped.unwrap_or_else(|| (&raw const WITHOUT_PAGE).cast_mut());
        match PAGE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // Where the kernel clears the page itself, this does so once more.
            // SAFETY: the handler only stores to memory that stays for good, and cannot unwind.
            Ok(_) if unsafe { libc::pthread_atfork(None, None, Some(forked)) } != 0 => {
                tracing::warn!("no handler for forks could be registered");
                at = new;
            }
            Ok(_) => at = new,
            // Another thread was faster. The page that was mapped in vain is kept: it is one page.
            Err(faster) => at = faster,
        }
    }
    // SAFETY: the static, or a page that stays mapped for good.
    unsafe { &*at }
}

extern "C" fn forked() {
    let at = PAGE.load(Ordering::Relaxed);
    if !at.is_null() {
        // SAFETY: as in `cell`.
        unsafe { &*at }.store(0, Ordering::Relaxed);
    }
}

fn map_cleared_in_children() -> Option<*mut AtomicU64> {
    let (size, access) = (super::memory::SMALL_PAGE, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a fresh anonymous page at an address of the kernel's choice touches nothing of ours.
    let at = unsafe { mm::mmap_anonymous(ptr::null_mut(), size, access, MapFlags::PRIVATE) };
    let at = at.ok()?;
    // SAFETY: advice about the page just mapped. A kernel before 4.14 does not know it; then the
    // handler alone clears the page.
    let _unknown = unsafe { mm::madvise(at, size, Advice::LinuxWipeOnFork) };
    Some(at.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_generation() {
        let generations: Vec<Generation> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(Generation::current)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(generations.iter().all(|one| *one == generations[0] && one.is_current()));
        generations[0].check().unwrap();
    }
}
