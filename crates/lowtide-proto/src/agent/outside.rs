//! Questions to a Python program from outside (`lowtide why PID`): where the asking process listens, and the text that the
//! program executes to answer there.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a program executes, without the call.
const SCRIPT: &str = include_str!("../../../lowtide-python/python/lowtide/_outside/script.py");

/// The name of every socket at which a question waits for its answer begins so.
pub const QUESTION: &str = "why-";

/// Returns the name of the socket at which the question to a process waits for its answer, in the folder of its user;
/// see [`socket_name`](super::messages::socket_name).
pub fn question_name(namespace: &str, pid: u32) -> String {
    let digits: String = namespace.chars().filter(char::is_ascii_digit).collect();
    format!("{QUESTION}{digits}-{pid}")
}

/// Returns the text that a program executes to answer the question that waits at a socket, if one does.
///
/// ```
/// let text = lowtide_proto::question_script("/a'b".as_ref());
/// assert!(text.ends_with("\nask(bytes([47, 97, 39, 98]))\n"), "{text}");
/// ```
pub fn question_script(socket: &Path) -> String {
    format!("{SCRIPT}\nask(bytes({:?}))\n", socket.as_os_str().as_bytes())
}
