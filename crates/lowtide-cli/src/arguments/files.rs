//! Files that a command line names. A FIFO with nobody at its other end is an error, not a wait for
//! ever; one that somebody reads or writes is used like any file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;

/// The time between two looks at a FIFO that has nothing to read or no room.
const LOOK: Duration = Duration::from_millis(1);

/// An open file. Reading and writing wait, although the file was opened without waiting.
#[derive(Debug)]
pub struct NamedFile {
    file: File,
    /// True until something was read from a FIFO: before that, its end means that nobody writes.
    is_unread_fifo: bool,
}

/// Opens a file for reading.
pub fn open(path: &Path) -> anyhow::Result<NamedFile> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let named = || format!("opening {}", path.display());
    let file = opened.with_context(named)?;
    let is_unread_fifo = file.metadata().with_context(named)?.file_type().is_fifo();
    Ok(NamedFile { file, is_unread_fifo })
}

/// Opens a file for writing. What was in it is gone.
fn create(path: &Path) -> io::Result<NamedFile> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => io::Error::other("it is a FIFO that nobody reads"),
        _ => error,
    })?;
    Ok(NamedFile { file, is_unread_fifo: false })
}

/// Writes a file, in the place of one that exists.
pub fn write(
    to: &Path,
    write: impl FnOnce(BufWriter<NamedFile>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let written = create(to).map(BufWriter::new).and_then(write);
    written.with_context(|| format!("writing {}", to.display()))
}

impl NamedFile {
    /// Returns the size of the file; zero where it has none.
    pub fn size(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }
}

impl Read for NamedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = patiently(|| self.file.read(into))?;
        if count == 0 && self.is_unread_fifo {
            return Err(io::Error::other("it is a FIFO that nobody writes to"));
        }
        self.is_unread_fifo = false;
        Ok(count)
    }
}

impl Write for NamedFile {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        patiently(|| self.file.write(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn patiently(mut work: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match work() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            answer => return answer,
        }
    }
}
