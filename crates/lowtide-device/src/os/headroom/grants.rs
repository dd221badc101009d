//! Grants: host memory that a caller may take, counted from the promise on.
//!
//! The kernel's number falls only when pages become resident. Two callers that read it before either
//! has written a page would both be told that there is room, and the kernel would kill the process. So
//! memory is granted before it is mapped, and a grant shrinks as pages become resident. Grants of all
//! threads and of this user's other processes count; the other processes' are in `records.rs`.
#![allow(
    unsafe_code,
    reason = "keeps the book of this process behind a pointer that a fork outlives"
)]

use std::cell::OnceCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use crate::os::process::Generation;
use crate::sync::lock;
use crate::{Bytes, Error, Result};

use super::left::{HostHeadroom, MARGIN};
use super::records::{RecordError, Records};

/// The record on disk is renewed when this much has become resident: until then it says too much, which
/// does no harm.
const WORTH_WRITING: Bytes = Bytes::mib(32);

/// Host memory that was granted and is not resident yet. Dropping it gives the rest back.
///
/// ```
/// use lowtide_device::{Bytes, HostPages, headroom};
/// # fn main() -> lowtide_device::Result<()> {
/// // Granted together: either both pieces fit, or nothing is taken.
/// let mut grant = headroom::grant(Bytes::mib(6))?;
/// let first = HostPages::granted(grant.split(Bytes::mib(2)))?;
/// let second = HostPages::granted(grant)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it gives the memory to others"]
pub struct HostGrant {
    book: &'static Book,
    left: AtomicU64,
}

impl HostGrant {
    /// Returns the bytes that are granted and not resident.
    pub fn size(&self) -> Bytes {
        Bytes(self.left.load(Ordering::Relaxed))
    }

    /// Splits a part off, at most all of it.
    pub fn split(&mut self, size: Bytes) -> HostGrant {
        let part = size.min(self.size());
        *self.left.get_mut() -= part.0;
        HostGrant { book: self.book, left: AtomicU64::new(part.0) }
    }

    /// Joins a part that was split off.
    pub(crate) fn join(&mut self, mut part: HostGrant) {
        *self.left.get_mut() += std::mem::take(part.left.get_mut());
    }

    /// Says that this much has become resident: the kernel's number has it now.
    pub(crate) fn shrink(&self, by: Bytes) {
        let take = |left: u64| Some(left.saturating_sub(by.0));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = before.unwrap_or_else(|left| left);
        self.book.give_back(by.min(Bytes(before)));
    }
}

impl Drop for HostGrant {
    fn drop(&mut self) {
        self.shrink(self.size());
    }
}

impl fmt::Debug for HostGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostGrant({})", self.size())
    }
}

/// Grants host memory, with a margin of 256 MiB that stays with the machine.
///
/// # Errors
/// [`Error::NoHostHeadroom`] with what is left and the limit.
pub fn grant(requested: Bytes) -> Result<HostGrant> {
    let book = book();
    book.decide(requested, true)?;
    Ok(HostGrant { book, left: AtomicU64::new(requested.0) })
}

/// Checks that this much host memory could be granted. Only a look: another caller may take it next.
///
/// # Errors
/// [`Error::NoHostHeadroom`] with what is left and the limit.
pub fn require(requested: Bytes) -> Result<()> {
    book().decide(requested, false)
}

/// The grants of one process.
struct Book {
    /// A forked child has its parent's book, and makes its own.
    made_in: Generation,
    /// Where the kernel's numbers are.
    root: PathBuf,
    grants: Mutex<Grants>,
}

struct Grants {
    granted: Bytes,
    /// The number in this process's record.
    written: Bytes,
    /// The records of this user's processes, opened at the first request; `None` if the directory cannot
    /// be used: only this process's grants count then.
    records: OnceCell<Option<Records>>,
}

static CURRENT: AtomicPtr<Book> = AtomicPtr::new(std::ptr::null_mut());

fn book() -> &'static Book {
    let known = CURRENT.load(Ordering::Acquire);
    // SAFETY: null, or a book that `install` leaked.
    let book = unsafe { known.as_ref() };
    match book {
        Some(book) if book.made_in.is_current() => book,
        _ => install(known, book.map_or(Path::new("/"), |book| &book.root)),
    }
}

fn install(known: *mut Book, root: &Path) -> &'static Book {
    let grants = Grants { granted: Bytes::ZERO, written: Bytes::ZERO, records: OnceCell::new() };
    let (made_in, grants) = (Generation::current(), Mutex::new(grants));
    let book = Book { made_in, root: root.to_owned(), grants };
    // One per process: grants refer to it until the end.
    let fresh = Box::into_raw(Box::new(book));
    match CURRENT.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and never freed from now on.
        Ok(_) => unsafe { &*fresh },
        Err(faster) => {
            // SAFETY: just made, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: another thread's, never freed.
            unsafe { &*faster }
        }
    }
}

/// Reads the kernel's numbers, and keeps records, under another root from now on. For tests, which
/// write small numbers there.
#[doc(hidden)]
pub fn pretend(root: &Path) {
    install(CURRENT.load(Ordering::Acquire), root);
}

impl Book {
    fn decide(&self, requested: Bytes, is_taken: bool) -> Result<()> {
        let mut grants = lock(&self.grants);
        let Grants { granted, written, records } = &mut *grants;
        let records = records.get_or_init(|| self.open()).as_ref();
        // Held until this process's record has the new number.
        let locked = records.and_then(|records| told(records.lock()));
        // Grants are read before the kernel's number: what becomes resident in between counts twice
        // then, and never not at all.
        let others = locked.as_ref().and_then(|locked| told(locked.others()));
        let promised = *granted + others.unwrap_or(Bytes::ZERO);
        let HostHeadroom { left, limit } = HostHeadroom::under(&self.root);
        let left = left.saturating_sub(MARGIN).saturating_sub(promised);
        if requested > left {
            return Err(Error::NoHostHeadroom { requested, left, limit, promised });
        }
        if is_taken {
            *granted += requested;
            write(records, *granted, written);
        }
        Ok(())
    }

    fn open(&self) -> Option<Records> {
        let is_real = self.root == Path::new("/");
        let records =
            if is_real { Records::of_user() } else { Records::create(&self.root.join("records")) };
        told(records)
    }

    fn give_back(&self, size: Bytes) {
        // In a forked child it was the parent's.
        if size == Bytes::ZERO || !self.made_in.is_current() {
            return;
        }
        let mut grants = lock(&self.grants);
        let Grants { granted, written, records } = &mut *grants;
        *granted = *granted - size;
        if *granted > Bytes::ZERO && written.saturating_sub(*granted) < WORTH_WRITING {
            return;
        }
        let records = records.get().and_then(Option::as_ref);
        // Not while another process adds the records up. Where that takes too long, a number that is
        // read half old and half new does less harm than one that stays.
        let _locked = records.and_then(|records| records.lock().ok());
        write(records, *granted, written);
    }
}

fn write(records: Option<&Records>, granted: Bytes, written: &mut Bytes) {
    if records.and_then(|records| told(records.write(granted))).is_some() {
        *written = granted;
    }
}

// Says once why other processes' grants are not known.
fn told<T>(outcome: Result<T, RecordError>) -> Option<T> {
    static ONCE: Once = Once::new();
    let warn = |error: &RecordError| {
        ONCE.call_once(|| {
            tracing::warn!(
                %error,
                "host memory granted to other processes is not known; only this process's counts"
            );
        });
    };
    outcome.inspect_err(warn).ok()
}

#[cfg(test)]
mod tests;
