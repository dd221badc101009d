//! Asking the helper, and starting it if nobody answers.
//!
//! Whoever starts a helper is its first client, over the socket that the helper gets as its standard input: the way back
//! from a suspend needs no folder.
//!
//! The asker may be the agent inside another program. So a helper is no child of the program for longer
//! than it takes to start, no descriptor of the connection reaches programs that it starts, no call waits
//! without a limit, and the variables that a helper gets are read once, in [`Helper::new`].
#![allow(unsafe_code, reason = "asks whether this process gained rights at its start")]

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use lowtide_types::variables;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process;

use super::messages::{
    Answer, Ask, Greeting, LINE_MOST, PROGRAM, Request, TRIAL_LIMIT, VERSION, socket_name,
};
use super::refusal::Refusal;
use crate::descriptors::apart;
use crate::line::{LineReader, connect, peer_of_this_user};
use crate::share::Join;

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
    /// The helper is stopped, so that it would not answer.
    #[error("the helper (process {pid}) is stopped; `kill -CONT {pid}` lets it go on")]
    Stopped {
        /// Its process.
        pid: u32,
    },
    /// The answer could not be read.
    #[error("the helper's answer could not be read")]
    Format(#[source] serde_json::Error),
    /// The helper did not let this process join those who share.
    #[error("the helper refused: {0}")]
    Refused(Refusal),
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
        let variables = kept.filter_map(|name| Some(((*name).into(), variables::get(name)?)));
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
        let named = variables::get("LOWTIDE_HELPER_PROGRAM").filter(|_| !is_privileged());
        if let Some(program) = named {
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
                started = Some(Instant::now());
                if let Some(connection) = self.start(began + START_LIMIT)? {
                    return Ok(connection);
                }
            }
            thread::sleep(PAUSE);
        }
    }

    /// Connects to the helper if it runs.
    ///
    /// # Errors
    /// [`HelperError`]; not if nobody listens.
    pub fn running(&self) -> Result<Option<Connection>, HelperError> {
        self.running_unless(|_| false)
    }

    /// Connects to the helper if it runs, unless its process is stopped: nobody has to wait then.
    ///
    /// # Errors
    /// [`HelperError`]; not if nobody listens.
    pub fn running_unless(
        &self,
        is_stopped: impl FnOnce(u32) -> bool,
    ) -> Result<Option<Connection>, HelperError> {
        let namespace = fs::read_link("/proc/thread-self/ns/pid").map_err(HelperError::NoAnswer)?;
        let socket = self.folder.join(socket_name(&namespace.to_string_lossy()));
        let stream = match connect(&socket) {
            Ok(stream) => stream,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(HelperError::NoAnswer(error)),
        };
        // Somebody who got hold of the folder's place.
        let Some(pid) = peer_of_this_user(&stream) else { return Ok(None) };
        if is_stopped(pid) {
            return Err(HelperError::Stopped { pid });
        }
        greeted(stream, Instant::now() + GREETING_LIMIT)
    }

    /// Starts the program, and waits for its greeting. It leaves this process at once: what was started here ends, and is
    /// waited for. Returns `None` if it found another helper and has ended.
    fn start(&self, deadline: Instant) -> Result<Option<Connection>, HelperError> {
        let failed = |source| HelperError::NotStarted { program: self.program.clone(), source };
        let (stream, theirs) = UnixStream::pair().map_err(failed)?;
        let stream = apart(stream).map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.arg(&self.folder).env_clear().envs(self.variables.iter().cloned());
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        // It has their end open.
        drop(command);
        wait_for(&mut child, START_LIMIT).map_err(failed)?;
        greeted(stream, deadline)
    }
}

/// Waits for the greeting of a helper; `None` if it ends instead.
fn greeted(stream: UnixStream, deadline: Instant) -> Result<Option<Connection>, HelperError> {
    let mut lines = LineReader::default();
    let line = match lines.read(&stream, LINE_MOST, deadline) {
        Ok(line) => line,
        Err(error) if is_end(&error) => return Ok(None),
        Err(error) => return Err(HelperError::NoAnswer(error)),
    };
    let greeting: Greeting = serde_json::from_slice(&line).map_err(HelperError::Format)?;
    if greeting.version != VERSION {
        return Err(HelperError::Version { found: greeting.version, pid: greeting.pid });
    }
    Ok(Some(Connection { stream, pid: greeting.pid, lines }))
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

/// Returns whether this process has rights that the user who started it may lack: it runs as root, or as
/// another user than the one who started it. Such a process does not let variables choose what it loads.
///
/// A debug build says no for root: its tests run as root in containers, with a double of the driver.
pub fn is_privileged() -> bool {
    let (effective, real) = (process::geteuid(), process::getuid());
    // SAFETY: returns a number; the kernel sets it for programs that gain rights at their start.
    let gained = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    effective != real || gained || (effective.is_root() && !cfg!(debug_assertions))
}

/// Returns whether nobody of this user listens, whatever is in the folder's place.
fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
    )
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
}

