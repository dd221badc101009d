//! Receipts as people read them: the short form, the detailed form and the lines for a log.

use std::fmt::{self, Write as _};

use crate::printable::Printing;
use crate::{
    Bytes, Holder, Reading, Receipt, RungOutcome, RungReceipt, Settling, Verdict, printable,
};

/// A receipt with its numbers and every rung: [`Receipt::detailed`].
#[derive(Debug, Clone, Copy)]
pub struct Detailed<'a>(&'a Receipt);

impl Receipt {
    /// Returns the detailed text: Before, After and Freed, every rung, what is left, what to do. Sizes are in MiB,
    /// except in the lines of [`Receipt::summary`].
    pub fn detailed(&self) -> Detailed<'_> {
        Detailed(self)
    }

    /// Returns one line for a log, without the target.
    pub fn line(&self) -> String {
        let device = self.device.map_or_else(|| "no device".to_owned(), |id| id.to_string());
        let freed = if self.had_nothing_to_free() {
            "nothing to free".to_owned()
        } else {
            freed_text(self.freed_bytes)
        };
        let claimed = match self.claim {
            Some(claim) if claim.bytes > Bytes::ZERO => {
                // Memory that grew is no part of a claim.
                let has_grown = self.freed_bytes.is_some_and(|freed| freed < 0);
                format!("{} {} claimed", if has_grown { "," } else { " of" }, claim.bytes)
            }
            _ => String::new(),
        };
        let Receipt { name, verdict, took_s, .. } = self;
        let numbers = match (self.before.in_use(), self.after.in_use()) {
            (Some(before), Some(after)) => format!(" ({before} → {after} in use)"),
            _ => String::new(),
        };
        let took_ms = took_s * 1e3;
        let name = printable(name);
        format!("{name} on {device}: {verdict}, {freed}{claimed}{numbers} in {took_ms:.1} ms")
    }

    /// Returns the line about reserved memory before and after, in MiB to one decimal (R42).
    pub fn reserved_line(&self) -> String {
        let (before, after) = (self.before.reserved, self.after.reserved);
        let (before, after) = (before.0.cast_signed(), after.0.cast_signed());
        format!(
            "{}: reserved {} before, {} after, {} freed",
            printable(&self.name),
            mib(before, 1),
            mib(after, 1),
            mib(before - after, 1)
        )
    }

    /// Returns the lines Before, After and Freed, in MiB to two decimals (R32).
    pub fn summary(&self) -> String {
        let Receipt { before, after, .. } = self;
        let row = |name: &str, reading: &Reading| {
            let driver = reading
                .driver
                .map_or_else(|| "unknown".to_owned(), |it| mib(it.0.cast_signed(), 2));
            let own = reading.own.map_or_else(String::new, |own| {
                format!(" ({} by this process)", mib(own.0.cast_signed(), 2))
            });
            format!(
                "{name:<8}allocated {:>13}, reserved {:>13}; in use on the device {driver:>13}{own}\n",
                mib(reading.allocated.0.cast_signed(), 2),
                mib(reading.reserved.0.cast_signed(), 2),
            )
        };
        let less = |one: Bytes, other: Bytes| mib(one.0.cast_signed() - other.0.cast_signed(), 2);
        let driver = self.freed_bytes.map_or_else(|| "unknown".to_owned(), |bytes| mib(bytes, 2));
        let freed = format!(
            "{:<8}allocated {:>13}, reserved {:>13}; in use on the device {driver:>13}",
            "Freed:",
            less(before.allocated, after.allocated),
            less(before.reserved, after.reserved),
        );
        row("Before:", before) + &row("After:", after) + &freed
    }

    /// Returns whether nothing was claimed and nothing was freed, so that the verdict is about nothing.
    fn had_nothing_to_free(&self) -> bool {
        let is_about_claim = matches!(self.verdict, Verdict::Released | Verdict::NoEffect);
        is_about_claim
            && self.freed_bytes == Some(0)
            && self.claim.is_some_and(|claim| claim.bytes == Bytes::ZERO)
    }

    fn write_headline(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        write!(f, "{}", self.line())?;
        if let Some(target) = self.target {
            write!(f, ", target: {target}")?;
        }
        Ok(())
    }

    // Holders, what is left, what to do. Each line begins by ending the one before it: `println!` and
    // Python's `print` end the last one.
    fn write_rest(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        for holder in &self.holders {
            let (Holder { path, holds, count, held, .. }, since) = (holder, holder.since_text());
            let references = if *count == 1 { "reference" } else { "references" };
            let held = held.map_or_else(String::new, |held| format!(", {held}"));
            let (path, holds) = (printable(path), printable(holds));
            write!(f, "\n  held: {holds} by {path}{since}, {count} {references}{held}")?;
        }
        match &self.ledger {
            Some(ledger) if self.verdict.is_proved() => write!(f, "\n  left: {}", ledger.line())?,
            Some(ledger) => write!(f, "\n{ledger}")?,
            None => {}
        }
        if !self.not_run.is_empty() {
            write!(f, "\n  not run: {}", self.not_run.join(", "))?;
        }
        for advice in &self.advice {
            write!(f, "\n  → {advice}")?;
        }
        Ok(())
    }
}

