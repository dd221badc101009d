//! Tallies of this user's processes: a small file of each in the folder of running programs.
//!
//! A process counts after each receipt: it opens its file by its own PID and start, adds, and writes all numbers with
//! one call. So nothing stays open or mapped, a forked child counts for itself, and a process that is killed loses
//! the event that it was counting at most. Who reads the sum folds the files of processes that have ended into one;
//! so does a process that makes its file, lest they pile up where nobody reads.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Once, OnceLock};
use std::time::Duration;
use std::{process, thread};

use lowtide_types::{Act, Bytes, Moved, Receipt, Tally};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::os::private_files::{PrivateFileError, PrivateFolder};
use crate::os::process::start_ticks;

/// The beginning of the files' names: `tally-NAMESPACE-PID-START-WHO`.
const PREFIX: &str = "tally-";
/// The sum of processes that have ended, and which file was added last.
const ENDED: &str = "tallies-of-ended";
const LOCK: &str = "tallies.lock";
/// More than any file of this kind has.
const MOST: u64 = 1 << 16;
/// The age at which a file of another PID namespace counts as that of a process that has ended. One that lives on
/// begins a new file.
const FOREIGN_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// The tries to get a lock, and the pause between them: about a second.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);
/// The most files of processes that have ended which one that begins to count adds: more would delay what it counts.
const FOLDED_MOST: usize = 16;

/// An error of the files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TallyError {
    /// An error of the folder or of a file in it.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The kernel refused an operation.
    #[error("the counters of running programs: {0}")]
    Io(#[from] io::Error),
    /// Another process is at it, and does not end.
    #[error("another process keeps {} locked", .0.display())]
    Locked(PathBuf),
}