/// A connection to the helper, which has greeted.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    pid: u32,
    lines: LineReader,
}

impl Connection {
    /// Returns the process of the helper.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the helper has not hung up. It does where nobody asks for some seconds.
    pub fn is_open(&self) -> bool {
        let mut end = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
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
        let line = written.and_then(|()| self.lines.read(&self.stream, LINE_MOST, deadline));
        let line = line.map_err(HelperError::NoAnswer)?;
        serde_json::from_slice(&line).map_err(HelperError::Format)
    }

    /// Joins those who share the devices. Returns the standing connection, and what was read of it already: each
    /// side sends lines of [`crate::share`] now.
    ///
    /// # Errors
    /// [`HelperError`].
    pub fn join(mut self, join: Join) -> Result<(UnixStream, LineReader), HelperError> {
        match self.ask(Ask::Join(join))? {
            Answer::Joined => Ok((self.stream, self.lines)),
            Answer::Refused { refusal } => Err(HelperError::Refused(refusal)),
            answer => {
                let why = format!("no answer to joining: {answer:?}");
                Err(HelperError::NoAnswer(io::Error::new(ErrorKind::InvalidData, why)))
            }
        }
    }
}

fn patience(ask: &Ask) -> Duration {
    let limits_ms = match ask {
        Ask::Suspend(suspend) => suspend.lock_limit_ms.saturating_add(suspend.limit_ms),
        Ask::Resume(resume) => resume.wait_ms.saturating_add(resume.limit_ms),
        Ask::Try => TRIAL_LIMIT.as_millis() as u64,
        Ask::State { .. } | Ask::List | Ask::Devices | Ask::Join(_) | Ask::Queue => 0,
    };
    ANSWER_SLACK.saturating_add(Duration::from_millis(limits_ms))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use tempfile::TempDir;

    use super::*;
    use crate::helper::{ProcessState, ProcessStatus, Target};
    use crate::share::{Priority, ToAgent};

    fn socket(folder: &TempDir) -> PathBuf {
        let namespace = fs::read_link("/proc/thread-self/ns/pid").expect("a namespace");
        folder.path().join(socket_name(&namespace.to_string_lossy()))
    }

    /// Keeps tests with programs apart. A process that another test starts has, for a moment, every file of this
    /// one open, and a program that is open for writing cannot be run.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A helper that is started from a script with this text.
    fn scripted(folder: &TempDir, script: &str) -> Helper {
        let program = folder.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("it can be run");
        Helper::new(folder.path(), program)
    }

    /// Greets one client and answers its lines with these.
    fn serve(listener: &UnixListener, greeting: &str, answers: &[&str]) {
        let (mut client, _) = listener.accept().expect("a client");
        client.write_all(greeting.as_bytes()).expect("the client reads");
        for answer in answers {
            let (mut byte, mut line) = ([0], Vec::new());
            while byte != *b"\n" {
                client.read_exact(&mut byte).expect("the client writes a line");
                line.push(byte[0]);
            }
            Request::from_line(&line).expect("a question");
            client.write_all(answer.as_bytes()).expect("the client reads");
        }
    }

    #[test]
    fn a_helper_that_listens_is_asked() {
        let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
        let helper = scripted(&folder, "exit 1");
        assert!(helper.running().expect("nobody listens").is_none());
        let listener = UnixListener::bind(socket(&folder)).expect("a socket");
        let target = Target { pid: 3, start_ticks: 4 };
        let status = ProcessStatus { target, state: ProcessState::Checkpointed, needs: Vec::new() };
        let (one, two) = (Answer::State(status), Answer::List { processes: Vec::new() });
        thread::scope(|scope| {
            scope.spawn(|| {
                // Both answers at once: the second is kept for the second question.
                serve(&listener, &Greeting::line(77), &[&(one.to_line() + &two.to_line()), ""]);
            });
            let mut connection = helper.connect().expect("it listens");
            assert_eq!(connection.pid(), 77);
            assert_eq!(connection.ask(Ask::State { target }).expect("an answer"), one);
            assert_eq!(connection.ask(Ask::List).expect("an answer"), two);
        });
    }

    #[test]
    fn a_helper_that_is_not_of_this_version_or_goes_away_is_told_apart() {
        let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
        let helper = scripted(&folder, "exit 1");
        let listener = UnixListener::bind(socket(&folder)).expect("a socket");
        thread::scope(|scope| {
            scope.spawn(|| {
                serve(&listener, "{\"version\":9,\"pid\":5}\n", &[]);
                serve(&listener, "hello\n", &[]);
                serve(&listener, &Greeting::line(77), &[]);
                serve(&listener, "", &[]);
            });
            let other = helper.connect().map(drop);
            assert!(matches!(other, Err(HelperError::Version { found: 9, pid: 5 })), "{other:?}");
            assert!(matches!(helper.connect(), Err(HelperError::Format(_))));
            let mut gone = helper.connect().expect("it greets");
            assert!(matches!(gone.ask(Ask::List), Err(HelperError::NoAnswer(_))));
            assert!(helper.running().expect("it was about to end").is_none());
        });
    }

    #[test]
    fn who_joins_keeps_the_connection_and_what_came_with_the_answer() {
        let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
        let helper = scripted(&folder, "exit 1");
        let listener = UnixListener::bind(socket(&folder)).expect("a socket");
        let refusal = Refusal::Unreadable { why: "unknown variant `join`".to_owned() };
        thread::scope(|scope| {
            scope.spawn(|| {
                let first = Answer::Joined.to_line() + &ToAgent::Look.to_line();
                serve(&listener, &Greeting::line(77), &[&first]);
                serve(&listener, &Greeting::line(78), &[&Answer::Refused { refusal }.to_line()]);
            });
            let join = Join {
                command: "python".to_owned(),
                priority: Priority::Normal,
                wait_ms: 600_000,
                family: None,
            };
            let connection = helper.connect().expect("it listens");
            let (stream, mut lines) = connection.join(join.clone()).expect("it lets us join");
            let line = lines.read(&stream, LINE_MOST, Instant::now()).expect("it was read");
            assert_eq!(ToAgent::from_line(&line).expect("a message"), ToAgent::Look);
            let refused = helper.connect().expect("it listens").join(join).expect_err("refused");
            assert!(refused.to_string().contains("unknown variant `join`"), "{refused}");
        });
    }

    #[test]
    fn a_program_that_fails_is_named_and_leaves_no_child() {
        let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
        let failed = scripted(&folder, "exit 7").connect().map(drop);
        let Err(HelperError::NotStarted { program, source }) = failed else { panic!("{failed:?}") };
        assert!(program.ends_with("program") && source.to_string().contains('7'), "{source}");
        let missing = Helper::new(folder.path(), folder.path().join("nothing"));
        assert!(matches!(missing.connect(), Err(HelperError::NotStarted { .. })));
        let beside = folder.path().join("lowtide");
        assert!(matches!(Helper::find_program(&beside), Err(HelperError::NotInstalled { .. })));
        fs::write(folder.path().join(PROGRAM), "").expect("a file");
        assert_eq!(
            Helper::find_program(&beside).expect("it is there"),
            folder.path().join(PROGRAM)
        );
    }

    #[test]
    fn the_program_gets_few_variables_and_no_preloaded_library() {
        let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
        let mut helper = scripted(&folder, "/usr/bin/env > \"$1/env\"; exit 3");
        helper.variables = vec![("LOWTIDE_DOUBLE".into(), "devices=2".into())];
        assert!(helper.connect().is_err());
        let text = fs::read_to_string(folder.path().join("env")).expect("what it got");
        let names: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
        assert!(names.contains(&"LOWTIDE_DOUBLE"), "{text}");
        // The shell adds these.
        let of_the_shell = ["LOWTIDE_DOUBLE", "PWD", "SHLVL", "_", "OLDPWD", "PATH"];
        assert!(names.iter().all(|name| of_the_shell.contains(name)), "{text}");
    }

    #[test]
    fn a_helper_of_another_user_is_not_listened_to() {
        if !process::geteuid().is_root() {
            return eprintln!("skipped: only root can act as another user");
        }
        let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        let path = socket(&folder);
        let squatter = thread::spawn(move || {
            // SAFETY: changes the user of this thread alone, which ends here.
            unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
            UnixListener::bind(path)
        });
        let listener = squatter.join().expect("no panic").expect("a socket");
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, _) = listener.accept().expect("a client");
                let _sent = client.write_all(Greeting::line(77).as_bytes());
            });
            let running = scripted(&folder, "exit 1").running();
            assert!(running.expect("nobody of this user").is_none());
        });
    }

    #[test]
    fn a_full_queue_is_no_wait_without_an_end() {
        let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
        let path = socket(&folder);
        let _listener = UnixListener::bind(&path).expect("a socket");
        let mut waiting = Vec::new();
        // Somebody who never accepts: the queue has an end.
        let full = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100_000, "the queue has no end");
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock, "{full}");
        let asked = scripted(&folder, "exit 1").connect().map(drop);
        assert!(matches!(asked, Err(HelperError::NoAnswer(_))), "{asked:?}");
    }
}
