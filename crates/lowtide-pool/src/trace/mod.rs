//! Allocation traces in the format of RMM's log: one event a line, columns
//! `Thread,Time,Action,Pointer,Size,Stream`.

pub(crate) mod record;
pub mod replay;

use std::collections::HashMap;
use std::io::{BufRead, Read};

use lowtide_device::Bytes;

use crate::pool::fence::StreamId;

/// Lines longer than this are no trace.
const LINE_MOST: usize = 4096;
/// More events than this do not fit in memory comfortably.
const EVENTS_MOST: usize = 100_000_000;

/// An event of a trace. Blocks are numbered in the order of their allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A block is allocated.
    Allocate {
        /// The number of the block.
        block: u32,
        /// The size of the block.
        size: Bytes,
        /// The stream it is allocated on.
        stream: StreamId,
    },
    /// A block is freed.
    Free {
        /// The number of the block.
        block: u32,
        /// The stream it is freed on.
        stream: StreamId,
    },
}

/// The line at which a trace cannot be read, and why.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// The number of the line, from one.
    pub line: usize,
    /// The reason why the line cannot be read.
    pub problem: Problem,
}

/// The reasons why a line of a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The first line is not the header of a trace.
    #[error(
        "not a trace: it begins with {found:?}, not with Thread,Time,Action,Pointer,Size,Stream"
    )]
    Header {
        /// The text of the line.
        found: String,
    },
    /// A line has too few columns.
    #[error("{found} columns, not six")]
    Columns {
        /// The number of columns.
        found: usize,
    },
    /// A column has a value that it cannot have.
    #[error("{column} is {found:?}, not {wanted}")]
    Column {
        /// The name of the column.
        column: &'static str,
        /// The text in the column.
        found: String,
        /// The values that the column may have.
        wanted: &'static str,
    },
    /// A block is freed that is not live.
    #[error("{pointer:#x} is freed but was not allocated")]
    NotLive {
        /// The address of the block.
        pointer: u64,
    },
    /// A block is allocated where one is live.
    #[error("{pointer:#x} is allocated twice without a free between")]
    Twice {
        /// The address of the block.
        pointer: u64,
    },
    /// The trace has no event.
    #[error("the trace has no allocation")]
    Empty,
    /// The file is not text.
    #[error("not a trace: the file is not text")]
    NotText,
    /// The file is larger than a trace may be.
    #[error("too large: more than {EVENTS_MOST} events, or a line of more than {LINE_MOST} bytes")]
    TooLarge,
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Reads a trace. Failed allocations in it are skipped.
///
/// # Errors
/// [`TraceError`] with the line and the reason.
pub fn read(mut input: impl BufRead) -> Result<Vec<Event>, TraceError> {
    let (mut events, mut live, mut blocks) = (Vec::new(), HashMap::new(), 0u32);
    let mut bytes = Vec::new();
    for number in 1.. {
        let at = |problem| TraceError { line: number, problem };
        bytes.clear();
        // Never more than a line may be: the file may be anything.
        let limit = LINE_MOST as u64 + 1;
        let read = input.by_ref().take(limit).read_until(b'\n', &mut bytes);
        if read.map_err(|error| at(Problem::Io(error)))? == 0 {
            break;
        }
        if bytes.len() > LINE_MOST || events.len() >= EVENTS_MOST {
            return Err(at(Problem::TooLarge));
        }
        let line = str::from_utf8(&bytes).map_err(|_| at(Problem::NotText))?.trim_end();
        if number == 1 {
            header(line).map_err(at)?;
        } else if !line.is_empty() {
            events.extend(event(line, &mut live, &mut blocks).map_err(at)?);
        }
    }
    if events.is_empty() {
        return Err(TraceError { line: 1, problem: Problem::Empty });
    }
    Ok(events)
}

fn header(line: &str) -> Result<(), Problem> {
    let columns: Vec<_> = line.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    if columns == ["thread", "time", "action", "pointer", "size", "stream"] {
        return Ok(());
    }
    Err(Problem::Header { found: line.chars().take(80).collect() })
}