/// What this process counts as, and in which folder.
static OWN: OnceLock<(&'static str, Option<PathBuf>)> = OnceLock::new();

/// Has this process count from now on, under a short name for the part of lowtide that counts: in a folder, or in
/// that of this user's running programs. Before, nothing is counted and no file is made.
pub fn begin(who: &'static str, folder: Option<PathBuf>) {
    let _begun_already = OWN.set((who, folder));
}

/// Counts a release.
pub fn receipt(receipt: &Receipt) {
    count(|tally| tally.receipt(receipt));
}

/// Counts an act that took so many seconds.
pub fn took(act: Act, took_s: f64) {
    count(|tally| tally.took(act, took_s));
}

/// Counts a wake.
pub fn woke(bytes: Bytes, took_s: f64) {
    count(|tally| {
        tally.took(Act::Wake, took_s);
        tally.moved(Moved::Woken, bytes);
    });
}

/// Returns what all processes of a folder have counted, those that have ended included.
///
/// # Errors
/// [`TallyError`].
pub fn sum(folder: &PrivateFolder) -> Result<Tally, TallyError> {
    let lock = Lock::take(own_file(folder, LOCK)?, TRIES)?;
    let Some(_lock) = lock else { return Err(TallyError::Locked(folder.path().join(LOCK))) };
    let (mut sum, alive) = fold(folder, usize::MAX)?;
    for name in alive {
        // One that is no tally counts nothing, and stays.
        let bytes = ours(folder.read(&name, MOST))?.unwrap_or_default();
        sum.add(&Tally::from_bytes(&bytes).unwrap_or_default());
    }
    Ok(sum)
}

fn count(event: impl FnOnce(&mut Tally)) {
    static SAID: Once = Once::new();
    let Some((who, folder)) = OWN.get() else { return };
    let counted = || -> Result<(), TallyError> {
        let folder = match folder {
            Some(path) => PrivateFolder::create(path)?,
            None => PrivateFolder::of_user()?,
        };
        let name = format!("{}{who}", prefix_of(&process::id().to_string(), "self")?);
        write(&folder, &name, event)
    };
    if let Err(error) = counted() {
        SAID.call_once(|| tracing::warn!(%error, "what this process does is not counted"));
    }
}

fn write(
    folder: &PrivateFolder,
    name: &str,
    event: impl FnOnce(&mut Tally),
) -> Result<(), TallyError> {
    for _ in 0..TRIES {
        let file = if let Some(file) = folder.open_existing(name)? {
            file
        } else {
            if let Some(_lock) = Lock::take(own_file(folder, LOCK)?, 1)? {
                fold(folder, FOLDED_MOST)?;
            }
            own_file(folder, name)?
        };
        let Some(lock) = Lock::take(file, TRIES)? else { break };
        // Another process may just have added it to those that have ended.
        if lock.0.metadata()?.nlink() == 0 {
            continue;
        }
        let mut bytes = vec![0; Tally::SIZE];
        let length = lock.0.read_at(&mut bytes, 0)?;
        // What is no tally is begun anew.
        let mut tally = Tally::from_bytes(&bytes[..length]).unwrap_or_default();
        event(&mut tally);
        return Ok(lock.0.write_all_at(&tally.to_bytes(), 0)?);
    }
    Err(TallyError::Locked(folder.path().join(name)))
}

/// Returns nothing of what is no file of ours.
fn ours<T>(found: Result<Option<T>, PrivateFileError>) -> Result<Option<T>, PrivateFileError> {
    use PrivateFileError::{Foreign, NotAFile, TooLarge};
    found.or_else(|error| match error {
        NotAFile { .. } | Foreign { .. } | TooLarge { .. } => Ok(None),
        error => Err(error),
    })
}

/// Adds the files of at most so many processes that have ended to their sum, and returns it with the names of the
/// others. The caller has the lock of the folder.
fn fold(folder: &PrivateFolder, most: usize) -> Result<(Tally, Vec<String>), TallyError> {
    let ended = folder.read(ENDED, MOST)?.unwrap_or_default();
    let (numbers, last) = ended.split_at(ended.len().min(Tally::SIZE));
    let mut sum = Tally::from_bytes(numbers).unwrap_or_default();
    let (mut alive, mut folded) = (Vec::new(), 0);
    for name in folder.names()? {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        if folded == most || !has_ended(folder, name)? {
            alive.push(name.to_owned());
            continue;
        }
        let Some(file) = ours(folder.open_existing(name))? else { continue };
        let Some(lock) = Lock::take(file, 1)? else { continue };
        // A process that lives on has made another file of this name.
        let found = lock.0.metadata()?;
        let this = format!("{name} {}.{}", found.mtime(), found.mtime_nsec());
        // If it was the last, whoever added it was killed before it was removed.
        if this.as_bytes() != last {
            let bytes = ours(folder.read(name, MOST))?.unwrap_or_default();
            sum.add(&Tally::from_bytes(&bytes).unwrap_or_default());
            folder.replace(ENDED, &[&sum.to_bytes(), this.as_bytes()].concat())?;
        }
        folder.remove(name)?;
        folded += 1;
    }
    Ok((sum, alive))
}

fn has_ended(folder: &PrivateFolder, name: &str) -> io::Result<bool> {
    let pid = name.split('-').nth(2).unwrap_or_default();
    let of_process = prefix_of(pid, pid);
    let namespace = |prefix: &str| prefix.split('-').nth(1).map(str::to_owned);
    if namespace(name) == namespace(&prefix_of("", "self")?) {
        return Ok(!of_process.is_ok_and(|prefix| name.starts_with(&prefix)));
    }
    let written = fs::metadata(folder.path().join(name)).and_then(|file| file.modified());
    Ok(written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > FOREIGN_MOST)))
}

/// Returns the beginning of the name of a process's file: its PID and when it started.
fn prefix_of(pid: &str, process: &str) -> io::Result<String> {
    let namespace = fs::read_link("/proc/thread-self/ns/pid")?;
    let digits = namespace.to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
    Ok(format!("{PREFIX}{digits}-{pid}-{}-", start_ticks(process)?))
}

fn own_file(folder: &PrivateFolder, name: &str) -> Result<File, PrivateFileError> {
    match folder.open_existing(name)? {
        Some(file) => Ok(file),
        // Another thread or process may have been faster.
        None => folder.create_file(name).or_else(|error| folder.open_existing(name)?.ok_or(error)),
    }
}

/// A file that no other thread or process has locked.
struct Lock(File);

