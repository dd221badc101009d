//! Text for people, laid out for the width of the terminal: built whole, then written at once.
//!
//! Text that is too long for a line continues on the next, indented under its own column. A word
//! that is too long for a line stays whole, so that a path can be copied.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anstyle::{AnsiColor, Style};
use anyhow::Context as _;
use lowtide_types::{is_printable, printable, printable_lines};
use serde::Serialize;
use textwrap::core::display_width;
use textwrap::{WordSeparator, WordSplitter, WrapAlgorithm};

use super::terminal;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Yellow.on_default();

/// Units that stay on the line of their number.
const UNITS: [&str; 9] = ["B", "KiB", "MiB", "GiB", "GiB/s", "MB", "ns", "ms", "s"];
/// The blank between a number and its unit while text is wrapped.
const BOUND: char = '\u{a0}';
/// The width of the column of names.
const NAME_WIDTH: usize = 16;
/// The least width of a column of text. Where less is left, text continues near the left edge.
const LEAST_TEXT: usize = 12;
/// Starts a drawing at the top left of the terminal.
const HOME: &str = "\x1b[H";
/// Clears the rest of a line, and the rest of the terminal.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The reader of standard output: `lowtide ps --watch | head -1` stops reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// It reads.
    Reads,
    /// It has stopped.
    Gone,
}

/// A page of text under construction.
pub struct Page {
    text: String,
    width: usize,
}

impl Default for Page {
    fn default() -> Page {
        Page::of_width(terminal::width_of(&io::stdout()))
    }
}

impl Page {
    /// Creates an empty page with lines of at most `width` columns.
    pub fn of_width(width: usize) -> Page {
        Page { text: String::new(), width }
    }

    /// Adds a heading: a name in bold and a few words about it.
    pub fn title(&mut self, name: &str, rest: &str) {
        self.columns(&format!("{BOLD}{}{BOLD:#}  ", printable(name)), rest);
    }

    /// Adds a name and the text that belongs to it.
    pub fn row(&mut self, name: &str, value: &str) {
        self.columns(&format!("  {name:<NAME_WIDTH$} "), value);
    }

    /// Adds a name, yes or no, the reason, and advice where there is some.
    pub fn verdict(&mut self, name: &str, works: bool, detail: &str, advice: Option<&str>) {
        let (style, word) = if works { (GOOD, "yes") } else { (BAD, "no") };
        let head = format!("  {name:<NAME_WIDTH$} {style}{word:<3}{style:#}  ");
        let below = " ".repeat(display_width(&head));
        self.columns(&head, detail);
        if let Some(advice) = advice {
            let advice = format!("{}{DIM:#}", printable_lines(advice));
            self.fit(&format!("{below}{DIM}→ "), &advice);
        }
    }

    /// Adds the columns of a table that come first, and the text of the last column. Text that others
    /// chose does nothing to the terminal.
    pub fn columns(&mut self, head: &str, last: &str) {
        self.fit(head, &printable_lines(last));
    }

    fn fit(&mut self, head: &str, last: &str) {
        let column = display_width(head);
        let is_narrow = column + LEAST_TEXT > self.width;
        let indent = " ".repeat(if is_narrow { 4 } else { column });
        self.wrap(last, head, &indent);
    }

    /// Adds a line. Its continuation is indented under its second column where it has two (two
    /// blanks between them), and a little further than the line itself otherwise.
    pub fn line(&mut self, text: &str) {
        let text = &*printable_lines(text);
        let body = text.trim_start_matches(' ');
        let start = text.len() - body.len();
        match second_column(body) {
            Some(at) => self.fit(&text[..start + at], &body[at..]),
            None => self.wrap(body, &text[..start], &" ".repeat(start + 2)),
        }
    }

    /// Adds an empty line.
    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    /// Adds the columns of a table that come first, and a command line in the last column. Its words
    /// are broken where they do not fit: nobody copies them.
    pub fn command(&mut self, head: &str, command: &str) {
        let indent = " ".repeat(display_width(head));
        let options = options(self.width, head, &indent).break_words(true);
        self.add(textwrap::wrap(&printable(command), options));
    }

