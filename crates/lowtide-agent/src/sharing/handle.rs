//! The handle of an allocation that other processes may open: 64 bytes, which only agents read.

use lowtide_device::process::start_ticks;

/// How our handles begin: a mark, and the version of what follows. The driver's begin with an address.
const MARK: [u8; 8] = *b"lowtide\x01";

/// The handle of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryHandle {
    pub(crate) process: ProcessName,
    /// The secret of that process: who has it was given a handle.
    pub(crate) token: [u64; 2],
    /// The number of the allocation there.
    pub(crate) allocation: u64,
    /// The device, which may have another ordinal in each process.
    pub(crate) uuid: [u8; 16],
    pub(crate) place: Place,
}

/// The number in the name of a socket that has no file, so that nobody can remove it; 0 if a process has none. The name
/// means something in one network namespace, and anybody may listen at it: whoever connects looks who that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    /// Returns the name.
    pub(crate) fn name(self) -> String {
        format!("lowtide-{:08x}", self.0)
    }
}

/// A process, also after its number has gone to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessName {
    pub(crate) pid: u32,
    /// The moment at which it started, in ticks of the kernel.
    pub(crate) started: u64,
}

impl ProcessName {
    /// Returns the name of this process.
    pub(crate) fn current() -> ProcessName {
        let pid = std::process::id();
        ProcessName { pid, started: start_ticks("self").unwrap_or_default() }
    }

    /// Returns whether the process is alive.
    pub(crate) fn is_alive(self) -> bool {
        start_ticks(&self.pid.to_string()).is_ok_and(|started| started == self.started)
    }
}

impl MemoryHandle {
    /// Returns the bytes that the program gets.
    pub(crate) fn to_bytes(self) -> [u8; 64] {
        let MemoryHandle { process, token, allocation, uuid, place } = self;
        let words = [process.started, token[0], token[1], allocation];
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MARK);
        bytes[8..12].copy_from_slice(&process.pid.to_ne_bytes());
        for (place, word) in bytes[12..44].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[44..60].copy_from_slice(&uuid);
        bytes[60..].copy_from_slice(&place.0.to_ne_bytes());
        bytes
    }

    /// Reads a handle; `None` if it is not one of ours.
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Option<MemoryHandle> {
        let (mark, rest) = bytes.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (words, rest) = rest.split_first_chunk::<32>()?;
        let (uuid, rest) = rest.split_first_chunk()?;
        let place = Place(u32::from_ne_bytes(*rest.first_chunk()?));
        let mut words = words.chunks_exact(8).map(|word| word.try_into().map(u64::from_ne_bytes));
        let mut word = || words.next()?.ok();
        let process = ProcessName { pid: u32::from_ne_bytes(*pid), started: word()? };
        let (token, allocation, uuid) = ([word()?, word()?], word()?, *uuid);
        let made = MemoryHandle { process, token, allocation, uuid, place };
        (*mark == MARK).then_some(made)
    }
}