impl Lock {
    fn take(file: File, tries: u32) -> io::Result<Option<Lock>> {
        for attempt in 1..=tries {
            match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Lock(file))),
                Err(Errno::WOULDBLOCK) if attempt < tries => thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Not by closing it alone: a child that was forked meanwhile has it open, too.
        let _unlocked = flock(self.0.as_fd(), FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn folder() -> (tempfile::TempDir, PrivateFolder) {
        let at = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::create(&at.path().join("run")).unwrap();
        (at, folder)
    }

    /// A process that lives until it is dropped.
    struct Other(Child);

    impl Other {
        fn start() -> Other {
            Other(Command::new("cat").stdin(Stdio::piped()).spawn().unwrap())
        }

        fn name(&self) -> String {
            let pid = self.0.id().to_string();
            format!("{}test", prefix_of(&pid, &pid).unwrap())
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn wakes(folder: &PrivateFolder) -> u64 {
        sum(folder).unwrap().times(Act::Wake).count()
    }

    #[test]
    fn every_event_of_many_threads_counts_once_while_others_read() {
        let (_at, folder) = folder();
        let (one, two) = (Other::start(), Other::start());
        let names = [one.name(), two.name()];
        let count = |name: &str| write(&folder, name, |tally| tally.took(Act::Wake, 0.5)).unwrap();
        thread::scope(|scope| {
            for name in names.iter().cycle().take(6) {
                scope.spawn(|| (0..50).for_each(|_| count(name)));
            }
            let mut last = 0;
            for _ in 0..20 {
                let now = wakes(&folder);
                assert!(last <= now, "{last} and then {now}");
                last = now;
            }
        });
        assert_eq!(wakes(&folder), 300);
        assert_eq!(sum(&folder).unwrap().times(Act::Wake).sum_ns, 150_000_000_000);
    }

    #[test]
    fn what_a_process_counted_is_there_once_after_its_end_whenever_the_reader_is_killed() {
        let (_at, folder) = folder();
        let process = Other::start();
        let name = process.name();
        (0..3).for_each(|_| write(&folder, &name, |it| it.took(Act::Wake, 0.1)).unwrap());
        assert_eq!(wakes(&folder), 3);
        assert!(folder.read(ENDED, MOST).unwrap().is_none(), "it is alive");
        let bytes = folder.read(&name, MOST).unwrap().unwrap();
        let path = folder.path().join(&name);
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        drop(process);
        assert_eq!(wakes(&folder), 3);
        let left = folder.names().unwrap();
        assert_eq!(left, [ENDED, LOCK], "its file is gone");
        // Killed after the sum was written, and before the file was removed.
        folder.replace(&name, &bytes).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        assert_eq!((wakes(&folder), wakes(&folder)), (3, 3));
        // Another process of this number.
        let later = name.replace("-test", "0-test");
        folder.replace(&later, &bytes).unwrap();
        assert_eq!((wakes(&folder), wakes(&folder)), (6, 6));
    }

    #[test]
    fn what_is_no_tally_keeps_nobody_from_counting_and_many_of_the_dead_delay_nobody() {
        let (_at, folder) = folder();
        let process = Other::start();
        let namespace = process.name().split('-').nth(1).unwrap().to_owned();
        let dead = |pid: usize| format!("{PREFIX}{namespace}-{}-5-test", 99_000_000 + pid);
        let at = |name: String| folder.path().join(name);
        std::os::unix::fs::symlink("/etc/passwd", at(dead(0))).unwrap();
        fs::create_dir(at(dead(1))).unwrap();
        folder.replace(&dead(2), &vec![1; MOST as usize + 1]).unwrap();
        let mut tally = Tally::default();
        tally.took(Act::Wake, 0.1);
        for pid in 3..103 {
            folder.replace(&dead(pid), &tally.to_bytes()).unwrap();
        }
        write(&folder, &process.name(), |it| it.took(Act::Wake, 0.1)).unwrap();
        let left = folder.names().unwrap().len();
        assert!((80..103).contains(&left), "{left} files");
        assert_eq!((wakes(&folder), wakes(&folder)), (101, 101));
        assert!(folder.names().unwrap().len() < 8);
    }

    #[test]
    fn a_process_that_lives_on_counts_on_after_its_file_was_added() {
        let (_at, folder) = folder();
        let foreign = "tally-77-12-13-test";
        let count = || write(&folder, foreign, |tally| tally.took(Act::Wake, 0.1)).unwrap();
        count();
        assert_eq!(wakes(&folder), 1);
        let old = File::options().write(true).open(folder.path().join(foreign)).unwrap();
        old.set_modified(std::time::SystemTime::now() - FOREIGN_MOST * 2).unwrap();
        assert_eq!(wakes(&folder), 1);
        assert!(folder.open_existing(foreign).unwrap().is_none(), "it was added");
        count();
        assert_eq!(wakes(&folder), 2);
        // What is no tally counts nothing, and who writes it begins anew.
        folder.replace(foreign, &[9; 100]).unwrap();
        assert_eq!(wakes(&folder), 1);
        count();
        assert_eq!(wakes(&folder), 2);
    }
}
