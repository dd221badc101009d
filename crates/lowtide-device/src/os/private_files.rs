//! Files of our own in places that other users can reach: caches, records of running processes.
//!
//! A folder counts only if it belongs to the effective user and nobody else can write to it. It is
//! opened once, and every file is reached through the open folder, so that nobody can exchange it for
//! another one meanwhile. No link is followed below it. A file counts only if it is a regular file of
//! this user, and reading stops at a limit: a FIFO, a device or an endless file is an error.
//!
//! ```
//! use lowtide_device::private_files::PrivateFolder;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let base = std::env::temp_dir().join(format!("lowtide-doc-{}", std::process::id()));
//! let folder = PrivateFolder::create(&base.join("lowtide"))?;
//! folder.replace("notes.json", b"[]")?;
//! assert_eq!(folder.read("notes.json", 1 << 20)?.as_deref(), Some(&b"[]"[..]));
//! assert_eq!(folder.read("other.json", 1 << 20)?, None);
//! # std::fs::remove_dir_all(base)?;
//! # Ok(())
//! # }
//! ```

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lowtide_types::variables;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// An error of a private folder or of a file in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateFileError {
    /// A folder or a link on the way belongs to somebody else.
    #[error("{path} belongs to user {owner}, not to user {user}")]
    Foreign {
        /// The folder, link or file.
        path: PathBuf,
        /// The user that it belongs to.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// Other users may write to a folder on the way.
    #[error("other users may write to {path} (its mode is {mode:o})")]
    Writable {
        /// The folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Something that is no regular file is in the place of a file.
    #[error("{path} is not a regular file")]
    NotAFile {
        /// The path of it.
        path: PathBuf,
    },
    /// A file is larger than anything that belongs there.
    #[error("{path} is larger than {most} bytes")]
    TooLarge {
        /// The path of the file.
        path: PathBuf,
        /// The largest size that is read.
        most: u64,
    },
    /// The kernel refused an operation.
    #[error("{action} {path} failed: {source}")]
    Io {
        /// The operation, as in "opening".
        action: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, PrivateFileError>;

/// The bit of a folder in which only the owner of a file can rename or remove it.
const STICKY: u32 = 0o1000;

/// An open folder that belongs to the effective user and that nobody else can write to.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: File,
    path: PathBuf,
}

impl PrivateFolder {
    /// Opens a folder; `None` if it does not exist.
    ///
    /// # Errors
    /// If it is a link or no folder, if it or the folder around it belongs to another user, or if
    /// another user could exchange it.
    pub fn open(path: &Path) -> Result<Option<PrivateFolder>> {
        check_way(path)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(path, flags, Mode::empty()).and_then(apart) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed("opening", path)(error)),
        };
        let found = folder.metadata().map_err(failed("examining", path))?;
        check_owner(path, found.uid())?;
        if found.mode() & 0o077 != 0 {
            // Ours, from a time or a program with another habit.
            let closed = folder.set_permissions(Permissions::from_mode(0o700));
            closed.map_err(failed("closing to others", path))?;
        }
        Ok(Some(PrivateFolder { folder, path: path.to_owned() }))
    }

    /// Opens a folder, and creates it first if it does not exist, with the missing folders around it.
    /// Each is open to this user only.
    ///
    /// # Errors
    /// As [`PrivateFolder::open`], and those of the file system.
    pub fn create(path: &Path) -> Result<PrivateFolder> {
        if let Some(folder) = PrivateFolder::open(path)? {
            return Ok(folder);
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(failed("creating", path))?;
        PrivateFolder::open(path)?.ok_or_else(|| failed("opening", path)(Errno::NOENT))
    }

    /// Opens the folder of this user's running programs, and creates it first if it does not exist: in
    /// `XDG_RUNTIME_DIR` if that is this user's, else in `/tmp`.
    ///
    /// # Errors
    /// As [`PrivateFolder::create`].
    pub fn of_user() -> Result<PrivateFolder> {
        let runtime = variables::get("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime = runtime.filter(|path| path.is_absolute() && path.is_dir());
        let own = runtime.and_then(|path| PrivateFolder::create(&path.join("lowtide")).ok());
        let shared = || PathBuf::from(format!("/tmp/lowtide-{}", effective_user()));
        own.map_or_else(|| PrivateFolder::create(&shared()), Ok)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file of at most so many bytes; `None` if there is none of this name.
    ///
    /// # Errors
    /// If it is a link, no regular file, larger, or another user's.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_file(name, OFlags::RDONLY)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.take(most + 1).read_to_end(&mut bytes);
        read.map_err(failed("reading", &self.path.join(name)))?;
        if bytes.len() as u64 > most {
            return Err(PrivateFileError::TooLarge { path: self.path.join(name), most });
        }
        Ok(Some(bytes))
    }

    /// Writes a file in the place of the one of this name. Nobody reads half of it.
    ///
    /// # Errors
    /// Those of the file system. The file is then as it was before.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let aside = format!("{name}.{}", std::process::id());
        // A process of this number that was killed may have left one.
        self.remove(&aside)?;
        let mut file = self.create_file(&aside)?;
        let written = file.write_all(bytes).map_err(failed("writing", &self.path.join(&aside)));
        let moved = written.and_then(|()| {
            let renamed =
                one_name(name).and_then(|name| renameat(&self.folder, &aside, &self.folder, name));
            renamed.map_err(failed("naming", &self.path))
        });
        if moved.is_err() {
            let _ = self.remove(&aside);
        }
        moved
    }

    /// Creates a file that this user alone can read and write, and opens it for both.
    ///
    /// # Errors
    /// If something of this name exists, whatever it is, and those of the file system.
    pub fn create_file(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        self.open_at(name, flags).map_err(failed("creating", &self.path.join(name)))
    }

    /// Opens a file for reading and writing; `None` if there is none of this name.
    ///
    /// # Errors
    /// If it is a link, no regular file, or another user's.
    pub fn open_existing(&self, name: &str) -> Result<Option<File>> {
        self.open_file(name, OFlags::RDWR)
    }

    /// Removes a file. One that does not exist is no error.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, name: &str) -> Result<()> {
        match one_name(name).and_then(|name| unlinkat(&self.folder, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("removing", &self.path.join(name))(error)),
        }
    }

    /// Returns the names of everything in the folder, sorted.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn names(&self) -> Result<Vec<OsString>> {
        let list = || -> io::Result<Vec<OsString>> {
            fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect()
        };
        let mut names = list().map_err(failed("listing", &self.path))?;
        names.sort_unstable();
        Ok(names)
    }

    // Opens what is there, and lets only a regular file of this user through. A FIFO does not block.
    fn open_file(&self, name: &str, flags: OFlags) -> Result<Option<File>> {
        let path = self.path.join(name);
        let file = match self.open_at(name, flags | OFlags::NONBLOCK) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            // A link, a folder, a socket or a FIFO that nobody reads.
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => {
                return Err(PrivateFileError::NotAFile { path });
            }
            Err(error) => return Err(failed("opening", &path)(error)),
        };
        let found = file.metadata().map_err(failed("examining", &path))?;
        if !found.is_file() {
            return Err(PrivateFileError::NotAFile { path });
        }
        check_owner(&path, found.uid())?;
        Ok(Some(file))
    }

    fn open_at(&self, name: &str, flags: OFlags) -> rustix::io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.folder, one_name(name)?, flags, Mode::RUSR | Mode::WUSR).and_then(apart)
    }
}

