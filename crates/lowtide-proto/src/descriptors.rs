//! Lines with file descriptors, between processes of one user.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors that travel with one line; the kernel takes 253.
pub const DESCRIPTORS_MOST: usize = 200;

/// Sends a line, and descriptors with it.
///
/// # Errors
/// Those of the socket.
pub fn send(socket: &UnixStream, line: &str, descriptors: &[OwnedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too many descriptors for a line"));
    }
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match sendmsg(socket, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                rest = &rest[sent..];
                control.clear();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Moves a descriptor away from the numbers of standard input, output and error: a program that has closed those puts
/// other files there, and what it writes to them is not ours.
///
/// # Errors
/// Where this process may not have so many files open.
pub fn apart<T: Into<OwnedFd> + From<OwnedFd>>(file: T) -> io::Result<T> {
    let descriptor = file.into();
    if descriptor.as_raw_fd() > 2 {
        return Ok(descriptor.into());
    }
    Ok(fcntl_dupfd_cloexec(&descriptor, 3)?.into())
}

/// Receives one line of at most `most` bytes, and the descriptors that came with it, up to a moment.
/// The other side sends nothing behind a line before it is answered.
///
/// # Errors
/// Those of the socket; [`ErrorKind::UnexpectedEof`] where the connection ended, [`ErrorKind::InvalidData`] for a
/// line that is longer, and [`ErrorKind::Other`] where this process may not have so many files open.
pub fn receive(
    socket: &UnixStream,
    most: usize,
    deadline: Instant,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    while line.last() != Some(&b'\n') {
        if line.len() > most {
            return Err(io::Error::new(ErrorKind::InvalidData, "the line does not end"));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "nothing came in time"));
        }
        socket.set_read_timeout(Some(left))?;
        let mut part = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(socket, &mut [IoSliceMut::new(&mut part)], &mut control, flags) {
            Ok(got) => got,
            // The limit is looked at above.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(all) = message {
                descriptors.extend(all);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("this process may not have so many files open"));
        }
        if got.bytes == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection ended"));
        }
        line.extend_from_slice(&part[..got.bytes]);
    }
    Ok((line, descriptors))
}
