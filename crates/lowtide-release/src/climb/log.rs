//! What a release writes to a log: at which level, and in which words. The one place that decides
//! this, for `tracing` and for the logging of a host language.

use lowtide_types::{Bytes, ClaimBasis, Receipt, Verdict};

use super::request::Logging;

/// The level of a release's log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// The release is proved, or there was nothing to prove.
    Info,
    /// A claim was missed, or references hold memory that should be gone.
    Warning,
}

impl LogLevel {
    /// Returns the level for a receipt.
    pub fn of(receipt: &Receipt) -> LogLevel {
        let missed = receipt.claim.is_some_and(|claim| {
            claim.basis != ClaimBasis::Cached
                && (claim.bytes > Bytes::ZERO || receipt.target.is_some())
        }) && !receipt.verdict.is_proved();
        match receipt.verdict {
            // The caller stopped it: nothing is wrong with what it left.
            _ if receipt.stopped_at.is_some() => LogLevel::Info,
            Verdict::Pinned | Verdict::Failed => LogLevel::Warning,
            _ if missed => LogLevel::Warning,
            _ => LogLevel::Info,
        }
    }
}

/// Returns the text of a release's log line: `line`, and at [`LogLevel::Warning`] what to do.
pub fn log_text(receipt: &Receipt, line: &str) -> String {
    if LogLevel::of(receipt) < LogLevel::Warning || receipt.advice.is_empty() {
        return line.to_owned();
    }
    format!("{line}: {}", receipt.advice.join("; "))
}

/// Writes a release to the log: one line, the lines Before, After and Freed if they are wanted, and one
/// for each rung at debug level.
pub(crate) fn write(receipt: &Receipt, logging: Logging) {
    if logging == Logging::ByCaller {
        return;
    }
    for rung in &receipt.rungs {
        tracing::debug!(rung = %rung.rung, "{rung}");
    }
    let text = log_text(receipt, &receipt.line());
    match LogLevel::of(receipt) {
        LogLevel::Warning => {
            let left = receipt.after.in_use().map(tracing::field::display);
            tracing::warn!(verdict = %receipt.verdict, left, "{text}");
        }
        LogLevel::Info => tracing::info!(verdict = %receipt.verdict, "{text}"),
    }
    if logging == Logging::Summary {
        for line in receipt.summary().lines() {
            tracing::info!("{line}");
        }
    }
}
