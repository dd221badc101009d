//! What people read: a page of text, built whole and then written.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Yellow.on_default();

/// The width of the column of names.
const NAME_WIDTH: usize = 16;
const VALUE_WIDTH: usize = 96;

/// Text in the making.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    fn push(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        let _ = self.text.write_fmt(line);
        self.text.push('\n');
    }

    pub(crate) fn title(&mut self, name: &str, rest: &str) {
        self.push(format_args!("{BOLD}{name}{BOLD:#}  {rest}"));
    }

    /// A name and what is to say of it, on as many lines as that takes.
    pub(crate) fn row(&mut self, name: &str, value: &str) {
        for (index, line) in wrapped(value, VALUE_WIDTH).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            self.push(format_args!("  {name:<NAME_WIDTH$} {line}"));
        }
    }

    /// A name, whether it works, and how that is known.
    pub(crate) fn verdict(&mut self, name: &str, works: bool, detail: &str, advice: Option<&str>) {
        let (style, word) = if works { (GOOD, "yes") } else { (BAD, "no") };
        self.push(format_args!("  {name:<NAME_WIDTH$} {style}{word:<3}{style:#}  {detail}"));
        if let Some(advice) = advice {
            self.push(format_args!("  {:<NAME_WIDTH$}      {DIM}→ {advice}{DIM:#}", ""));
        }
    }

    pub(crate) fn line(&mut self, text: &str) {
        self.push(format_args!("{text}"));
    }

    pub(crate) fn blank(&mut self) {
        self.text.push('\n');
    }

    pub(crate) fn print(self) -> anyhow::Result<()> {
        let mut out = anstream::AutoStream::auto(io::stdout());
        finish(out.write_all(self.text.as_bytes()).and_then(|()| out.flush()))
    }
}

/// Data for programs.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    finish(writeln!(io::stdout(), "{text}"))
}

// Breaks between words; a word that is too long stays whole, so that paths can be copied. Blanks
// in front stay, so that figures can stand below one another.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let words = text.trim_start_matches(' ');
    let mut lines = vec![text[..text.len() - words.len()].to_owned()];
    for word in words.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.trim_start().is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

// `lowtide ps | head -1` is no error.
fn finish(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn long_text_breaks_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a /very/long/path b", 5), ["a", "/very/long/path", "b"]);
        assert_eq!(wrapped("  1 two three", 7), ["  1 two", "three"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}
