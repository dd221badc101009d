//! Text that others chose, made safe to print: names of processes, tags, classes and devices.
//!
//! A name may contain escape sequences that move the cursor or colour the terminal, line breaks that
//! fake another row, and characters that reverse or hide what follows. Such characters are shown as
//! `\u{1b}` and the like, and bytes that are no UTF-8 as `\xff`.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Returns whether a character stands for itself: no control character, and none that changes the
/// direction of text or is invisible.
pub fn is_printable(c: char) -> bool {
    let is_hidden = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !c.is_control() && !is_hidden
}

/// Returns text on one line, with every character that is not printable escaped.
///
/// ```
/// use lowtide_types::printable;
///
/// assert_eq!(printable("naïve 模型"), "naïve 模型");
/// assert_eq!(printable("a\u{1b}[31m\n\u{202e}b"), r"a\u{1b}[31m\n\u{202e}b");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Returns the same, of several lines: line breaks stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n')
}

/// Returns bytes as text on one line. Bytes that are no UTF-8 are shown as `\xff`.
pub fn printable_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_fine = |c| is_printable(c) || stays(c);
    if text.chars().all(is_fine) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_fine(c) {
            escaped.push(c);
        } else {
            escaped.extend(c.escape_default());
        }
    }
    Cow::Owned(escaped)
}

/// A formatter that escapes what is written through it, line breaks apart.
pub(crate) struct Printing<'a, 'b>(pub(crate) &'a mut fmt::Formatter<'b>);

impl fmt::Write for Printing<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&printable_lines(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_that_moves_hides_or_reverses_gets_through() {
        let nasty = "\u{7}\u{8}\t\r\n\u{1b}\u{7f}\u{85}\u{9b}\u{200b}\u{200f}\u{2028}\u{202e}\u{2066}\u{feff}\u{e0041}";
        for c in nasty.chars() {
            let text = printable(&format!("a{c}b")).into_owned();
            assert!(text.chars().all(is_printable) && text.starts_with("a\\"), "{text}");
        }
        assert_eq!(printable_lines("a\nb\r"), "a\nb\\r");
        assert_eq!(printable_bytes(b"p\xffq\xc3\x28\x1b"), r"p\xffq\xc3(\u{1b}");
        assert!(matches!(printable("plain ünïcode"), Cow::Borrowed(_)));
    }
}
