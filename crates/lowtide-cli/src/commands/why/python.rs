//! The Python interpreter in a process: which file it comes from, and where its runtime state lies.
//!
//! Its library, or the program itself, has a section `.PyRuntime` for debuggers.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The section of the runtime state.
const SECTION: &[u8] = b".PyRuntime";
/// The most sections of a file that are looked at.
const SECTIONS_MOST: u64 = 4096;

/// A Python interpreter in a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Python {
    /// The library or program.
    pub(super) path: PathBuf,
    /// The address of its runtime state in the process.
    pub(super) runtime: u64,
}

/// Finds the interpreter in a process; `None` if there is none.
pub(super) fn of(pid: u32) -> io::Result<Option<Python>> {
    let maps = lowtide_types::kernel_text(format!("/proc/{pid}/maps"))?;
    let program = fs::read_link(format!("/proc/{pid}/exe"))?;
    let files = files(&maps).into_iter();
    let candidates = files.filter(|(_, path)| *path == program || is_library(path));
    for (start, path) in candidates {
        let seen =
            Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(&path));
        // The program may have been replaced by another version.
        let file = if path == program { PathBuf::from(format!("/proc/{pid}/exe")) } else { seen };
        let Ok(file) = File::open(file) else { continue };
        if let Some(at) = section(&file).ok().flatten() {
            return Ok(Some(Python { path, runtime: start.wrapping_add(at) }));
        }
    }
    Ok(None)
}

/// Returns the files that are mapped, each with the address of its beginning.
pub(super) fn files(maps: &str) -> Vec<(u64, PathBuf)> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for line in maps.lines() {
        // Start and end, access, offset, device, number, path.
        let mut fields = line.splitn(6, ' ');
        let (range, offset) = (fields.next(), fields.nth(1));
        let Some(path) = fields.nth(2).map(str::trim_start).filter(|path| path.starts_with('/'))
        else {
            continue;
        };
        let start = range.and_then(|range| u64::from_str_radix(range.split_once('-')?.0, 16).ok());
        let offset = offset.and_then(|offset| u64::from_str_radix(offset, 16).ok());
        let (Some(start), Some(offset)) = (start, offset) else { continue };
        if !found.iter().any(|(_, known)| known == Path::new(path)) {
            found.push((start.wrapping_sub(offset), path.into()));
        }
    }
    found
}

fn is_library(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libpython3"))
}

/// Returns how far behind the beginning of a mapped file the runtime state lies.
fn section(file: &File) -> io::Result<Option<u64>> {
    let number = |at: u64, bytes: usize| -> io::Result<u64> {
        let mut read = [0; 8];
        file.read_exact_at(&mut read[..bytes], at)?;
        Ok(u64::from_le_bytes(read))
    };
    // An ELF file of 64 bits.
    if number(0, 5)? != 0x02_464c_457f {
        return Ok(None);
    }
    let (segments, sections) = (number(32, 8)?, number(40, 8)?);
    let (segment_size, segment_count) = (number(54, 2)?, number(56, 2)?);
    let (size, count, names) = (number(58, 2)?, number(60, 2)?, number(62, 2)?);
    let load = (0..segment_count).map(|at| segments + at * segment_size);
    let mut begin = None;
    for at in load {
        if number(at, 4)? == 1 {
            begin = Some(number(at + 16, 8)?.wrapping_sub(number(at + 8, 8)?));
            break;
        }
    }
    let Some(begin) = begin else { return Ok(None) };
    let names = number(sections + names * size + 24, 8)?;
    for at in (0..count.min(SECTIONS_MOST)).map(|at| sections + at * size) {
        let mut name = [0; SECTION.len() + 1];
        let of_name = names + number(at, 4)?;
        if file.read_exact_at(&mut name, of_name).is_ok() && name[..] == [SECTION, b"\0"].concat() {
            return Ok(Some(number(at + 16, 8)?.wrapping_sub(begin)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_where_its_first_part_is_mapped() {
        let maps = "\
            55d0c0000000-55d0c0001000 r--p 00001000 08:01 12      /usr/bin/python3.12\n\
            55d0c0001000-55d0c0002000 r-xp 00002000 08:01 12      /usr/bin/python3.12\n\
            7f00c0000000-7f00c0001000 rw-p 00000000 00:00 0 \n\
            7f00d0000000-7f00d0001000 rw-p 00000000 00:00 0       [heap]\n\
            7f00e0000000-7f00e0001000 r--p 00000000 08:01 13      /a path/lib.so (deleted)\n";
        let found = files(maps);
        let expected = [
            (0x55d0_bfff_f000, PathBuf::from("/usr/bin/python3.12")),
            (0x7f00_e000_0000, PathBuf::from("/a path/lib.so (deleted)")),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_program_without_python_has_none() {
        assert_eq!(of(std::process::id()).expect("it can be read"), None);
    }
}
