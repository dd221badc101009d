//! The connection to the agent of a process that has memory which this one opens.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use lowtide_device::private_files::PrivateFolder;
use lowtide_device::process_tree;
use lowtide_proto::descriptors::{DESCRIPTORS_MOST, receive};
use lowtide_proto::line::{connect, connect_to_name, is_from_this_user, peer_of_this_user};
use lowtide_proto::{Ask, Request, ShareAnswer, ShareAsk, socket_name};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::handle::{Place, ProcessName};

/// The most bytes of an answer: the sizes of its chunks.
const ANSWER_MOST: usize = 1 << 16;
/// The files that are left to the program while descriptors travel.
const FILES_LEFT: usize = 16;

/// The connection to one process. What was opened through it stays open as long as it lives.
pub(super) struct Link {
    process: ProcessName,
    socket: UnixStream,
    /// Held from a question to its answer.
    asking: Mutex<()>,
    is_broken: AtomicBool,
}

impl Link {
    /// Connects to the agent of a process: at its place, whatever became of the folder, or by the folder, also from
    /// another network namespace.
    pub(super) fn connect(
        process: ProcessName,
        place: Place,
        deadline: Instant,
    ) -> io::Result<Link> {
        let at_place = connect_to_name(place.name().as_bytes());
        let is_it = |socket: &UnixStream| peer_of_this_user(socket) == Some(process.pid);
        let socket = match at_place.ok().filter(is_it) {
            Some(socket) => socket,
            None => connect_by_folder(process)?,
        };
        let (asking, is_broken) = (Mutex::default(), AtomicBool::new(false));
        let link = Link { process, socket, asking, is_broken };
        link.write(&Request::new(Ask::Share).to_line())?;
        let (line, _) = link.read(deadline)?;
        if serde_json::from_slice(&line).ok() != Some(ShareAnswer::Ready) {
            return Err(io::Error::other(String::from_utf8_lossy(&line).trim().to_owned()));
        }
        Ok(link)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Relaxed)
    }

    /// Keeps the questions of other threads, and their answers, apart from those of this one.
    pub(super) fn conversation<T>(&self, run: impl FnOnce() -> T) -> T {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        run()
    }

    /// Asks, and returns the answer with its descriptors. The caller is in a conversation.
    pub(super) fn ask(
        &self,
        ask: &ShareAsk,
        deadline: Instant,
    ) -> io::Result<(ShareAnswer, Vec<OwnedFd>)> {
        self.write(&ask.to_line())?;
        let (line, descriptors) = self.read(deadline)?;
        Ok((serde_json::from_slice(&line)?, descriptors))
    }

    /// Tells the other process something that has no answer.
    pub(super) fn tell(&self, ask: &ShareAsk) {
        if self.write(&ask.to_line()).is_err() {
            self.give_up();
        }
    }

    /// Notes that nothing more is to be asked here: what comes next might be an earlier answer.
    pub(super) fn give_up(&self) {
        self.is_broken.store(true, Relaxed);
    }

    /// Writes a line. Never waits: where the other process does not read, the connection is as good as gone.
    fn write(&self, line: &str) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match send(&self.socket, line.as_bytes(), flags)? {
            all if all == line.len() => Ok(()),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Reads a line, while the process lives: a child of it that has the socket, too, answers nothing.
    fn read(&self, deadline: Instant) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        // Opened before the look: a number may go to another process in between.
        let process = process_tree::open(self.process.pid);
        let mut is_over = !self.process.is_alive();
        let mut both = vec![PollFd::new(&self.socket, PollFlags::IN)];
        both.extend(process.as_ref().map(|process| PollFd::new(process, PollFlags::IN)));
        loop {
            let until = if is_over { Instant::now() } else { deadline };
            let left = until.saturating_duration_since(Instant::now());
            let ready = poll(&mut both, Timespec::try_from(left).ok().as_ref());
            let has_line = !both[0].revents().is_empty();
            is_over |= both.get(1).is_some_and(|process| !process.revents().is_empty());
            match ready {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                // In time or not, which the next function says.
                Ok(_) if has_line || !is_over => break,
                Ok(_) => return Err(io::Error::new(ErrorKind::ConnectionReset, "it has ended")),
            }
        }
        receive(&self.socket, ANSWER_MOST, deadline)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A child of this process may have the socket, too.
        let _ended = self.socket.shutdown(Shutdown::Both);
    }
}

fn connect_by_folder(process: ProcessName) -> io::Result<UnixStream> {
    let folder = PrivateFolder::of_user().map_err(io::Error::other)?;
    let namespace = fs::read_link("/proc/thread-self/ns/pid")?;
    let name = socket_name(&namespace.to_string_lossy(), process.pid);
    let socket = connect(&folder.path().join(name))?;
    if !is_from_this_user(&socket) {
        return Err(io::Error::other("its agent belongs to another user"));
    }
    Ok(socket)
}

/// Returns how many descriptors may travel at once, or be kept for other processes.
pub(crate) fn spare_files() -> usize {
    let open = fs::read_dir("/proc/thread-self/fd").map_or(usize::MAX / 2, Iterator::count);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    limit.saturating_sub(open + FILES_LEFT).min(DESCRIPTORS_MOST)
}
