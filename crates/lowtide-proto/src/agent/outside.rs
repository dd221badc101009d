//! Questions to a Python program from outside (`lowtide why PID`): where the asking process listens, and the text that the
//! program executes to answer there.

use std::fmt::Write as _;
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
/// let text = lowtide_proto::question_script("/run/a'b".as_ref());
/// assert!(text.ends_with("\nask(b'/run/a\\x27b')\n"), "{text}");
/// ```
pub fn question_script(socket: &Path) -> String {
    let mut script = format!("{SCRIPT}\nask(b'");
    for byte in socket.as_os_str().as_bytes() {
        let is_plain = byte.is_ascii_graphic() && !b"'\\".contains(byte);
        // Writing to a string cannot fail.
        let _written = if is_plain {
            write!(script, "{}", *byte as char)
        } else {
            write!(script, "\\x{byte:02x}")
        };
    }
    script.push_str("')\n");
    script
}