/// Returns a file by a number that no standard stream has: a program that has closed its own puts other files there.
fn apart(file: OwnedFd) -> rustix::io::Result<File> {
    let is_standard = file.as_raw_fd() <= 2;
    Ok(if is_standard { fcntl_dupfd_cloexec(&file, 3)? } else { file }.into())
}

/// Returns the effective user of this process.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

// A folder counts only where its surroundings are ours: root must not use another user's home, and a
// folder that anybody may rename is nobody's. What does not exist yet is created by us.
fn check_way(path: &Path) -> Result<()> {
    let around = path.ancestors().skip(1).find_map(|folder| {
        let found = fs::metadata(folder).ok()?;
        Some((folder, found))
    });
    let Some((folder, found)) = around else { return Ok(()) };
    // Everybody's folders, such as /tmp: there the folder itself has to be ours.
    let is_public = found.uid() == 0 && found.mode() & STICKY != 0;
    if !is_public {
        check_owner(folder, found.uid())?;
    }
    check_mode(folder, &found)?;
    // For root a link that another user planted on the way could lead into the system's own folders.
    if effective_user() == 0 {
        let real = fs::canonicalize(folder).map_err(failed("following", folder))?;
        for step in folder.ancestors().chain(real.ancestors()) {
            let found = fs::symlink_metadata(step).map_err(failed("examining", step))?;
            check_owner(step, found.uid())?;
            check_mode(step, &found)?;
        }
    }
    Ok(())
}

