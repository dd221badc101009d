//! Lines for the person who runs the program. The agent has no other way to speak.

/// Writes a line to the program's standard error. Unlike `eprintln!`, it does not panic where nobody can
/// write there.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _written = writeln!(std::io::stderr(), "lowtide: {}", format_args!($($text)*));
    }};
}
pub(crate) use say;
