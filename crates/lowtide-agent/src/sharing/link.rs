//! The connection to the agent of a process that has memory which this one opens.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::descriptors::{DESCRIPTORS_MOST, receive};
use lowtide_proto::line::{at_socket, is_from_this_user};
use lowtide_proto::{Ask, Request, ShareAnswer, ShareAsk, socket_name};

use super::handle::ProcessName;

/// The most bytes of an answer: the sizes of its chunks.
const ANSWER_MOST: usize = 1 << 16;
/// The files that are left to the program while descriptors travel.
const FILES_LEFT: usize = 16;

/// The connection to one process. What was opened through it stays open as long as it lives.
pub(super) struct Link {
    socket: UnixStream,
    /// Set where an answer is missing: the next one might be that.
    is_broken: AtomicBool,
}

impl Link {
    /// Connects to the agent of a process.
    pub(super) fn connect(process: ProcessName, deadline: Instant) -> io::Result<Link> {
        let folder = PrivateFolder::of_user().map_err(io::Error::other)?;
        let namespace = fs::read_link("/proc/self/ns/pid")?;
        let name = socket_name(&namespace.to_string_lossy(), process.pid);
        let mut socket = at_socket(&folder.path().join(name), |path| UnixStream::connect(path))?;
        if !is_from_this_user(&socket) {
            return Err(io::Error::other("its agent belongs to another user"));
        }
        socket.write_all(Request::new(Ask::Share).to_line().as_bytes())?;
        let (line, _) = receive(&socket, ANSWER_MOST, deadline)?;
        if serde_json::from_slice(&line).ok() != Some(ShareAnswer::Ready) {
            return Err(io::Error::other(String::from_utf8_lossy(&line).trim().to_owned()));
        }
        Ok(Link { socket, is_broken: AtomicBool::new(false) })
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Relaxed)
    }

    /// Asks, and returns the answer with its descriptors.
    pub(super) fn ask(
        &self,
        ask: &ShareAsk,
        deadline: Instant,
    ) -> io::Result<(ShareAnswer, Vec<OwnedFd>)> {
        let exchanged = self.tell(ask).and_then(|()| receive(&self.socket, ANSWER_MOST, deadline));
        let (line, descriptors) = exchanged.inspect_err(|_| self.is_broken.store(true, Relaxed))?;
        Ok((serde_json::from_slice(&line)?, descriptors))
    }

    /// Tells the other process something that has no answer.
    pub(super) fn tell(&self, ask: &ShareAsk) -> io::Result<()> {
        (&self.socket).write_all(ask.to_line().as_bytes())
    }
}

/// Returns how many descriptors may travel at once.
pub(super) fn spare_files() -> usize {
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    limit.saturating_sub(open + FILES_LEFT).min(DESCRIPTORS_MOST)
}
