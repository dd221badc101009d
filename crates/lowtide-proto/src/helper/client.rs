//! Asking the helper, and starting it if nobody answers.
//!
//! The asker may be the agent inside another program. So a helper is no child of the program for longer
//! than it takes to start, no descriptor of the connection reaches programs that it starts, no call waits
//! without a limit, and the variables that a helper gets are read once, in [`Helper::new`].

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::connecting::{connect, is_privileged};
use super::messages::{
    Answer, Ask, Greeting, LINE_MOST, PROGRAM, Request, TRIAL_LIMIT, VERSION, socket_name,
};

/// The time in which a helper that was started answers, however busy the machine is.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The time after which a helper that has not answered is started once more: the first may have met an
/// older one that was ending.
const START_AGAIN: Duration = Duration::from_secs(5);
/// The time in which a helper that listens greets.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// The time that the helper has for what it does beside the limits in a question.
const ANSWER_SLACK: Duration = Duration::from_secs(30);
/// The pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(2);

/// The variables that a helper gets from whoever starts it, unless one of them is privileged: where the
/// driver is, and what tests tell its double.
const VARIABLES: [&str; 7] = [
    "LD_LIBRARY_PATH",
    "LOWTIDE_CUDA_LIBRARY",
    "LOWTIDE_NVML_LIBRARY",
    "LOWTIDE_DOUBLE",
    "LOWTIDE_DOUBLE_STATE",
    "LOWTIDE_HELPER",
    "LOWTIDE_LOG",
];

/// The reason why the helper gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HelperError {
    /// The program is nowhere.
    #[error("the helper is not installed: {PROGRAM} is not beside {}", beside.display())]
    NotInstalled {
        /// The file that it should be beside of.
        beside: PathBuf,
    },
    /// The program did not start.
    #[error("the helper did not start: {}", program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The helper did not answer in time, or went away.
    #[error("the helper did not answer")]
    NoAnswer(#[source] io::Error),
    /// The helper is of another version.
    #[error(
        "the helper (process {pid}) is of another version: it speaks {found}, and this program {VERSION}; it ends by \
         itself when it is not used"
    )]
    Version {
        /// The version that it speaks.
        found: u32,
        /// Its process.
        pid: u32,
    },
    /// The answer could not be read.
    #[error("the helper's answer could not be read")]
    Format(#[source] serde_json::Error),
}

/// The helper of this user, running or not.
#[derive(Debug, Clone)]
pub struct Helper {
    folder: PathBuf,
    program: PathBuf,
    variables: Vec<(OsString, OsString)>,
}

impl Helper {
    /// Describes the helper whose socket is in a folder, the one of the agents' sockets, and which is started
    /// from this program. Reads the variables that the helper gets; starts nothing.
    pub fn new(folder: &Path, program: PathBuf) -> Helper {
        let kept = VARIABLES.iter().filter(|_| !is_privileged());
        let variables = kept.filter_map(|name| Some(((*name).into(), env::var_os(name)?)));
        Helper { folder: folder.to_owned(), program, variables: variables.collect() }
    }

    /// Sets a variable that the helper gets if it is started, for tests.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: impl Into<OsString>) -> Helper {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Finds the helper's program: where `LOWTIDE_HELPER_PROGRAM` says, unless this process is privileged,
    /// or near another file of lowtide's.
    ///
    /// # Errors
    /// [`HelperError::NotInstalled`].
    pub fn find_program(beside: &Path) -> Result<PathBuf, HelperError> {
        let told = env::var_os("LOWTIDE_HELPER_PROGRAM").filter(|_| !is_privileged());
        if let Some(program) = told {
            return Ok(program.into());
        }
        let folder = beside.parent().unwrap_or(beside);
        let places = ["", "../lib/lowtide", "../../bin"].map(|way| folder.join(way).join(PROGRAM));
        let found = places.into_iter().find(|place| place.is_file());
        found.ok_or_else(|| HelperError::NotInstalled { beside: beside.to_owned() })
    }

