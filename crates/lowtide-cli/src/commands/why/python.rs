//! The Python interpreter in a process: which file it comes from, and where its runtime state lies.
//!
//! Its library, or the program itself, has a section `.PyRuntime` for debuggers.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The section of the runtime state.
const SECTION: &[u8; 11] = b".PyRuntime\0";
/// What an ELF file of 64 bits begins with.
const ELF: u64 = 0x02_464c_457f;
/// The type of a program whose addresses are not offsets.
const FIXED: u64 = 2;

/// A Python interpreter in a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Python {
    /// The library or program.
    pub(super) path: PathBuf,
    /// The address of its runtime state in the process.
    pub(super) runtime: u64,
}

/// A part of a file that a process has mapped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) range: Range<u64>,
    offset: u64,
    pub(super) path: PathBuf,
}

/// Finds the interpreter in a process; `None` if there is none.
pub(super) fn of(pid: u32) -> io::Result<Option<Python>> {
    let program = fs::read_link(format!("/proc/{pid}/exe"))?;
    let mut mapped = mapped(&lowtide_types::kernel_text(format!("/proc/{pid}/maps"))?);
    mapped.dedup_by(|next, first| next.path == first.path);
    for Mapped { range, offset, path } in mapped {
        // The program may have been replaced by another version.
        let file = match path.file_name().map(|name| name.to_string_lossy()) {
            _ if path == program => PathBuf::from(format!("/proc/{pid}/exe")),
            Some(name) if name.starts_with("libpython3") => seen_by(pid, &path),
            _ => continue,
        };
        let begin = range.start.wrapping_sub(offset);
        let found = File::open(file).and_then(|file| runtime(&file, begin));
        if let Some(runtime) = found.ok().flatten() {
            return Ok(Some(Python { path, runtime }));
        }
    }
    Ok(None)
}

/// Returns the files that are mapped, in the order of their addresses.
pub(super) fn mapped(maps: &str) -> Vec<Mapped> {
    // Start and end, access, offset, device, number, path.
    let one = |line: &str| {
        let number = |text| u64::from_str_radix(text, 16).ok();
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let (range, offset) = (number(start)?..number(end)?, number(fields.nth(1)?)?);
        let path = fields.nth(2)?.trim_start();
        path.starts_with('/').then(|| Mapped { range, offset, path: path.into() })
    };
    maps.lines().filter_map(one).collect()
}

/// Returns where this process finds what another one has at a path.
pub(super) fn seen_by(pid: u32, path: &Path) -> PathBuf {
    Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns where the runtime state lies in a process that has mapped a file from this address on.
fn runtime(file: &File, begin: u64) -> io::Result<Option<u64>> {
    let number = |at: u64, bytes: usize| -> io::Result<u64> {
        let mut read = [0; 8];
        file.read_exact_at(&mut read[..bytes], at)?;
        Ok(u64::from_le_bytes(read))
    };
    if number(0, 5)? != ELF {
        return Ok(None);
    }
    let begin = if number(16, 2)? == FIXED { 0 } else { begin };
    let (sections, size, count) = (number(40, 8)?, number(58, 2)?, number(60, 2)?);
    let names = number(sections + number(62, 2)? * size + 24, 8)?;
    for at in (0..count).map(|at| sections + at * size) {
        let mut name = [0; SECTION.len()];
        let is_read = file.read_exact_at(&mut name, names + number(at, 4)?).is_ok();
        if is_read && name == *SECTION {
            return Ok(Some(begin.wrapping_add(number(at + 16, 8)?)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_files_are_read_and_other_memory_is_not() {
        let maps = "\
            55d0c0001000-55d0c0002000 r-xp 00002000 08:01 12      /usr/bin/python3.12\n\
            7f00c0000000-7f00c0001000 rw-p 00000000 00:00 0 \n\
            7f00d0000000-7f00d0001000 rw-p 00000000 00:00 0       [heap]\n\
            7f00e0000000-7f00e0001000 r--p 00000000 08:01 13      /a path/lib.so (deleted)\n";
        let one = |range, offset, path: &str| Mapped { range, offset, path: path.into() };
        let expected = [
            one(0x55d0_c000_1000..0x55d0_c000_2000, 0x2000, "/usr/bin/python3.12"),
            one(0x7f00_e000_0000..0x7f00_e000_1000, 0, "/a path/lib.so (deleted)"),
        ];
        assert_eq!(mapped(maps), expected);
    }

    #[test]
    fn a_program_without_python_has_none() {
        assert_eq!(of(std::process::id()).expect("it can be read"), None);
    }
}
