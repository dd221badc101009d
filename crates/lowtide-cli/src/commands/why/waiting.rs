//! The socket at which a question waits until a thread of the process answers it.
//!
//! It lies in the folder of this user, and its name has the process's number. The first thread that connects is
//! answered; then the socket is gone, and later ones return at once.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::line::{LineReader, at_socket, connect, peer_of_this_user};
use lowtide_proto::question_name;
use serde_json::Value;

use super::target::Target;

/// The most bytes of an answer.
const ANSWER_MOST: usize = 64 << 20;
/// The time in which the process reads the request.
const READ_LIMIT: Duration = Duration::from_secs(2);
/// The time for which an answer is waited for after the limit that the process was given.
const GRACE: Duration = Duration::from_secs(20);
/// The pause between two looks at whether somebody has connected.
const PAUSE: Duration = Duration::from_millis(5);

/// A question that waits for its answer.
pub(super) struct Waiting<'a> {
    target: &'a Target,
    folder: PrivateFolder,
    name: String,
    listener: UnixListener,
}

impl<'a> Waiting<'a> {
    /// Begins to wait.
    pub(super) fn of(target: &'a Target) -> anyhow::Result<Waiting<'a>> {
        let folder = PrivateFolder::of_user()?;
        let namespace =
            fs::read_link("/proc/self/ns/pid").context("reading this process's namespace")?;
        let name = question_name(&namespace.to_string_lossy(), target.pid);
        sweep(&folder, &name)?;
        let path = folder.path().join(&name);
        ensure!(
            connect(&path).is_err(),
            "process {} is being asked by somebody else; ask again",
            target.pid
        );
        // One that was killed has left it.
        folder.remove(&name)?;
        let listener = at_socket(&path, |path| UnixListener::bind(path)).context("listening")?;
        listener.set_nonblocking(true)?;
        Ok(Waiting { target, folder, name, listener })
    }

    /// Returns the path of the socket.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Writes a file that lies beside the socket, until the process has no use for it.
    pub(super) fn script(&self, text: &str) -> anyhow::Result<PathBuf> {
        let name = format!("{}.py", self.name);
        self.folder.replace(&name, text.as_bytes())?;
        Ok(self.folder.path().join(name))
    }

    /// Removes the file.
    pub(super) fn remove_script(&self) -> anyhow::Result<()> {
        Ok(self.folder.remove(&format!("{}.py", self.name))?)
    }

    /// Waits until a thread has connected; `None` if none has in time.
    pub(super) fn claimed(&self, until: Instant) -> anyhow::Result<Option<UnixStream>> {
        let pid = self.target.pid;
        loop {
            match self.listener.accept() {
                // A forked child of the process, or somebody else, is not asked.
                Ok((stream, _)) if peer_of_this_user(&stream) == Some(pid) => {
                    stream.set_nonblocking(false)?;
                    return Ok(Some(stream));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(self.target.is_there(), "process {pid} has ended before it answered");
                    if Instant::now() > until {
                        return Ok(None);
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error).context("listening"),
            }
        }
    }

    /// Sends the request to the thread that has connected, with the time that is left, and returns its answer; `None` if
    /// it is not given in time.
    pub(super) fn answer(
        &self,
        stream: &UnixStream,
        until: Instant,
        request: &mut Value,
    ) -> anyhow::Result<Option<Value>> {
        // Nobody else gets in.
        self.folder.remove(&self.name)?;
        let pid = self.target.pid;
        let mut lines = LineReader::default();
        let ended = || {
            let is_there = self.target.is_there();
            let what = if is_there { "did not answer" } else { "has ended during the question" };
            format!("process {pid} {what}")
        };
        let mut read = |until: Instant| match lines.read(stream, ANSWER_MOST, until) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
            read => read.map(Some).with_context(ended),
        };
        // It may be long until the thread has the interpreter's lock again, and says so with an empty line.
        let Some(_ready) = read(until)? else { return Ok(None) };
        request["limit_s"] = until.saturating_duration_since(Instant::now()).as_secs_f64().into();
        stream.set_write_timeout(Some(READ_LIMIT))?;
        { stream }.write_all(format!("{request}\n").as_bytes()).with_context(ended)?;
        let Some(answer) = read(until + GRACE)? else { return Ok(None) };
        let answer = serde_json::from_slice(&answer);
        answer.map(Some).with_context(|| format!("process {pid} answers something else"))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // The next question to the process removes one that cannot be removed.
        let _removed = self.folder.remove(&self.name);
    }
}

/// Removes what questions have left to processes of this PID namespace that have ended.
fn sweep(folder: &PrivateFolder, own: &str) -> anyhow::Result<()> {
    let namespace = own.rsplit_once('-').map_or(own, |(namespace, _)| namespace);
    for name in folder.names()? {
        let pid = name.to_str().and_then(|name| name.strip_prefix(namespace)?.strip_prefix('-'));
        let Some(pid) = pid else { continue };
        if !fs::exists(format!("/proc/{}", pid.trim_end_matches(".py"))).unwrap_or(true) {
            folder.remove(&name.to_string_lossy())?;
        }
    }
    Ok(())
}
