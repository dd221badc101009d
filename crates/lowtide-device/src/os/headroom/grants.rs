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
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use lowtide_types::debug_as;

use crate::os::private_files::PrivateFolder;
use crate::os::process::Generation;
use crate::os::records::{RecordError, Records};
use crate::sync::lock;
use crate::{Bytes, Error, Result};

use super::left::{HostHeadroom, MARGIN};

/// The kind of the records.
const KIND: &str = "host-memory";
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

debug_as!(HostGrant, |it| "HostGrant({})", it.size());

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
        let folder = if self.root == Path::new("/") {
            PrivateFolder::of_user()
        } else {
            PrivateFolder::create(&self.root.join("records"))
        };
        told(folder.map_err(RecordError::from).and_then(|folder| Records::of_kind(KIND, folder)))
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
mod tests {
    // Each test runs in a process of its own, which pretends that the machine has little memory: the book
    // is one per process, and other tests take memory, too.

    use std::fs;
    use std::os::unix::fs::{DirBuilderExt, symlink};
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use lowtide_testing::role::{self, SmallMachine};

    use super::*;
    use crate::{Device, HostOptions, HostPages};

    /// What the issue saw: 999 MiB are left, and two backups want 594 MiB each.
    const LEFT: Bytes = Bytes::mib(999);
    const WANTED: Bytes = Bytes::mib(594);

    fn machine(name: &str) -> SmallMachine {
        SmallMachine::new(name, LEFT + MARGIN, "os::headroom::grants::tests::other")
    }

    fn records(machine: &SmallMachine) -> usize {
        let names = fs::read_dir(machine.root().join("records")).unwrap();
        names.filter(|name| name.as_ref().unwrap().file_name() != "host-memory.lock").count()
    }

    #[test]
    fn other() {
        role::play(|role, root| {
            pretend(root);
            match role {
                "actor" => act(),
                "alone" => alone(),
                "crowd" => crowd(),
                "pages" => pages(),
                "forks" => forks(),
                role => panic!("no role {role}"),
            }
        });
    }

    fn act() {
        let mut grants = Vec::new();
        for order in std::io::stdin().lines() {
            let order = order.unwrap();
            match order.split_once(' ') {
                Some(("grant", mib)) => match grant(Bytes::mib(mib.parse().unwrap())) {
                    Ok(granted) => {
                        grants.push(granted);
                        role::answer("granted");
                    }
                    Err(error) => role::answer(&error.to_string()),
                },
                Some(("written", mib)) => {
                    grants.last().unwrap().shrink(Bytes::mib(mib.parse().unwrap()));
                    role::answer("written");
                }
                _ => panic!("no order {order}"),
            }
        }
    }