    fn wrap(&mut self, text: &str, first: &str, rest: &str) {
        if text.is_empty() {
            return self.add(vec![first.into()]);
        }
        let bound = bind_units(text);
        self.add(textwrap::wrap(&bound, options(self.width, first, rest)));
    }

    fn add(&mut self, lines: Vec<Cow<'_, str>>) {
        for line in lines {
            self.text.push_str(&line.trim_end().replace(BOUND, " "));
            self.text.push('\n');
        }
    }

    /// Writes the page to standard output.
    pub fn print(self) -> anyhow::Result<Reader> {
        let mut out = anstream::AutoStream::auto(io::stdout());
        finish(out.write_all(self.text.as_bytes()).and_then(|()| out.flush()))
    }

    /// Draws the page over the one that was drawn before, from the top of the terminal.
    pub fn redraw(self) -> anyhow::Result<Reader> {
        let mut drawing = String::from(HOME);
        let rows = terminal::height_of(&io::stdout()).saturating_sub(1);
        let hidden = self.text.lines().count().saturating_sub(rows);
        let shown = if hidden > 0 { rows.saturating_sub(1) } else { rows };
        for line in self.text.lines().take(shown) {
            // Writing to a `String` cannot fail.
            let _ = writeln!(drawing, "{line}{CLEAR_LINE}");
        }
        if hidden > 0 {
            let _ = writeln!(drawing, "… {} more lines{CLEAR_LINE}", hidden + 1);
        }
        drawing.push_str(CLEAR_BELOW);
        let mut out = anstream::AutoStream::auto(io::stdout());
        finish(out.write_all(drawing.as_bytes()).and_then(|()| out.flush()))
    }

    /// Writes the page to standard error.
    pub fn print_error(self) {
        // Where standard error cannot be written there is nobody left to tell.
        let _ = anstream::AutoStream::auto(io::stderr()).write_all(self.text.as_bytes());
    }
}

/// Writes a message of `lowtide` for people to standard error, wrapped to its width.
pub fn complain(message: &str) {
    complain_as("lowtide", message);
}

/// Writes a message of the named program.
pub(crate) fn complain_as(program: &str, message: &str) {
    let mut page = Page::of_width(terminal::width_of(&io::stderr()));
    page.wrap(&format!("{program}: {}", printable_lines(message)), "", "  ");
    page.print_error();
}

/// True once something was printed for programs.
static HAS_PRINTED_JSON: AtomicBool = AtomicBool::new(false);

/// Returns whether data for programs was printed.
pub(crate) fn has_printed_json() -> bool {
    HAS_PRINTED_JSON.load(Relaxed)
}

/// What a command prints for programs that did nothing.
#[derive(Serialize)]
pub(crate) struct Refused<'a> {
    answer: &'static str,
    reason: &'a str,
}

impl Refused<'_> {
    /// Describes a refusal for this reason.
    pub(crate) fn because(reason: &str) -> Refused<'_> {
        Refused { answer: "refused", reason }
    }
}

