//! Records of granted host memory: one file per process of this user, in a directory of ours.
//!
//! A record holds the bytes that its process was granted and has not made resident yet. The process
//! keeps a POSIX lock on it: the kernel drops that lock when the process ends, whatever ended it, and a
//! forked child does not inherit it. So a record without a lock is stale, also if its PID was used
//! again or belongs to another PID namespace. One more locked file lets one process at a time decide.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
const LOCK: &str = "host-memory.lock";
const RECORD: &str = "host-memory-";
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
pub(crate) enum RecordError {
    #[error(transparent)]
    File(#[from] PrivateFileError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("another process keeps {path} locked")]
    Locked { path: PathBuf },
}

type Result<T> = std::result::Result<T, RecordError>;

/// The record of this process, beside those of this user's other processes.
pub(crate) struct Records {
    folder: PrivateFolder,
    lock: File,
    own: File,
    own_name: String,
}

/// The directory, while no other process decides. Dropping it lets the next one.
pub(crate) struct Locked<'a> {
    records: &'a Records,
}

impl Records {
    /// Creates this process's record in the directory of this user.
    pub(crate) fn of_user() -> Result<Records> {
        Records::in_folder(PrivateFolder::of_user()?)
    }

    /// Creates this process's record in a directory.
    pub(crate) fn create(directory: &Path) -> Result<Records> {
        Records::in_folder(PrivateFolder::create(directory)?)
    }

    fn in_folder(folder: PrivateFolder) -> Result<Records> {
        let path = folder.path().join(LOCK);
        // Another process may create it at the same moment.
        let lock = match folder.open_existing(LOCK)? {
            Some(lock) => lock,
            None => match folder.create_file(LOCK) {
                Ok(lock) => lock,
                Err(error) => folder.open_existing(LOCK)?.ok_or(error)?,
            },
        };
        wait_for_lock(&lock, &path)?;
        // Until it is locked itself, the record looks stale to others: they wait for the directory.
        let created = create_record(&folder);
        unlock(&lock);
        let (own, own_name) = created?;
        Ok(Records { folder, lock, own, own_name })
    }

    /// Waits until no other process decides.
    pub(crate) fn lock(&self) -> Result<Locked<'_>> {
        wait_for_lock(&self.lock, &self.folder.path().join(LOCK))?;
        Ok(Locked { records: self })
    }

    /// Writes this process's record.
    pub(crate) fn write(&self, granted: Bytes) -> Result<()> {
        write_record(&self.own, granted).map_err(at(&self.folder, &self.own_name))
    }
}

impl Locked<'_> {
    /// Sums the records of other processes, and removes those whose process has ended.
    pub(crate) fn others(&self) -> Result<Bytes> {
        let Records { folder, own_name, .. } = self.records;
        let mut sum = Bytes::ZERO;
        for name in folder.names()? {
            // This process's own is never opened: closing it again would drop the lock on it.
            let name = name.to_str().filter(|name| name.starts_with(RECORD) && name != own_name);
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

fn at(folder: &PrivateFolder, name: &str) -> impl FnOnce(io::Error) -> RecordError {
    let path = folder.path().join(name);
    move |source| RecordError::Io { path, source }
}

fn create_record(folder: &PrivateFolder) -> Result<(File, String)> {
    let started = start_ticks("self").map_err(at(folder, RECORD))?;
    for number in 0..MOST_NAMESAKES {
        // The same PID and start time can be there: from another PID namespace, or another boot.
        let name = format!("{RECORD}{}-{started}-{number}", process::id());
        if folder.open_existing(&name)?.is_some() {
            continue;
        }
        let record = folder.create_file(&name)?;
        let written = write_record(&record, Bytes::ZERO);
        let locked = written.and_then(|()| Ok(fcntl_lock(&record, EXCLUSIVE)?));
        locked.map_err(at(folder, &name))?;
        return Ok((record, name));
    }
    Err(at(folder, RECORD)(ErrorKind::AlreadyExists.into()))
}

fn write_record(record: &File, granted: Bytes) -> io::Result<()> {
    record.write_all_at(format!("{:0DIGITS$}\n", granted.0).as_bytes(), 0)
}

fn read_record(record: &File) -> io::Result<Bytes> {
    let mut digits = [0; DIGITS];
    record.read_exact_at(&mut digits, 0)?;
    let granted = str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    granted.map(Bytes).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no number of bytes"))
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
