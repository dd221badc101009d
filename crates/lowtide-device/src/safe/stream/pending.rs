//! Results that a stream is computing: digests and other facts of pages, read once the stream has passed.

use super::{Mark, Stream};
use crate::Result;
use crate::page::digest::Digest;
use crate::safe::in_flight::WorkNumber;
use crate::safe::staging::Staging;

/// Digests that a stream is computing. Dropping them waits for the stream.
pub struct PendingDigests<'a>(pub(super) Pending<'a>);

/// Results of pages that a stream is computing. Dropping them waits for the stream.
pub(super) struct Pending<'a> {
    pub(super) stream: &'a Stream,
    /// `None` if there are no pages.
    pub(super) staging: Option<Staging>,
    pub(super) pages: usize,
    /// The work that computes them.
    pub(super) given: WorkNumber,
}

impl PendingDigests<'_> {
    /// Waits for the stream and reads the digests, page by page.
    ///
    /// # Errors
    /// The error of the stream's work.
    pub fn wait(self) -> Result<Vec<Digest>> {
        self.0.wait(Staging::read)
    }

    /// Waits until the stream has passed a mark that was made after the digests were asked for, and reads
    /// them. Does not wait for work behind the mark.
    ///
    /// # Errors
    /// The error of the stream's work.
    ///
    /// # Panics
    /// If the mark belongs to another stream, or was made before.
    pub fn wait_for(self, mark: &Mark) -> Result<Vec<Digest>> {
        self.0.wait_for(mark, Staging::read)
    }
}

impl Pending<'_> {
    pub(super) fn wait<T>(self, read: impl FnOnce(&Staging, usize) -> Vec<T>) -> Result<Vec<T>> {
        self.stream.synchronize()?;
        Ok(self.read(read))
    }

    pub(super) fn wait_for<T>(
        self,
        mark: &Mark,
        read: impl FnOnce(&Staging, usize) -> Vec<T>,
    ) -> Result<Vec<T>> {
        assert!(mark.given >= self.given, "the mark was made after the work was given");
        self.stream.wait(mark)?;
        Ok(self.read(read))
    }

    // Once the stream has passed.
    fn read<T>(mut self, read: impl FnOnce(&Staging, usize) -> Vec<T>) -> Vec<T> {
        let Some(staging) = self.staging.take() else { return Vec::new() };
        let results = read(&staging, self.pages);
        self.stream.device.keep_staging(staging);
        results
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let Some(staging) = self.staging.take() else { return };
        if !self.stream.device.takes_back() {
            return;
        }
        // The kernel may still write to it, so it is used again only once the stream has passed; and
        // where the stream will not say so even when asked again, never.
        match self.stream.synchronize().or_else(|_| self.stream.synchronize()) {
            Ok(()) => self.stream.device.keep_staging(staging),
            Err(error) => tracing::error!(%error, "staging memory was left to work that failed"),
        }
    }
}