fn check_mode(path: &Path, found: &Metadata) -> Result<()> {
    let mode = found.mode() & 0o7777;
    if found.is_dir() && mode & 0o002 != 0 && mode & STICKY == 0 {
        return Err(PrivateFileError::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

fn check_owner(path: &Path, owner: u32) -> Result<()> {
    let user = effective_user();
    if owner == user {
        return Ok(());
    }
    Err(PrivateFileError::Foreign { path: path.to_owned(), owner, user })
}

// One name in the folder: a path would lead out of it.
fn one_name(name: &str) -> rustix::io::Result<&str> {
    let is_one = !name.contains('/') && ![".", "..", ""].contains(&name);
    is_one.then_some(name).ok_or(Errno::INVAL)
}

fn failed<E: Into<io::Error>>(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> PrivateFileError {
    let path = path.to_owned();
    move |source| PrivateFileError::Io { action, path, source: source.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    /// A folder under the temporary one, removed at the end.
    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> TestFolder {
            let path =
                std::env::temp_dir().join(format!("lowtide-private-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            TestFolder(path)
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_is_written_is_this_users_alone() {
        let place = TestFolder::new("own");
        assert!(PrivateFolder::open(&place.join("a/b")).unwrap().is_none());
        let folder = PrivateFolder::create(&place.join("a/b")).unwrap();
        folder.replace("x", b"one").unwrap();
        folder.replace("x", b"two").unwrap();
        assert_eq!(folder.read("x", 3).unwrap().unwrap(), b"two");
        assert_eq!((mode(&place.join("a/b")), mode(&place.join("a/b/x"))), (0o700, 0o600));
        assert_eq!(folder.names().unwrap(), ["x"], "nothing is left aside");
        // Another program's habit: everybody may look in.
        fs::set_permissions(place.join("a/b"), Permissions::from_mode(0o755)).unwrap();
        PrivateFolder::open(&place.join("a/b")).unwrap().unwrap();
        assert_eq!(mode(&place.join("a/b")), 0o700);
        folder.remove("x").unwrap();
        folder.remove("x").unwrap();
        assert_eq!(folder.read("x", 3).unwrap(), None);
    }

    #[test]
    fn links_are_neither_read_nor_written_through() {
        let place = TestFolder::new("links");
        let folder = PrivateFolder::create(&place.join("own")).unwrap();
        let victim = place.join("victim");
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, place.join("own/x")).unwrap();
        assert!(matches!(folder.read("x", 100), Err(PrivateFileError::NotAFile { .. })));
        assert!(folder.open_existing("x").is_err() && folder.create_file("x").is_err());
        symlink(&victim, place.join(&format!("own/x.{}", std::process::id()))).unwrap();
        folder.replace("x", b"mine").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(folder.read("x", 100).unwrap().unwrap(), b"mine");
        // The folder itself: a link to another one of ours.
        symlink(place.join("own"), place.join("link")).unwrap();
        assert!(PrivateFolder::open(&place.join("link")).is_err());
        assert!(PrivateFolder::create(&place.join("link")).is_err());
        for wrong in ["..", "", "a/b", "../victim", "nul\0"] {
            assert!(folder.create_file(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_plain_file_is_an_error_at_once() {
        let place = TestFolder::new("kinds");
        let folder = PrivateFolder::create(&place.join("own")).unwrap();
        let fifo = place.join("own/fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::create_dir(place.join("own/folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place.join("own/socket")).unwrap();
        for name in ["fifo", "folder", "socket"] {
            assert!(folder.read(name, 100).is_err(), "{name}");
            assert!(folder.open_existing(name).is_err(), "{name}");
        }
        let huge = folder.create_file("huge").unwrap();
        huge.set_len(1 << 40).unwrap();
        let error = folder.read("huge", 100).unwrap_err();
        assert!(matches!(error, PrivateFileError::TooLarge { most: 100, .. }), "{error}");
    }

    #[test]
    fn a_place_that_others_can_change_is_refused() {
        let place = TestFolder::new("others");
        let open = place.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let error = PrivateFolder::create(&open.join("lowtide")).unwrap_err();
        assert!(matches!(error, PrivateFileError::Writable { mode: 0o777, .. }), "{error}");
        fs::set_permissions(&open, Permissions::from_mode(0o700)).unwrap();
        PrivateFolder::create(&open.join("lowtide")).unwrap();
        if effective_user() != 0 {
            println!("skipped: only root can give files to another user");
            return;
        }
        let is_foreign = |path: PathBuf| {
            let tried = PrivateFolder::create(&path);
            matches!(tried, Err(PrivateFileError::Foreign { owner: 65534, user: 0, .. }))
        };
        let folder = PrivateFolder::create(&place.join("own")).unwrap();
        drop(folder.create_file("x").unwrap());
        chown(place.join("own/x"), Some(65534), None).unwrap();
        assert!(matches!(folder.read("x", 9), Err(PrivateFileError::Foreign { .. })));
        chown(open.join("lowtide"), Some(65534), None).unwrap();
        assert!(is_foreign(open.join("lowtide")), "the folder itself");
        chown(&open, Some(65534), None).unwrap();
        assert!(is_foreign(open.join("another")), "another user's home");
        fs::create_dir(open.join("mine")).unwrap();
        assert!(is_foreign(open.join("mine/lowtide")), "which its owner can exchange");
        symlink(place.join("own"), place.join("way")).unwrap();
        std::os::unix::fs::lchown(place.join("way"), Some(65534), None).unwrap();
        assert!(is_foreign(place.join("way/lowtide")), "a link that another user planted");
    }
}