/// Says how much was freed. A number that rose is told as what it is.
fn freed_text(freed: Option<i64>) -> String {
    match freed {
        None => "an unknown amount freed".to_owned(),
        Some(freed) if freed < 0 => format!("{} more in use", Bytes(freed.unsigned_abs())),
        Some(freed) => format!("{} freed", Bytes(freed.unsigned_abs())),
    }
}

/// Formats MiB, in whole numbers, so that nothing is lost to rounding of floats.
fn mib(bytes: i64, decimals: u32) -> String {
    let parts = 10_u128.pow(decimals);
    let rounded = (u128::from(bytes.unsigned_abs()) * parts + (1 << 19)) >> 20;
    let sign = if bytes < 0 && rounded > 0 { "-" } else { "" };
    let (whole, part) = (rounded / parts, rounded % parts);
    format!("{sign}{whole}.{part:0width$} MiB", width = decimals as usize)
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printing(f);
        self.write_headline(f)?;
        self.write_rest(f)
    }
}

impl fmt::Display for Detailed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printing(f);
        self.0.write_headline(f)?;
        for line in self.0.summary().lines() {
            write!(f, "\n  {line}")?;
        }
        for rung in &self.0.rungs {
            write!(f, "\n  {rung}")?;
        }
        self.0.write_rest(f)
    }
}

impl fmt::Display for RungReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<14}", self.rung)?;
        let freed = freed_text(self.freed_bytes);
        match &self.outcome {
            RungOutcome::Skipped { why } => return write!(f, "skipped: {why}"),
            RungOutcome::Done => write!(f, "{freed:>20}")?,
            RungOutcome::Failed { why } => write!(f, "{freed:>20}; failed: {why}")?,
            RungOutcome::Panicked { message } => {
                write!(f, "{freed:>20}; panicked: {message}")?;
            }
            RungOutcome::CutOff { limit_ms } => {
                write!(f, "{freed:>20}; cut off after {limit_ms} ms, it may still be running")?;
            }
        }
        if let Some(expected) = self.expected_bytes.filter(|expected| *expected > Bytes::ZERO) {
            write!(f, " of {expected} expected")?;
        }
        write!(f, " in {:.1} ms; touched ", self.took_s * 1e3)?;
        match self.touched.as_slice() {
            [] => f.write_str("nothing")?,
            [one] => f.write_str(&one.what)?,
            [first, rest @ ..] => write!(f, "{} and {} more", first.what, rest.len())?,
        }
        if !self.skipped.is_empty() {
            write!(f, "; skipped {}", self.skipped.join(", "))?;
        }
        match self.settling {
            Settling::Steady => Ok(()),
            Settling::Falling => f.write_str("; still falling"),
            Settling::Moving => f.write_str("; the number kept moving"),
        }
    }
}
