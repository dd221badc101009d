//! Asking an agent.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::messages::{Answer, Ask, Request};
use crate::line::{LineReader, connect};

/// The most bytes of an answer: a receipt for each context, a ledger for each device.
const ANSWER_MOST: usize = 4 << 20;

/// The reason why an agent gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Nobody listens at the socket.
    #[error("there is no agent, or the program has not used CUDA yet; start it with `lowtide run`")]
    NoAgent(#[source] io::Error),
    /// The agent did not answer, or not in time.
    #[error("the agent did not answer")]
    NoAnswer(#[source] io::Error),
    /// The answer is not one of this version.
    #[error("the agent's answer is of another version")]
    Format(#[source] serde_json::Error),
}

/// Asks the agent that listens at a socket, and waits for its whole answer: five seconds for a status, a quarter
/// of an hour for what copies as much memory as the device has.
///
/// # Errors
/// [`AskError`].
pub fn ask(socket: &Path, ask: Ask) -> Result<Answer, AskError> {
    Question::begin(socket, ask)?.answer()
}

/// A question that an agent has. Several can be asked before the first answer is read.
#[derive(Debug)]
pub struct Question {
    stream: UnixStream,
    deadline: Instant,
}

impl Question {
    /// Asks the agent that listens at a socket.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn begin(socket: &Path, ask: Ask) -> Result<Question, AskError> {
        let mut stream = connect(socket).map_err(|error| match error.kind() {
            // Others wait before this one: it has not taken a connection for long.
            ErrorKind::WouldBlock => AskError::NoAnswer(error),
            _ => AskError::NoAgent(error),
        })?;
        let (patience, line) = (patience(ask), Request::new(ask).to_line());
        let sent = stream.set_write_timeout(Some(patience));
        sent.and_then(|()| stream.write_all(line.as_bytes())).map_err(AskError::NoAnswer)?;
        Ok(Question { stream, deadline: Instant::now() + patience })
    }

    /// Waits until there is something to read, but not beyond a moment. Returns whether there is.
    pub fn waits_until(&self, moment: Instant) -> bool {
        let left = moment.saturating_duration_since(Instant::now());
        let mut answered = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut answered, Timespec::try_from(left).ok().as_ref()).is_ok_and(|count| count > 0)
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn answer(self) -> Result<Answer, AskError> {
        let line = LineReader::default().read(&self.stream, ANSWER_MOST, self.deadline);
        let line = line.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the program ended"),
            _ => error,
        });
        serde_json::from_slice(&line.map_err(AskError::NoAnswer)?).map_err(AskError::Format)
    }
}

fn patience(ask: Ask) -> Duration {
    match ask {
        Ask::Status | Ask::Why => Duration::from_secs(5),
        _ => Duration::from_secs(900),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_program_that_ends_before_it_answers_is_not_of_another_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        assert!(matches!(ask(&socket, Ask::Status), Err(AskError::NoAgent(_))));
        let listener = UnixListener::bind(&socket).expect("a socket");
        let ended = thread::spawn(move || drop(listener.accept()));
        let error = ask(&socket, Ask::Status).expect_err("nobody answers");
        assert!(matches!(error, AskError::NoAnswer(_)), "{error}");
        ended.join().expect("it ends");
    }

    #[test]
    fn one_that_takes_no_connections_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&socket).ok()).take(1 << 13).collect();
        let (told, heard) = std::sync::mpsc::channel();
        thread::spawn(move || drop(told.send(ask(&socket, Ask::Status))));
        let answer = heard.recv_timeout(Duration::from_secs(60)).expect("an answer in a minute");
        let error = answer.expect_err("nobody answers");
        assert!(matches!(error, AskError::NoAnswer(_)), "{} wait, {error}", waiting.len());
    }

    #[test]
    fn an_answer_without_an_end_is_not_read_to_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let flood = thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let part = [b'7'; 1 << 12];
            (0..1 << 20).take_while(|_| client.write_all(&part).is_ok()).count()
        });
        let error = ask(&socket, Ask::Status).expect_err("it does not end");
        let AskError::NoAnswer(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        let written = flood.join().expect("it ends") << 12;
        assert!(written < 4 * ANSWER_MOST, "{written} bytes were taken");
    }
}
