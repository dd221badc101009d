//! Files that processes share: single bytes of them as locks, and the memory that a process exports.
//!
//! Memory that is exported moves into one file of its process, to a [`Place`]: an offset, with a page
//! before it that says what the memory is. A descriptor of the memory is another open of this file, which
//! stands at the offset and holds a lock there. So a process needs one descriptor however much it
//! exports, a descriptor that travels says all that an importer must know, and every process that holds
//! the memory can tell whether a descriptor is left.
#![allow(unsafe_code, reason = "locks bytes of files and asks where descriptors stand")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, memfd_create, seek};

/// The page of this machine.
pub(super) const SMALL_PAGE: u64 = 4096;

/// What a file with exported memory is called.
const NAME: &str = "lowtide-double-memory";
/// As large as a file may be: only pages that are written take memory.
const FILE_BYTES: u64 = 1 << 46;

/// What the page before exported memory says; and a legacy handle.
pub(super) type Words = [u64; 8];

/// Locks or unlocks a byte of a file, or asks whether another open of the file has it locked.
pub(super) fn record_lock(file: &File, command: i32, kind: i32, byte: u64) -> io::Result<bool> {
    #[allow(clippy::cast_possible_truncation, reason = "the system's own small constants")]
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte.cast_signed(),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the file is open and `lock` is a lock description of ours.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if done == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }
}

/// Where exported memory lies.
#[derive(Clone)]
pub(super) struct Place {
    file: Arc<File>,
    offset: u64,
}

impl Place {
    /// Takes a new place in the file of this process.
    pub(super) fn new(bytes: u64) -> io::Result<Place> {
        static OWN: OnceLock<Arc<File>> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let file = if let Some(file) = OWN.get() {
            Arc::clone(file)
        } else {
            let file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC)?);
            file.set_len(FILE_BYTES)?;
            Arc::clone(OWN.get_or_init(|| Arc::new(file)))
        };
        known().insert(file.metadata()?.ino(), Arc::downgrade(&file));
        let taken = SMALL_PAGE + bytes.next_multiple_of(SMALL_PAGE);
        Ok(Place { offset: NEXT.fetch_add(taken, SeqCst) + SMALL_PAGE, file })
    }

    /// Returns the place that a descriptor of this process stands at.
    pub(super) fn of_descriptor(descriptor: i32) -> io::Result<Place> {
        let path = format!("/proc/thread-self/fd/{descriptor}");
        let file = open(&path)?;
        // SAFETY: asks the kernel about a number, which may be of no file.
        let offset = unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) };
        let offset = u64::try_from(offset).map_err(|_| io::Error::last_os_error())?;
        Ok(Place { file, offset })
    }

    /// Returns a place in a file that a process has open under a number.
    pub(super) fn of_process(pid: u64, number: u64, offset: u64) -> io::Result<Place> {
        Ok(Place { file: open(&format!("/proc/{pid}/fd/{number}"))?, offset })
    }

    /// Makes a descriptor that another process can have.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/thread-self/fd/{}", self.number());
        let file = File::options().read(true).write(true).open(path)?;
        record_lock(&file, libc::F_OFD_SETLK, libc::F_RDLCK, self.offset)?;
        seek(&file, SeekFrom::Start(self.offset))?;
        Ok(file.into())
    }

    /// Gives the memory back to this machine, unless a descriptor of it is left.
    pub(super) fn discard(&self, bytes: u64) -> io::Result<()> {
        if record_lock(&self.file, libc::F_OFD_GETLK, libc::F_WRLCK, self.offset)? {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let all = SMALL_PAGE + bytes.next_multiple_of(SMALL_PAGE);
        Ok(fallocate(&self.file, how, self.offset - SMALL_PAGE, all)?)
    }

    /// Reads what the memory is.
    pub(super) fn words(&self) -> io::Result<Words> {
        let at = self.offset.checked_sub(SMALL_PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let mut bytes = [0; size_of::<Words>()];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(to_words(&bytes))
    }

    /// Says what the memory is.
    pub(super) fn put_words(&self, words: &Words) -> io::Result<()> {
        self.file.write_all_at(&to_bytes(words), self.offset - SMALL_PAGE)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number under which this process has the file open.
    pub(super) fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

pub(super) fn to_words(bytes: &[u8; 64]) -> Words {
    let (chunks, _) = bytes.as_chunks();
    std::array::from_fn(|index| u64::from_ne_bytes(chunks[index]))
}

pub(super) fn to_bytes(words: &Words) -> [u8; 64] {
    std::array::from_fn(|index| words[index / 8].to_ne_bytes()[index % 8])
}

type Known = BTreeMap<u64, Weak<File>>;

/// The files that this process has open, by inode: a file is opened once, however much is imported.
fn known() -> impl std::ops::DerefMut<Target = Known> {
    static KNOWN: Mutex<Known> = Mutex::new(Known::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a file with exported memory.
fn open(path: &str) -> io::Result<Arc<File>> {
    if !std::fs::read_link(path)?.to_string_lossy().contains(NAME) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (inode, mut known) = (std::fs::metadata(path)?.ino(), known());
    if let Some(file) = known.get(&inode).and_then(Weak::upgrade) {
        return Ok(file);
    }
    let file = Arc::new(File::options().read(true).write(true).open(path)?);
    known.retain(|_, file| file.strong_count() > 0);
    known.insert(inode, Arc::downgrade(&file));
    Ok(file)
}