/// Writes text for programs to standard output, as it is.
pub(crate) fn print_text(text: &str) -> anyhow::Result<Reader> {
    let mut out = io::stdout().lock();
    finish(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Writes data for programs to standard output, over several lines.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<Reader> {
    let text = escape_json(&serde_json::to_string_pretty(value)?);
    HAS_PRINTED_JSON.store(true, Relaxed);
    finish(writeln!(io::stdout(), "{text}"))
}

/// Writes data for programs to standard output, on one line.
pub fn print_json_line(value: &impl Serialize) -> anyhow::Result<Reader> {
    let text = escape_json(&serde_json::to_string(value)?);
    HAS_PRINTED_JSON.store(true, Relaxed);
    let mut out = io::stdout().lock();
    finish(writeln!(out, "{text}").and_then(|()| out.flush()))
}

// JSON has no such characters but in its strings, where an escape means the same. (Line breaks are
// between the lines.)
fn escape_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || is_printable(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a `String` cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

fn options<'a>(width: usize, first: &'a str, rest: &'a str) -> textwrap::Options<'a> {
    textwrap::Options::new(width)
        .initial_indent(first)
        .subsequent_indent(rest)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit)
}

// A number and its unit stay on one line.
fn bind_units(text: &str) -> String {
    let mut bound = String::with_capacity(text.len());
    for word in text.split_inclusive(' ') {
        let is_unit = UNITS.contains(&word.trim_end_matches([' ', ',', ';', ':', '.', ')']));
        if is_unit
            && bound.ends_with(' ')
            && bound.trim_end().ends_with(|c: char| c.is_ascii_digit())
        {
            bound.pop();
            bound.push(BOUND);
        }
        bound.push_str(word);
    }
    bound
}

// Where the second column of a line begins.
fn second_column(line: &str) -> Option<usize> {
    let gap = line.find("  ")?;
    let rest = &line[gap..];
    Some(gap + rest.len() - rest.trim_start_matches(' ').len())
}

/// Says what failed where text cannot be written.
pub const TO_STANDARD_OUTPUT: &str = "writing to standard output";

// `lowtide ps | head -1` is no error.
fn finish(written: io::Result<()>) -> anyhow::Result<Reader> {
    match written {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        // The system's words alone, "No space left on device", would be taken for the GPU.
        Err(error) => Err(error).context(TO_STANDARD_OUTPUT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(width: usize, build: impl FnOnce(&mut Page)) -> Vec<String> {
        let mut page = Page::of_width(width);
        build(&mut page);
        let plain = anstream::adapter::strip_str(&page.text).to_string();
        plain.lines().map(str::to_owned).collect()
    }

    #[test]
    fn text_continues_under_its_own_column() {
        assert_eq!(
            lines(40, |page| page.row("memory", "12,052.0 MiB in all: 3.2 MiB in use")),
            ["  memory           12,052.0 MiB in all:", "                   3.2 MiB in use"]
        );
        assert_eq!(
            lines(44, |page| page.verdict(
                "suspend",
                false,
                "host memory belongs to its process",
                Some("end the process to free it")
            )),
            [
                "  suspend          no   host memory belongs",
                "                        to its process",
                "                        → end the process to",
                "                          free it",
            ]
        );
        assert_eq!(
            lines(32, |page| page.line("    trim          32.0 MiB freed in 3.2 ms")),
            ["    trim          32.0 MiB freed", "                  in 3.2 ms"]
        );
        assert_eq!(lines(12, |page| page.line(" one two three")), [" one two", "   three"]);
    }

    #[test]
    fn what_others_chose_does_nothing_to_the_terminal() {
        let text = lines(60, |page| {
            page.row("name", "a\u{1b}[2Jb\u{202e}");
            page.verdict("x", true, "\u{9b}31m", Some("\u{7}"));
            page.title("t\u{1b}", "\r");
            page.line("  one\u{8}  two");
            page.command("  ", "c\nd");
        });
        let text = text.join("|");
        assert!(text.chars().all(is_printable), "{text:?}");
        let value = serde_json::json!({ "name": "\u{1b}\u{7f}\u{202e}\u{e0041}" });
        let json = escape_json(&value.to_string());
        assert!(json.is_ascii() && json.chars().all(is_printable), "{json:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
    }

    #[test]
    fn a_row_without_text_shows_its_name() {
        assert_eq!(
            lines(40, |page| page.columns("  plain copy  3.0 ms  ", "")),
            ["  plain copy  3.0 ms"]
        );
        assert_eq!(lines(40, |page| page.title("cuda:0", "")), ["cuda:0"]);
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        assert_eq!(
            lines(20, |page| page.line("it took so much: 12.5 MiB, in 4 ms")),
            ["it took so much:", "  12.5 MiB, in 4 ms"]
        );
    }

    #[test]
    fn a_command_line_is_broken_under_its_column() {
        assert_eq!(
            lines(20, |page| page.command("  12  ", "/usr/bin/a-long-name --flag")),
            ["  12  /usr/bin/a-lon", "      g-name --flag"]
        );
    }

    #[test]
    fn a_word_that_is_too_long_stays_whole() {
        let path = "/a/very/long/path/that/does/not/fit";
        assert_eq!(
            lines(30, |page| page.line(&format!("at {path} b"))),
            ["at", &format!("  {path}"), "  b"]
        );
    }

    #[test]
    fn first_columns_that_take_nearly_all_of_a_line_do_not_squeeze_the_rest() {
        assert_eq!(
            lines(20, |page| page.columns("a long column  ", "one two three")),
            ["a long column  one", "    two three"]
        );
    }
}
