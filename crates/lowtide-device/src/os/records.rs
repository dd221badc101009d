//! Records of memory that several processes of this user count together: one file per process, in a directory of ours.
//!
//! A record holds the bytes of its process: host memory that it was granted and has not made resident yet, or what it
//! has of a device of which all processes of a run may have so much. The process keeps a POSIX lock on it: the kernel
//! drops that lock when the process ends, whatever ended it, and a forked child does not inherit it. So a record
//! without a lock is stale, also if its PID was used again or belongs to another PID namespace. One more locked file
//! lets one process at a time decide.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{process, thread};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::Bytes;
use crate::os::private_files::{PrivateFileError, PrivateFolder};
use crate::os::process::start_ticks;

/// A lock that is refused where another process has one.
const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;
/// The digits of a record: as many as the largest number has.
const DIGITS: usize = 20;
/// The first and the longest pause between two tries to lock the directory.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// The tries to lock the directory: about half a second. A process that has it longer is stopped.
const TRIES: u32 = 60;
/// Records with this process's PID and start time that are passed over.
const MOST_NAMESAKES: u32 = 64;

/// An error of the directory or of a record in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The directory, or a file in it, is not to be used.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The kernel refused an operation.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another process decides for too long.
    #[error("another process keeps {path} locked")]
    Locked {
        /// The file that is locked.
        path: PathBuf,
    },
}

type Result<T> = std::result::Result<T, RecordError>;

/// The record of this process, beside those of this user's other processes.
#[derive(Debug)]
pub struct Records {
    folder: PrivateFolder,
    lock: File,
    lock_name: String,
    /// Held with the lock, which keeps only other processes out.
    deciding: Mutex<()>,
    /// The beginning of the records' names.
    kind: String,
    own: File,
    own_name: String,
}

/// The directory, while no other process decides. Dropping it lets the next one.
#[derive(Debug)]
pub struct Locked<'a> {
    records: &'a Records,
    _deciding: MutexGuard<'a, ()>,
}

impl Records {
    /// Creates this process's record of a kind in a directory. The kind is a part of the name of a file.
    ///
    /// # Errors
    /// Those of the directory and of its files.
    pub fn of_kind(kind: &str, folder: PrivateFolder) -> Result<Records> {
        let (kind, lock_name) = names_of(kind);
        let path = folder.path().join(&lock_name);
        let lock = loop {
            // Another process may create it at the same moment, or remove it.
            let lock = match folder.open_existing(&lock_name)? {
                Some(lock) => lock,
                None => match folder.create_file(&lock_name) {
                    Ok(lock) => lock,
                    Err(error) => folder.open_existing(&lock_name)?.ok_or(error)?,
                },
            };
            wait_for_lock(&lock, &path)?;
            if lock.metadata().map_err(at(&folder, &lock_name))?.nlink() > 0 {
                break lock;
            }
        };
        // Until it is locked itself, the record looks stale to others: they wait for the directory.
        let created = create_record(&kind, &folder);
        unlock(&lock);
        let (own, own_name) = created?;
        Ok(Records { folder, lock, lock_name, deciding: Mutex::default(), kind, own, own_name })
    }

    /// Removes what is left of a kind of which this process has no record, where no other process has one.
    ///
    /// # Errors
    /// Those of the directory and of its files.
    pub fn remove_left(kind: &str, folder: &PrivateFolder) -> Result<()> {
        let (kind, lock_name) = names_of(kind);
        let Some(lock) = folder.open_existing(&lock_name)? else { return Ok(()) };
        if fcntl_lock(&lock, EXCLUSIVE).is_err() {
            return Ok(());
        }
        for name in folder.names()? {
            let Some(name) = name.to_str().filter(|name| name.starts_with(&kind)) else { continue };
            let Some(record) = folder.open_existing(name)? else { continue };
            if is_locked(&record).map_err(at(folder, name))? {
                return Ok(());
            }
            folder.remove(name)?;
        }
        Ok(folder.remove(&lock_name)?)
    }

