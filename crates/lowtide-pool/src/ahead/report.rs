//! What a step tells.

use lowtide_device::Bytes;

/// The result of one step of [`Pool::back_up_some`](crate::Pool::back_up_some).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AheadReport {
    /// Bytes whose digests were computed.
    pub looked: Bytes,
    /// Bytes of pages that are saved now and were not before.
    pub saved: Bytes,
    /// What the next step will find.
    pub next: AheadNext,
}

/// What the next step of [`Pool::back_up_some`](crate::Pool::back_up_some) will find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AheadNext {
    /// More to do.
    More,
    /// Nothing, unless a page has changed since. Every page is saved, or it changes all the time.
    #[default]
    Nothing,
    /// No room: pages are left for which host memory or a little device memory is missing.
    NoRoom,
    /// A sleep or a wake that is under way, or another step. Nothing was done.
    Busy,
}