    /// Connects to the helper, and starts it first if nobody listens. Takes at most half a minute.
    ///
    /// # Errors
    /// [`HelperError`].
    pub fn connect(&self) -> Result<Connection, HelperError> {
        let (began, mut started) = (Instant::now(), None::<Instant>);
        loop {
            if let Some(connection) = self.running()? {
                return Ok(connection);
            }
            if began.elapsed() > START_LIMIT {
                let why = format!("{} was started and does not listen", self.program.display());
                return Err(HelperError::NoAnswer(io::Error::new(ErrorKind::TimedOut, why)));
            }
            if started.is_none_or(|started| started.elapsed() > START_AGAIN) {
                self.start()?;
                started = Some(Instant::now());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Connects to the helper if it runs.
    ///
    /// # Errors
    /// [`HelperError`]; not if nobody listens.
    pub fn running(&self) -> Result<Option<Connection>, HelperError> {
        let namespace = fs::read_link("/proc/self/ns/pid").map_err(HelperError::NoAnswer)?;
        let socket = self.folder.join(socket_name(&namespace.to_string_lossy()));
        let stream = match connect(&socket) {
            Ok(stream) => stream,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(HelperError::NoAnswer(error)),
        };
        let mut connection = Connection { stream, pid: 0, read: Vec::new() };
        let line = match connection.line(Instant::now() + GREETING_LIMIT) {
            Ok(line) => line,
            // It was about to end.
            Err(error) if is_end(&error) => return Ok(None),
            Err(error) => return Err(HelperError::NoAnswer(error)),
        };
        let greeting: Greeting = serde_json::from_slice(&line).map_err(HelperError::Format)?;
        if greeting.version != VERSION {
            return Err(HelperError::Version { found: greeting.version, pid: greeting.pid });
        }
        connection.pid = greeting.pid;
        Ok(Some(connection))
    }

    /// Starts the program. It leaves this process at once: what was started here ends, and is waited for.
    fn start(&self) -> Result<(), HelperError> {
        let failed = |source| HelperError::NotStarted { program: self.program.clone(), source };
        let mut command = Command::new(&self.program);
        command.arg(&self.folder).env_clear().envs(self.variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        let ended = wait_for(&mut child, START_LIMIT);
        ended.map_err(failed)
    }
}

/// Waits until a child has ended; kills it after a limit. The program around this one may wait for children
/// of its own, and take ours with them: then nothing is known about its end, and nothing is left of it.
fn wait_for(child: &mut Child, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => thread::sleep(PAUSE),
            Ok(None) => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(ErrorKind::TimedOut, format!("not in {limit:?}")));
            }
            Ok(Some(status)) if !status.success() => {
                return Err(io::Error::other(format!("it ended with {status}")));
            }
            Ok(Some(_)) | Err(_) => return Ok(()),
        }
    }
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
}

/// A connection to the helper, which has greeted.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    pid: u32,
    /// What was read behind the last line.
    read: Vec<u8>,
}

impl Connection {
    /// Returns the process of the helper.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks the helper, and waits for its answer as long as the limits in the question allow, and a little
    /// longer.
    ///
    /// # Errors
    /// [`HelperError`]. The helper may still do what it was asked; ask for the state.
    pub fn ask(&mut self, ask: Ask) -> Result<Answer, HelperError> {
        let deadline = Instant::now() + patience(&ask);
        let line = Request::line(ask);
        let written = self
            .stream
            .set_write_timeout(Some(ANSWER_SLACK))
            .and_then(|()| self.stream.write_all(line.as_bytes()));
        let line = written.and_then(|()| self.line(deadline)).map_err(HelperError::NoAnswer)?;
        serde_json::from_slice(&line).map_err(HelperError::Format)
    }

    /// Reads a line, up to a moment.
    fn line(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut part = [0; 1024];
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.read, rest));
            }
            if self.read.len() > LINE_MOST {
                return Err(io::Error::new(ErrorKind::InvalidData, "the line does not end"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "it did not answer in time"));
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the helper ended")),
                Ok(count) => self.read.extend_from_slice(&part[..count]),
                // The limit is looked at above.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn patience(ask: &Ask) -> Duration {
    let limits_ms = match ask {
        Ask::Suspend(suspend) => suspend.lock_limit_ms.saturating_add(suspend.limit_ms),
        Ask::Resume(resume) => resume.wait_ms.saturating_add(resume.limit_ms),
        Ask::Try => TRIAL_LIMIT.as_millis() as u64,
        Ask::State { .. } | Ask::List | Ask::Devices => 0,
    };
    ANSWER_SLACK.saturating_add(Duration::from_millis(limits_ms))
}

#[cfg(test)]
mod tests;
