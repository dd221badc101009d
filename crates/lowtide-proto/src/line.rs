//! Messages as lines of JSON, between processes of one user.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;

use crate::descriptors::apart;

/// Returns a message as a line.
pub(crate) fn line_of(data: &impl Serialize) -> String {
    // Plain data with names for keys: there is nothing that JSON could not hold.
    let mut line = serde_json::to_string(data).unwrap_or_default();
    line.push('\n');
    line
}

/// A reader of lines from a socket.
#[derive(Debug, Default)]
pub struct LineReader {
    /// What was read behind the last line.
    rest: Vec<u8>,
    /// So much of it has no end of a line.
    searched: usize,
}

impl LineReader {
    /// Reads a line of at most about `most` bytes, up to a moment.
    ///
    /// # Errors
    /// Those of the socket; [`ErrorKind::TimedOut`], [`ErrorKind::UnexpectedEof`] where the connection ended, and
    /// [`ErrorKind::InvalidData`] for a line that is longer.
    pub fn read(
        &mut self,
        mut socket: &UnixStream,
        most: usize,
        deadline: Instant,
    ) -> io::Result<Vec<u8>> {
        let mut part = [0; 4096];
        loop {
            let new = &self.rest[self.searched..];
            if let Some(end) = new.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(self.searched + end + 1);
                self.searched = 0;
                return Ok(std::mem::replace(&mut self.rest, rest));
            }
            self.searched = self.rest.len();
            if self.rest.len() > most {
                return Err(io::Error::new(ErrorKind::InvalidData, "the line does not end"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "nothing came in time"));
            }
            socket.set_read_timeout(Some(left))?;
            match socket.read(&mut part) {
                Ok(0) => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection ended"));
                }
                Ok(count) => self.rest.extend_from_slice(&part[..count]),
                // The limit is looked at above.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether the next line has been read already.
    pub fn has_line(&self) -> bool {
        self.rest.contains(&b'\n')
    }

    /// Returns what was read behind the last line: a line that does not end, after an error.
    pub fn into_rest(self) -> Vec<u8> {
        self.rest
    }
}

/// The most bytes of a path in the address of a socket.
const PATH_MOST: usize = 107;

/// Calls `with` with a path of a socket that is short enough to listen or to connect at: where it is not, with one by
/// way of a descriptor of its folder, which is open meanwhile.
///
/// # Errors
/// Those of `with`, and of opening the folder.
pub fn at_socket<T>(path: &Path, with: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (folder, name) = match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if path.as_os_str().len() > PATH_MOST => (folder, name),
        _ => return with(path),
    };
    let folder = File::open(folder)?;
    with(&Path::new("/proc/thread-self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

/// Connects to a socket. Does not wait: a full queue is [`ErrorKind::WouldBlock`]. The descriptor is
/// closed in programs that this one starts.
///
/// # Errors
/// Those of the socket.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    at_socket(path, |path| connect_to(&SocketAddrUnix::new(path)?))
}

/// Connects to a socket without a file, by its name. Does not wait.
///
/// # Errors
/// Those of the socket.
pub fn connect_to_name(name: &[u8]) -> io::Result<UnixStream> {
    connect_to(&SocketAddrUnix::new_abstract_name(name)?)
}

fn connect_to(address: &SocketAddrUnix) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, address)?;
    let stream = apart(UnixStream::from(socket))?;
    // Reads and writes wait, each up to its limit.
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns whether the process at the other end of a connection belongs to this user or to root, as the kernel
/// knows it.
pub fn is_from_this_user(socket: &UnixStream) -> bool {
    peer_of_this_user(socket).is_some()
}

/// Returns the process at the other end of a connection, as the kernel knows it; `None` if it belongs neither to this
/// user nor to root.
pub fn peer_of_this_user(socket: &UnixStream) -> Option<u32> {
    let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
    let is_trusted = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
    is_trusted.then(|| peer.pid.as_raw_nonzero().get().cast_unsigned())
}

/// The name of a socket in a folder that others may clean up: the file that it was made with.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    file: Option<(u64, u64)>,
}

impl SocketFile {
    /// Notes which file is at a path now.
    pub fn of(path: PathBuf) -> SocketFile {
        let file = file_at(&path).ok();
        SocketFile { path, file }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file is still there, and no other one in its place. Who may not look believes so.
    pub fn is_there(&self) -> bool {
        match file_at(&self.path) {
            Ok(file) => self.file == Some(file),
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}
