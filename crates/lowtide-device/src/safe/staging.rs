//! Staging memory: a little host memory that the device reads and writes in place.
//!
//! A digest's list of pages and its results cross the link here (24 bytes for 2 MiB), so that a
//! digest takes no device memory at all. Allocating such memory is slow; it is kept and reused.
#![allow(unsafe_code, reason = "reads and writes the staged memory")]

use std::sync::{Mutex, MutexGuard};

use crate::backend::Backend;
use crate::page::digest::Digest;
use crate::sync::lock;
use crate::{Address, Bytes, Result};

const ENTRY_BYTES: usize = size_of::<Digest>() + size_of::<Address>();
const LEAST_PAGES: usize = 2048;

/// Staging memory for a number of pages: first their digests, then the list of their addresses.
pub(crate) struct Staging {
    at: *mut u8,
    pages: usize,
}

// SAFETY: plain memory with one owner; nothing in it belongs to a thread.
unsafe impl Send for Staging {}

impl Staging {
    fn size(&self) -> Bytes {
        Bytes((self.pages * ENTRY_BYTES) as u64)
    }

    /// Returns where the digests go.
    pub(crate) fn digests(&self) -> *mut Digest {
        self.at.cast()
    }

    /// Returns where the list of addresses goes.
    pub(crate) fn list(&self) -> *mut Address {
        // SAFETY: the list begins behind the digests, inside the `pages * ENTRY_BYTES` allocated.
        unsafe { self.at.add(self.pages * size_of::<Digest>()) }.cast()
    }

    /// Writes the list of pages.
    pub(crate) fn write(&mut self, pages: &[Address]) {
        assert!(pages.len() <= self.pages, "the staging was taken for this many pages");
        for (index, page) in pages.iter().enumerate() {
            // SAFETY: `index` is below `self.pages`, by the assertion.
            let entry = unsafe { self.list().add(index) };
            // SAFETY: the entry is inside the list, aligned, and no work is using it: it was just taken.
            unsafe { entry.write(*page) };
        }
    }

    /// Reads the digests, once the work that writes them is done.
    pub(crate) fn read(&self, count: usize) -> Vec<Digest> {
        assert!(count <= self.pages, "no more digests than pages");
        // SAFETY: inside the allocation by the assertion; every bit pattern is a digest, and the
        // back end wrote them before the caller's wait returned.
        unsafe { std::slice::from_raw_parts(self.digests(), count) }.to_vec()
    }

    /// Returns where words go: four for each page, in the place of its digest.
    pub(crate) fn words(&self) -> *mut u32 {
        self.at.cast()
    }

    /// Reads words, once the work that writes them is done.
    pub(crate) fn read_words(&self, count: usize) -> Vec<u32> {
        assert!(count <= 4 * self.pages, "no more than four words for each page");
        // SAFETY: inside the allocation by the assertion; every bit pattern is a word, and the back end
        // wrote them before the caller's wait returned.
        unsafe { std::slice::from_raw_parts(self.words(), count) }.to_vec()
    }

    /// Gives the memory back to the back end.
    pub(crate) fn give_back(&self, backend: &dyn Backend) -> Result<()> {
        // SAFETY: this owns the memory; the caller does not use it again once this succeeded.
        unsafe { backend.unstage(self.at, self.size()) }
    }
}

/// Staging memory that no work uses now.
#[derive(Default)]
pub(crate) struct StagingCache {
    idle: Mutex<Vec<Staging>>,
}

impl StagingCache {
    fn idle(&self) -> MutexGuard<'_, Vec<Staging>> {
        lock(&self.idle)
    }

    /// Takes staging memory for this many pages: idle memory, or new memory from the back end.
    pub(crate) fn take(&self, backend: &dyn Backend, pages: usize) -> Result<Staging> {
        let mut idle = self.idle();
        if let Some(index) = idle.iter().position(|staging| staging.pages >= pages) {
            return Ok(idle.swap_remove(index));
        }
        drop(idle);
        let pages = pages.next_power_of_two().max(LEAST_PAGES);
        let at = backend.stage(Bytes((pages * ENTRY_BYTES) as u64))?;
        Ok(Staging { at, pages })
    }

    /// Keeps staging memory for the next digest.
    pub(crate) fn keep(&self, staging: Staging) {
        self.idle().push(staging);
    }

    /// Takes everything out, to be given back.
    pub(crate) fn drain(&self) -> Vec<Staging> {
        std::mem::take(&mut *self.idle())
    }
}