    fn alone() {
        let first = grant(WANTED).unwrap();
        let refused = grant(WANTED).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "not enough host memory: 594.0 MiB needed, 405.0 MiB left (the machine's available memory, \
             less 594.0 MiB promised to others); free some or ask for less"
        );
        assert!(require(LEFT - WANTED).is_ok() && require(LEFT - WANTED + Bytes(1)).is_err());
        drop(first);
        let mut all = grant(LEFT).unwrap();
        let part = all.split(Bytes::mib(99));
        assert!(grant(Bytes(1)).is_err());
        drop(all);
        assert_eq!(grant(Bytes::mib(900)).unwrap().size() + part.size(), LEFT);
    }

    fn crowd() {
        let (sum, count) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 1..=8 {
                let (sum, count) = (&sum, &count);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let size = Bytes::mib((turn * 37 + thread * 101) % 500 + 1);
                        let Ok(granted) = grant(size) else { continue };
                        count.fetch_add(1, SeqCst);
                        let now = sum.fetch_add(size.0, SeqCst) + size.0;
                        assert!(now <= LEFT.0, "{} granted at once", Bytes(now));
                        std::thread::yield_now();
                        sum.fetch_sub(size.0, SeqCst);
                        drop(granted);
                    }
                });
            }
        });
        // One thread may be refused each time: the others hold what it wants whenever it asks.
        assert!(count.into_inner() > 0, "nobody was ever granted anything");
        assert!(grant(LEFT).is_ok(), "everything came back");
    }

    fn left() -> Bytes {
        match require(Bytes(u64::MAX)) {
            Err(Error::NoHostHeadroom { left, .. }) => left,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn pages() {
        let (page, size) = (Bytes::mib(2), Bytes::mib(64));
        let pages = HostPages::new(size).unwrap();
        assert_eq!(left(), LEFT - size, "none is resident");
        pages.write(Bytes::ZERO, page, |bytes| bytes.fill(1)).unwrap();
        assert_eq!(left(), LEFT - size + page);
        pages.write(Bytes::ZERO, page, |bytes| bytes.fill(2)).unwrap();
        assert_eq!(left(), LEFT - size + page, "once is enough");
        // A byte each of two pages: both become resident, and keep what is in them.
        pages.write(Bytes::mib(6) - Bytes(1), Bytes(2), |bytes| bytes.fill(3)).unwrap();
        assert_eq!(left(), LEFT - size + page + page + page);
        let read = pages.read(Bytes::mib(6) - Bytes(2), Bytes(4), <[u8]>::to_vec).unwrap();
        assert_eq!(read, [0, 3, 3, 0]);
        drop(pages);
        assert_eq!(left(), LEFT);
        let options = HostOptions { budget: Some(size), small_pages: true };
        let device = Device::host(options).unwrap();
        let (chunk, memory) = (device.create(size).unwrap(), device.host_memory(size).unwrap());
        assert_eq!(left(), LEFT, "the kernel's number has it");
        drop((chunk, memory));
        let mut grant = grant(LEFT).unwrap();
        assert!(device.host_memory(page).is_err());
        drop(device.host_memory_from(&mut grant, page).unwrap());
        assert_eq!((left(), grant.size()), (page, LEFT - page));
        // One that cannot register memory.
        let (counting, _) = Device::dry_run(size);
        assert!(counting.host_memory_from(&mut grant, page).is_err());
        assert_eq!(grant.size(), LEFT - page, "a failure takes nothing");
    }

    fn forks() {
        let granted = grant(WANTED).unwrap();
        // SAFETY: the child touches only what is tested here, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Its parent's counts; dropping it gives nothing back.
            let refused = grant(WANTED).is_err();
            drop(granted);
            let right = refused && grant(WANTED).is_err() && grant(LEFT - WANTED).is_ok();
            // SAFETY: ends the child without the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child was granted its parent's memory");
        assert_eq!(left(), LEFT - WANTED);
    }

    #[test]
    fn memory_is_promised_once_in_a_process() {
        machine("alone").run("alone");
    }

    #[test]
    fn many_threads_are_never_promised_more_than_is_left() {
        machine("crowd").run("crowd");
    }

    #[test]
    fn a_grant_shrinks_as_pages_become_resident_and_no_failure_keeps_it() {
        machine("pages").run("pages");
    }

    #[test]
    fn a_forked_child_counts_what_its_parent_was_granted() {
        machine("forks").run("forks");
    }

    #[test]
    fn memory_is_promised_once_to_the_processes_of_a_user() {
        let machine = machine("processes");
        let (mut one, mut two) = (machine.start("actor"), machine.start("actor"));
        assert_eq!(one.ask("grant 594"), "granted");
        let refused = two.ask("grant 594");
        assert!(
            refused.contains("405.0 MiB left") && refused.contains("594.0 MiB promised"),
            "{refused}"
        );
        // What has become resident is in the kernel's number, which falls by as much.
        assert_eq!(one.ask("written 500"), "written");
        machine.set_available(LEFT + MARGIN - Bytes::mib(500));
        let refused = two.ask("grant 594");
        assert!(
            refused.contains("405.0 MiB left") && refused.contains("94.0 MiB promised"),
            "{refused}"
        );
        assert_eq!(two.ask("grant 400"), "granted");
        let refused = one.ask("grant 100");
        assert!(refused.contains("5.0 MiB left"), "{refused}");
        // The record of a process that was killed is taken away.
        drop(two);
        assert_eq!(records(&machine), 2);
        assert_eq!(one.ask("grant 400"), "granted");
        assert_eq!(records(&machine), 1);
    }

    #[test]
    fn a_directory_that_others_could_have_planted_is_not_used() {
        type Plant = fn(&Path);
        let plants: [(&str, Plant); 3] = [
            ("link", |at| {
                let elsewhere = at.with_file_name("elsewhere");
                fs::DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
                symlink(elsewhere, at).unwrap();
            }),
            ("file", |at| fs::write(at, "").unwrap()),
            ("lock", |at| {
                fs::DirBuilder::new().mode(0o700).create(at).unwrap();
                symlink("/dev/null", at.join("host-memory.lock")).unwrap();
            }),
        ];
        for (name, plant) in plants {
            let machine = machine(name);
            plant(&machine.root().join("records"));
            let (mut one, mut two) = (machine.start("actor"), machine.start("actor"));
            assert_eq!(one.ask("grant 594"), "granted", "{name}");
            // Each counts its own, and nothing was written there.
            assert_eq!(two.ask("grant 594"), "granted", "{name}");
            assert!(two.ask("grant 594").contains("405.0 MiB left"), "{name}");
            let elsewhere = fs::read_dir(machine.root().join("elsewhere"));
            assert!(elsewhere.map_or(0, Iterator::count) == 0, "{name}: a link was followed");
        }
    }
}
