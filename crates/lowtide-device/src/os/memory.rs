//! Memory of this machine: mappings that begin at huge pages, and what the kernel is told about them.
#![allow(unsafe_code, reason = "maps and unmaps memory")]

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::{fs, io};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::Bytes;

pub(crate) const HUGE_PAGE: Bytes = Bytes::mib(2);
pub(crate) const SMALL_PAGE: usize = 4096;
/// Flags of memory that is nobody else's and takes no pages before it is written.
pub(crate) const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Maps fresh memory, or bare addresses, from a multiple of the huge page on.
pub(crate) fn map_aligned(size: Bytes, protection: ProtFlags) -> io::Result<NonNull<u8>> {
    // Room to align: a huge page needs an address that is a multiple of its size.
    let length = size.as_usize() + HUGE_PAGE.as_usize();
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing of ours.
    let raw = unsafe { mm::mmap_anonymous(ptr::null_mut(), length, protection, PRIVATE) }?;
    let aligned = raw.map_addr(|addr| addr.next_multiple_of(HUGE_PAGE.as_usize()));
    let after = aligned.wrapping_byte_add(size.as_usize());
    for (at, end) in [(raw, aligned.addr()), (after, raw.addr() + length)] {
        unmap(at.cast(), Bytes((end - at.addr()) as u64));
    }
    Ok(NonNull::new(aligned.cast()).expect("the kernel maps nothing at zero"))
}

/// Maps fresh memory in huge pages, which is left out of forks and core dumps.
pub(crate) fn map_huge(size: Bytes) -> io::Result<NonNull<u8>> {
    let at = map_aligned(size, ProtFlags::READ | ProtFlags::WRITE)?;
    for advice in [Advice::LinuxHugepage, Advice::LinuxDontFork, Advice::LinuxDontDump] {
        // SAFETY: advice about our own fresh mapping. Where the kernel knows it not, the memory
        // still works, with smaller pages.
        let _unknown = unsafe { mm::madvise(at.as_ptr().cast(), size.as_usize(), advice) };
    }
    Ok(at)
}

/// Unmaps whole pages of a mapping of the caller's, which nothing refers to any more.
pub(crate) fn unmap(at: *mut u8, size: Bytes) {
    if size > Bytes::ZERO {
        // SAFETY: by the callers, who own the mapping.
        let unmapped = unsafe { mm::munmap(at.cast(), size.as_usize()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Asks the kernel for huge pages under memory that nothing was written to yet. For large tables that
/// are read at random: with small pages every read costs a second one, of the page table.
pub fn prefer_huge<T>(memory: &mut [MaybeUninit<T>]) {
    let (start, size) = (memory.as_mut_ptr().expose_provenance(), size_of_val(memory));
    let first = start.next_multiple_of(HUGE_PAGE.as_usize());
    let Some(length) = (start + size).checked_sub(first).filter(|length| *length > 0) else {
        return;
    };
    let at = ptr::with_exposed_provenance_mut(first);
    // SAFETY: advice about memory that the caller has alone; it changes no byte. Where the kernel
    // does not take it, nothing is lost but time.
    let _unknown = unsafe { mm::madvise(at, length, Advice::LinuxHugepage) };
}

/// Returns the kernel's setting of huge pages for anonymous memory, such as `madvise`. Backups are
/// anonymous memory.
pub(crate) fn huge_page_setting() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = |word: &str| Some(word.strip_prefix('[')?.strip_suffix(']')?.to_owned());
    text.split_whitespace().find_map(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_same_with_huge_pages() {
        let mut table: Vec<u64> = Vec::with_capacity(3 << 20);
        prefer_huge(table.spare_capacity_mut());
        table.extend(0..3 << 20);
        assert!(table.iter().zip(0..).all(|(found, expected)| *found == expected));
        let mut small: Vec<u8> = Vec::with_capacity(10);
        prefer_huge(small.spare_capacity_mut());
        prefer_huge::<u8>(&mut []);
        small.push(1);
    }
}
