//! Connecting to a Unix socket without waiting, and asking who this process runs as.
#![allow(
    unsafe_code,
    reason = "std's connect waits without a limit while a listener's queue is full"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connects to a socket. Does not wait: a full queue is [`io::ErrorKind::WouldBlock`]. The descriptor is
/// closed in programs that this one starts.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let (address, size) = address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: reads `size` bytes of an address that is as large.
    let code = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let stream = UnixStream::from(socket);
    // Reads and writes wait, each up to its limit.
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let family = libc::AF_UNIX as libc::sa_family_t;
    let mut address = libc::sockaddr_un { sun_family: family, sun_path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    // The last byte stays zero.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        let why = format!("{} is too long for the path of a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// Returns whether this process has rights that the user who started it may lack: it runs as root, or as
/// another user than the one who started it. Such a process does not let variables choose what it loads.
///
/// A debug build says no for root: its tests run as root in containers, with a double of the driver.
pub fn is_privileged() -> bool {
    // SAFETY: returns a number.
    let effective = unsafe { libc::geteuid() };
    // SAFETY: returns a number.
    let real = unsafe { libc::getuid() };
    // SAFETY: returns a number; the kernel sets it for programs that gain rights at their start.
    let gained = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    effective != real || gained || (effective == 0 && !cfg!(debug_assertions))
}
