//! Asking an agent.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::messages::{Answer, Ask, Request};
use crate::line::{LineReader, at_socket};

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
    let stream = at_socket(socket, |path| UnixStream::connect(path));
    let mut stream = stream.map_err(AskError::NoAgent)?;
    let line = exchange(&mut stream, ask).map_err(AskError::NoAnswer)?;
    serde_json::from_slice(&line).map_err(AskError::Format)
}

fn exchange(stream: &mut UnixStream, ask: Ask) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + patience(ask);
    stream.set_write_timeout(Some(patience(ask)))?;
    stream.write_all(Request::new(ask).to_line().as_bytes())?;
    LineReader::default().read(stream, ANSWER_MOST, deadline).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(ErrorKind::UnexpectedEof, "the program ended"),
        _ => error,
    })
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
