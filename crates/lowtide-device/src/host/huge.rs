//! Huge pages: the kernel's setting, and whether a chunk really gets one.
#![allow(unsafe_code, reason = "maps and touches one page")]

use std::fs;

use super::addresses::{self, PAGE, pointer};
use super::pages::Pages;
use crate::{Address, Result};

/// Returns the kernel's setting of huge pages for anonymous memory, such as `madvise`. Backups are
/// anonymous memory.
pub(crate) fn anonymous_setting() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = |word: &str| Some(word.strip_prefix('[')?.strip_suffix(']')?.to_owned());
    text.split_whitespace().find_map(chosen)
}

/// Creates a chunk of a `host` device and returns whether the kernel backs it with a huge page.
pub(crate) fn chunks_are_huge() -> bool {
    try_one().unwrap_or(false)
}

fn try_one() -> Result<bool> {
    let pages = Pages::new(PAGE, false)?;
    let Some(_chunk) = pages.create(PAGE)? else { return Ok(false) };
    let at = addresses::reserve(PAGE)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: over addresses that were just reserved for this.
    let mapped = unsafe { pages.map_extent(pointer(at), 0, PAGE, protection, libc::MAP_FIXED) };
    let huge = mapped.is_ok() && {
        // SAFETY: the page just mapped, writable.
        unsafe { pointer(at).cast::<u8>().write_volatile(1) };
        mapping_is_huge(&fs::read_to_string("/proc/self/smaps").unwrap_or_default(), at)
    };
    // SAFETY: ours, and nothing refers to it.
    unsafe { addresses::release(at, PAGE) }?;
    Ok(huge)
}

fn mapping_is_huge(smaps: &str, at: Address) -> bool {
    let start = format!("{:x}-", at.0);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    let size = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    size.is_some_and(|size| size.trim() != "0 kB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_read_at_the_right_mapping() {
        let smaps = "7f00-7f10 rw-s\nShmemPmdMapped:  0 kB\n7f20-7f40 rw-s\nRss: 4 kB\nShmemPmdMapped:    2048 kB\n";
        assert!(!mapping_is_huge(smaps, Address(0x7f00)));
        assert!(mapping_is_huge(smaps, Address(0x7f20)));
        assert!(!mapping_is_huge(smaps, Address(0x9999)));
    }
}