    /// Waits until nobody else decides.
    ///
    /// # Errors
    /// Those of the kernel, and [`RecordError::Locked`] after half a second.
    pub fn lock(&self) -> Result<Locked<'_>> {
        let deciding = self.deciding.lock().unwrap_or_else(PoisonError::into_inner);
        wait_for_lock(&self.lock, &self.folder.path().join(&self.lock_name))?;
        Ok(Locked { records: self, _deciding: deciding })
    }

    /// Writes this process's record.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn write(&self, bytes: Bytes) -> Result<()> {
        write_record(&self.own, bytes).map_err(at(&self.folder, &self.own_name))
    }
}

impl Locked<'_> {
    /// Sums the records of other processes, and removes those whose process has ended.
    ///
    /// # Errors
    /// Those of the directory and of its files.
    pub fn others(&self) -> Result<Bytes> {
        let Records { folder, own_name, kind, .. } = self.records;
        let mut sum = Bytes::ZERO;
        for name in folder.names()? {
            // This process's own is never opened: closing it again would drop the lock on it.
            let name = name.to_str().filter(|name| name.starts_with(kind) && name != own_name);
            let Some(name) = name else { continue };
            let Some(record) = folder.open_existing(name)? else { continue };
            if is_locked(&record).map_err(at(folder, name))? {
                sum += read_record(&record).map_err(at(folder, name))?;
            } else {
                folder.remove(name)?;
            }
        }
        Ok(sum)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        unlock(&self.records.lock);
    }
}

/// Returns the beginning of the records' names, and the name of the lock.
fn names_of(kind: &str) -> (String, String) {
    (format!("{kind}-"), format!("{kind}.lock"))
}

fn at(folder: &PrivateFolder, name: &str) -> impl FnOnce(io::Error) -> RecordError {
    let path = folder.path().join(name);
    move |source| RecordError::Io { path, source }
}

fn create_record(kind: &str, folder: &PrivateFolder) -> Result<(File, String)> {
    let started = start_ticks("self").map_err(at(folder, kind))?;
    for number in 0..MOST_NAMESAKES {
        // The same PID and start time can be there: from another PID namespace, or another boot.
        let name = format!("{kind}{}-{started}-{number}", process::id());
        if folder.open_existing(&name)?.is_some() {
            continue;
        }
        let record = folder.create_file(&name)?;
        let written = write_record(&record, Bytes::ZERO);
        let locked = written.and_then(|()| Ok(fcntl_lock(&record, EXCLUSIVE)?));
        locked.map_err(at(folder, &name))?;
        return Ok((record, name));
    }
    Err(at(folder, kind)(ErrorKind::AlreadyExists.into()))
}

fn write_record(record: &File, bytes: Bytes) -> io::Result<()> {
    record.write_all_at(format!("{:0DIGITS$}\n", bytes.0).as_bytes(), 0)
}

fn read_record(record: &File) -> io::Result<Bytes> {
    let mut digits = [0; DIGITS];
    record.read_exact_at(&mut digits, 0)?;
    let bytes = str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    bytes.map(Bytes).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no number of bytes"))
}

fn wait_for_lock(file: &File, path: &Path) -> Result<()> {
    let mut pause = FIRST_PAUSE;
    for _ in 0..TRIES {
        match fcntl_lock(file, EXCLUSIVE) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => {
                return Err(RecordError::Io { path: path.to_owned(), source: error.into() });
            }
        }
    }
    Err(RecordError::Locked { path: path.to_owned() })
}

fn unlock(file: &File) {
    // Our own lock on a file that is open: the kernel has no reason to refuse.
    let _ = fcntl_lock(file, FlockOperation::Unlock);
}

fn is_locked(file: &File) -> io::Result<bool> {
    Ok(fcntl_getlk(file, &Flock::from(FlockType::WriteLock))?.is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn threads_of_one_process_decide_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::create(&folder.path().join("records")).unwrap();
        let records = Records::of_kind("test", folder).unwrap();
        let decided = AtomicU32::new(0);
        let decide = || {
            for _ in 0..500 {
                let _locked = records.lock().unwrap();
                let before = decided.load(Ordering::Relaxed);
                thread::yield_now();
                decided.store(before + 1, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| [scope.spawn(decide), scope.spawn(decide)].map(drop));
        assert_eq!(decided.into_inner(), 1000);
    }
}
