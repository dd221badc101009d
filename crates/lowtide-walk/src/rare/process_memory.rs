//! The memory of this process, read through the kernel: a wrong guess is an error and no crash.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// How much of an interpreter's state is searched, in bytes.
const SEARCHED: usize = 2 << 20;
/// How much is read at a time.
const PART: usize = 4 << 10;
pub(crate) const WORD: usize = size_of::<usize>();
/// More than is ever read at a time.
const WORDS_MOST: usize = 1 << 20;

/// The memory of this process, as the kernel reads it.
pub(crate) struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens it; `None` if this kernel does not show it.
    pub(crate) fn open() -> Option<ProcessMemory> {
        (WORD == 8).then(|| File::open("/proc/self/mem").ok()).flatten().map(ProcessMemory)
    }

    /// Reads so many words at an address, or returns `None` if they are not there.
    pub(crate) fn words(&self, address: usize, count: usize) -> Option<Vec<usize>> {
        if count > WORDS_MOST {
            return None;
        }
        let mut bytes = vec![0; count * WORD];
        self.0.read_exact_at(&mut bytes, address as u64).ok()?;
        let word = |bytes: &[u8]| usize::from_ne_bytes(bytes.try_into().unwrap_or_default());
        Some(bytes.chunks_exact(WORD).map(word).collect())
    }

    /// Returns what may be a pointer in an interpreter's state, with its offset.
    pub(crate) fn pointers(&self, state: usize) -> impl Iterator<Item = (usize, usize)> {
        let parts = (0..SEARCHED).step_by(PART);
        let words = parts.map_while(move |begin| {
            let words = self.words(state.checked_add(begin)?, PART / WORD)?;
            Some((begin..).step_by(WORD).zip(words))
        });
        // Everything that is allocated is at a multiple of 16.
        words.flatten().filter(|(_, word)| *word > PART && word % 16 == 0)
    }
}