fn event(
    line: &str,
    live: &mut HashMap<u64, u32>,
    blocks: &mut u32,
) -> Result<Option<Event>, Problem> {
    let columns: Vec<_> = line.split(',').map(str::trim).collect();
    let [_, _, action, pointer, size, stream] = columns[..] else {
        return Err(Problem::Columns { found: columns.len() });
    };
    let stream = StreamId(number("Stream", stream)?);
    let pointer = number("Pointer", pointer)?;
    match action {
        "allocate" => {
            let block = *blocks;
            if live.insert(pointer, block).is_some() {
                return Err(Problem::Twice { pointer });
            }
            *blocks += 1;
            Ok(Some(Event::Allocate { block, size: Bytes(number("Size", size)?), stream }))
        }
        "free" => {
            let block = live.remove(&pointer).ok_or(Problem::NotLive { pointer })?;
            Ok(Some(Event::Free { block, stream }))
        }
        "allocate failure" => Ok(None),
        other => Err(Problem::Column {
            column: "Action",
            found: other.chars().take(80).collect(),
            wanted: "allocate, free or allocate failure",
        }),
    }
}

// Decimal, or hexadecimal with 0x; RMM writes a null pointer as (nil).
fn number(column: &'static str, text: &str) -> Result<u64, Problem> {
    let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text == "(nil)" => Some(0),
        None => text.parse().ok(),
    };
    value.ok_or_else(|| Problem::Column {
        column,
        found: text.chars().take(80).collect(),
        wanted: "a whole number, decimal or with 0x",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

    fn parse(rows: &str) -> Result<Vec<Event>, TraceError> {
        read(format!("{HEADER}{rows}").as_bytes())
    }

    #[test]
    fn a_trace_is_read_and_addresses_may_come_again() {
        let events =
            parse("0,1,allocate,0x10,100,0\n0,2,free,0x10,100,0\n1,3,allocate,0x10,7,0x2\n")
                .unwrap();
        let first = Event::Allocate { block: 0, size: Bytes(100), stream: StreamId(0) };
        let again = Event::Allocate { block: 1, size: Bytes(7), stream: StreamId(2) };
        assert_eq!(events, [first, Event::Free { block: 0, stream: StreamId(0) }, again]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (rows, expected) in [
            ("0,1,allocate,0x10,100\n", "line 2: 5 columns, not six"),
            ("0,1,allocate,zero,100,0\n", "line 2: Pointer is \"zero\""),
            ("0,1,allocate,0x1,-5,0\n", "line 2: Size is \"-5\""),
            ("\n0,1,free,0x1,5,0\n", "line 3: 0x1 is freed but was not allocated"),
            ("0,1,allocate,1,5,0\n0,1,allocate,1,5,0\n", "line 3: 0x1 is allocated twice"),
            ("0,1,resize,1,5,0\n", "line 2: Action is \"resize\""),
        ] {
            let error = parse(rows).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(read(&b"a,b,c\n"[..]).unwrap_err().to_string().contains("not a trace"));
        assert!(read(&b"\xff\xfe\n"[..]).unwrap_err().to_string().contains("not text"));
        assert!(read(&b""[..]).unwrap_err().to_string().contains("no allocation"));
        assert!(parse("").unwrap_err().to_string().contains("no allocation"));
        assert!(
            read("x".repeat(10_000).as_bytes()).unwrap_err().to_string().contains("4096 bytes")
        );
    }

    // Whatever the bytes are, reading ends with events or an error.
    #[test]
    fn no_input_panics() {
        let seed = 42u64;
        println!("seed {seed}");
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let words = [
            "0",
            ",",
            "allocate",
            "free",
            "0x",
            "\n",
            "-",
            "9999999999999999999999",
            "é",
            " ",
            "(nil)",
            "1",
        ];
        for _ in 0..20_000 {
            let rows: String = (0..next() % 40).map(|_| words[next() % words.len()]).collect();
            let _ = parse(&rows);
        }
    }
}
