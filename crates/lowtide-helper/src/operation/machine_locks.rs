//! Locks on files: one operation at a time on a device of this machine.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::Refusal;

/// The folders for the locks, in the order to try: each is for everybody and belongs to root.
const LOCK_FOLDERS: [&str; 2] = ["/run/lock", "/tmp"];
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest wait for a lock that another user has. A restore takes seconds; who holds it for longer may never
/// let go.
const PATIENCE: Duration = Duration::from_secs(30);

/// The locks of the machine's devices. They keep the helpers of several users from giving the same room to
/// two processes, as long as these users mean well: anybody may hold such a lock. Where one cannot be had (no
/// folder for everybody, containers that share none, somebody who does not let go), admission relies on the
/// device's numbers alone.
#[derive(Debug)]
pub(crate) struct MachineLocks {
    folder: Option<PathBuf>,
    patience: Duration,
}

impl MachineLocks {
    /// Chooses the folder: the one given, or the first that is for everybody.
    pub(crate) fn new(given: Option<PathBuf>) -> MachineLocks {
        let usual =
            || LOCK_FOLDERS.into_iter().map(PathBuf::from).find(|folder| is_for_everybody(folder));
        MachineLocks { folder: given.or_else(usual), patience: PATIENCE }
    }

    /// Locks devices, in order, so that two helpers never wait for each other. Waits up to a moment, and for what
    /// another user holds not for ever: then goes on without.
    pub(crate) fn take(&self, uuids: &[String], deadline: Instant) -> Result<Vec<File>, Refusal> {
        let (mut sorted, mut locked) = (uuids.to_vec(), Vec::new());
        sorted.sort_unstable();
        sorted.dedup();
        let began = Instant::now();
        for device in sorted {
            let Some(file) = self.file(&device) else { continue };
            let mut is_locked = true;
            while matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                if began.elapsed() >= self.patience {
                    tracing::warn!(%device, "its lock is not let go; only the device's numbers count");
                    is_locked = false;
                    break;
                }
                if Instant::now() >= deadline {
                    let limit_ms = began.elapsed().as_millis() as u64;
                    return Err(Refusal::MachineTaken { device, limit_ms });
                }
                thread::sleep(PAUSE);
            }
            if is_locked {
                locked.push(file);
            }
        }
        Ok(locked)
    }

    fn file(&self, uuid: &str) -> Option<File> {
        let plain: String = uuid.chars().filter(char::is_ascii_alphanumeric).collect();
        let path = self.folder.as_ref()?.join(format!("lowtide-{plain}.lock"));
        let opened = open_shared(&path);
        opened.inspect_err(|error| tracing::warn!(%error, path = %path.display(), "no lock")).ok()
    }
}

fn is_for_everybody(folder: &Path) -> bool {
    const EVERYBODY: u32 = 0o1002;
    fs::metadata(folder).is_ok_and(|found| {
        found.is_dir() && found.uid() == 0 && found.mode() & EVERYBODY == EVERYBODY
    })
}

// A file in a folder for everybody may be another user's: it is only opened for reading and locked, never
// written, and no link is followed. The kernel refuses to create over another user's file there.
fn open_shared(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let open = || OpenOptions::new().read(true).custom_flags(flags).open(path);
    let create = || -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create_new(true).custom_flags(flags).open(path)?;
        // Whatever this helper's umask is, others must be able to open it.
        file.set_permissions(Permissions::from_mode(0o644))?;
        Ok(file)
    };
    let file = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => match create() {
            // Somebody was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => open()?,
            created => created?,
        },
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::InvalidInput.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_locked_by_one_at_a_time() {
        let place = tempfile::tempdir().expect("a folder");
        let locks = MachineLocks::new(Some(place.path().to_owned()));
        let (one, two) = ("GPU-1".to_owned(), "GPU-2".to_owned());
        let now = Instant::now();
        let locked = locks.take(&[two.clone(), one.clone()], now).expect("both are free");
        let refused = locks.take(std::slice::from_ref(&two), now).expect_err("it is taken");
        assert!(matches!(refused, Refusal::MachineTaken { device, .. } if device == two));
        let file = place.path().join("lowtide-GPU1.lock");
        let mode = fs::metadata(file).expect("a file").mode() & 0o777;
        assert_eq!(mode, 0o644, "other users can open it");
        // Somebody who never lets go keeps nobody from coming back.
        let hasty = MachineLocks { patience: Duration::from_millis(20), ..locks };
        let far = now + Duration::from_secs(600);
        assert!(hasty.take(std::slice::from_ref(&one), far).expect("it goes on").is_empty());
        drop(locked);
        assert_eq!(hasty.take(&[one], now).expect("it is free again").len(), 1);
    }

    #[test]
    fn what_somebody_planted_is_not_followed_and_locks_nothing() {
        let place = tempfile::tempdir().expect("a folder");
        let locks = MachineLocks::new(Some(place.path().to_owned()));
        let victim = place.path().join("victim");
        std::os::unix::fs::symlink(&victim, place.path().join("lowtide-GPU1.lock"))
            .expect("a link");
        fs::create_dir(place.path().join("lowtide-GPU2.lock")).expect("a folder");
        for device in ["GPU-1", "GPU-2"] {
            let taken = locks.take(&[device.to_owned()], Instant::now()).expect("it goes on");
            assert!(taken.is_empty(), "{device}");
        }
        assert!(!victim.exists());
    }
}
