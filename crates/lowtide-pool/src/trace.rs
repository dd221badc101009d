//! Allocation traces in the format of RMM's log: one event a line, columns
//! `Thread,Time,Action,Pointer,Size,Stream`.

use std::collections::HashMap;
use std::io::{BufRead, Read};

use lowtide_device::Bytes;

use crate::fence::StreamId;

/// Lines longer than this are no trace.
const LINE_MOST: usize = 4096;
/// More events than this do not fit in memory comfortably.
const EVENTS_MOST: usize = 100_000_000;

/// One event. Blocks are numbered in the order of their allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A block is taken.
    Allocate {
        /// Its number.
        block: u32,
        /// Its size.
        size: Bytes,
        /// On which stream.
        stream: StreamId,
    },
    /// A block is freed.
    Free {
        /// Its number.
        block: u32,
        /// On which stream.
        stream: StreamId,
    },
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// Counted from one.
    pub line: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The first line is not the header of a trace.
    #[error(
        "a trace begins with the columns Thread,Time,Action,Pointer,Size,Stream, this with {found:?}"
    )]
    Header {
        /// What stands there.
        found: String,
    },
    /// A line has too few columns.
    #[error("six columns are wanted, {found} found")]
    Columns {
        /// How many it has.
        found: usize,
    },
    /// A column is not what it must be.
    #[error("{column} is {found:?}; {wanted}")]
    Column {
        /// Which one.
        column: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        wanted: &'static str,
    },
    /// A block is freed that is not live.
    #[error("{pointer:#x} is freed but was not allocated")]
    NotLive {
        /// The block.
        pointer: u64,
    },
    /// A block is allocated where one is live.
    #[error("{pointer:#x} is allocated twice without a free between")]
    Twice {
        /// The block.
        pointer: u64,
    },
    /// There is no event in it.
    #[error("there is no allocation in this trace")]
    Empty,
    /// It is no text.
    #[error("this is no text, so it is no trace")]
    NotText,
    /// The file is larger than any trace.
    #[error("more than {EVENTS_MOST} events, or a line of more than {LINE_MOST} bytes")]
    TooLarge,
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Reads a trace. Failed allocations in it are passed over.
///
/// # Errors
/// [`TraceError`] with the line and what is wrong with it.
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
            ("0,1,allocate,0x10,100\n", "line 2: six columns are wanted, 5 found"),
            ("0,1,allocate,zero,100,0\n", "line 2: Pointer is \"zero\""),
            ("0,1,allocate,0x1,-5,0\n", "line 2: Size is \"-5\""),
            ("\n0,1,free,0x1,5,0\n", "line 3: 0x1 is freed but was not allocated"),
            ("0,1,allocate,1,5,0\n0,1,allocate,1,5,0\n", "line 3: 0x1 is allocated twice"),
            ("0,1,resize,1,5,0\n", "line 2: Action is \"resize\""),
        ] {
            let error = parse(rows).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(read(&b"a,b,c\n"[..]).unwrap_err().to_string().contains("begins with the columns"));
        assert!(read(&b"\xff\xfe\n"[..]).unwrap_err().to_string().contains("no text"));
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
