//! Receipts: what a release did, by the driver's own numbers. Data first; the text for people, the
//! log line and the JSON are made from it.

use std::fmt;

use lowtide_device::{Bytes, DeviceId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::holder::Holder;
use crate::ledger::{Ledger, signed};
use crate::reading::{Reading, Settling};
use crate::rung::Touch;
use crate::target::Target;

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The target is met; or, without one, memory came back.
    Released,
    /// Something came back, less than the target.
    Partial,
    /// Nothing came back.
    NoEffect,
    /// Somebody still holds it; the receipt names who.
    Pinned,
    /// Work was running, and it was left alone.
    Busy,
    /// The device could not be asked, so nothing is claimed.
    Unverified,
    /// There is no device: nothing was done.
    NoDevice,
    /// Every rung that applied failed.
    Failed,
}

impl Verdict {
    /// Whether the release is proved, or there was nothing to prove.
    pub fn is_proved(self) -> bool {
        matches!(self, Verdict::Released | Verdict::NoDevice)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Released => "released",
            Verdict::Partial => "partial",
            Verdict::NoEffect => "no-effect",
            Verdict::Pinned => "pinned",
            Verdict::Busy => "busy",
            Verdict::Unverified => "unverified",
            Verdict::NoDevice => "no-device",
            Verdict::Failed => "failed",
        })
    }
}

/// How a rung ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it does.
    Done,
    /// It did not apply.
    Skipped {
        /// Why.
        why: String,
    },
    /// It, or a part of it, failed.
    Failed {
        /// With what.
        why: String,
    },
    /// It panicked.
    Panicked {
        /// With what.
        message: String,
    },
    /// It was left behind at its time limit and may still be at work.
    CutOff {
        /// The limit.
        limit_ms: u64,
    },
}

/// One rung of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RungReceipt {
    /// Its name.
    pub rung: String,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What it touched.
    pub touched: Vec<Touch>,
    /// Parts of it that did not apply, each by name and with why.
    pub skipped: Vec<String>,
    /// What it expected to give back, where it could tell.
    #[schemars(with = "Option<u64>")]
    pub expected_bytes: Option<Bytes>,
    /// Before it.
    pub before: Reading,
    /// After it, settled.
    pub after: Reading,
    /// What it gave back, by the driver's numbers; negative where more was in use afterwards.
    pub freed_bytes: Option<i64>,
    /// Whether the numbers had settled.
    pub settling: Settling,
    /// How long it took, without the time to settle.
    pub took_s: f64,
}

/// What a release did. Its JSON schema is `docs/schemas/receipt.json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Receipt {
    /// What it was for: `shutdown`, `idle`, the name of a stage.
    pub name: String,
    /// The device; `None` where there is none.
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceId>,
    /// What it was to reach.
    pub target: Option<Target>,
    /// What became of it.
    pub verdict: Verdict,
    /// Before anything was done.
    pub before: Reading,
    /// After everything, settled.
    pub after: Reading,
    /// What came back, by the driver's numbers.
    pub freed_bytes: Option<i64>,
    /// Rung by rung.
    pub rungs: Vec<RungReceipt>,
    /// Who still holds something that should be gone.
    pub holders: Vec<Holder>,
    /// Where what is left is; `None` where the device could not be asked.
    pub ledger: Option<Ledger>,
    /// What is left and what would free it, where the target was missed.
    pub advice: Vec<String>,
    /// How long all of it took.
    pub took_s: f64,
}

impl Receipt {
    /// The rung of this name in the last attempt that had it.
    pub fn rung(&self, name: &str) -> Option<&RungReceipt> {
        self.rungs.iter().rev().find(|rung| rung.rung == name)
    }

    /// One line for a log.
    pub fn line(&self) -> String {
        let device = self.device.map_or_else(|| "no device".to_owned(), |id| id.to_string());
        let freed = self.freed_bytes.map_or_else(|| "unknown".to_owned(), signed);
        let Receipt { name, verdict, took_s, .. } = self;
        let numbers = match (self.before.in_use(), self.after.in_use()) {
            (Some(before), Some(after)) => format!(" ({before} → {after} in use)"),
            _ => String::new(),
        };
        let took_ms = took_s * 1e3;
        format!("{name} on {device}: {verdict}, {freed} freed{numbers} in {took_ms:.1} ms")
    }

    /// What an allocator took from the device, before and after, in MB to one decimal.
    pub fn reserved_line(&self) -> String {
        let (before, after) = (self.before.reserved, self.after.reserved);
        let (before, after) = (before.0.cast_signed(), after.0.cast_signed());
        format!(
            "{}: reserved {} before, {} after, {} freed",
            self.name,
            in_mb(before, 1),
            in_mb(after, 1),
            in_mb(before - after, 1)
        )
    }

    /// The lines Before, After and Freed, in MB (1,000,000 bytes) to two decimals.
    pub fn summary(&self) -> String {
        let Receipt { before, after, .. } = self;
        let row = |name: &str, reading: &Reading| {
            let driver =
                reading.driver.map_or_else(|| "not told".to_owned(), |it| mb(it.0.cast_signed()));
            let own = reading.own.map_or_else(String::new, |own| {
                format!(" ({} by this process)", mb(own.0.cast_signed()))
            });
            format!(
                "{name:<8}allocated {:>12}, reserved {:>12}; in use on the device {driver:>12}{own}\n",
                mb(reading.allocated.0.cast_signed()),
                mb(reading.reserved.0.cast_signed()),
            )
        };
        let less = |one: Bytes, other: Bytes| mb(one.0.cast_signed() - other.0.cast_signed());
        let driver = self.freed_bytes.map_or_else(|| "not told".to_owned(), mb);
        let freed = format!(
            "{:<8}allocated {:>12}, reserved {:>12}; in use on the device {driver:>12}\n",
            "Freed:",
            less(before.allocated, after.allocated),
            less(before.reserved, after.reserved),
        );
        row("Before:", before) + &row("After:", after) + &freed
    }
}

/// In MB of 1,000,000 bytes, to two decimals.
fn mb(bytes: i64) -> String {
    in_mb(bytes, 2)
}

/// In MB of 1,000,000 bytes. Whole numbers, so that nothing is lost on the way.
fn in_mb(bytes: i64, decimals: u32) -> String {
    let unit = 10_u64.pow(6 - decimals);
    let rounded = (bytes.unsigned_abs() + unit / 2) / unit;
    let sign = if bytes < 0 && rounded > 0 { "-" } else { "" };
    let (whole, part) = (rounded / 10_u64.pow(decimals), rounded % 10_u64.pow(decimals));
    format!("{sign}{whole}.{part:0width$} MB", width = decimals as usize)
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.line())?;
        if let Some(target) = self.target {
            write!(f, ", target: {target}")?;
        }
        writeln!(f)?;
        for line in self.summary().lines() {
            writeln!(f, "  {line}")?;
        }
        for rung in &self.rungs {
            writeln!(f, "  {rung}")?;
        }
        for Holder { path, holds, count, held, .. } in &self.holders {
            let held = held.map_or_else(String::new, |held| format!(", {held}"));
            writeln!(f, "  held: {holds} by {path}, {count} reference(s){held}")?;
        }
        if let Some(ledger) = self.ledger.as_ref().filter(|_| !self.verdict.is_proved()) {
            writeln!(f, "{ledger}")?;
        }
        for advice in &self.advice {
            writeln!(f, "  → {advice}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RungReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<14}", self.rung)?;
        let freed = self.freed_bytes.map_or_else(|| "not told".to_owned(), signed);
        match &self.outcome {
            Outcome::Skipped { why } => return write!(f, "skipped: {why}"),
            Outcome::Done => write!(f, "{freed:>14} freed")?,
            Outcome::Failed { why } => write!(f, "{freed:>14} freed; failed: {why}")?,
            Outcome::Panicked { message } => write!(f, "{freed:>14} freed; panicked: {message}")?,
            Outcome::CutOff { limit_ms } => {
                write!(
                    f,
                    "{freed:>14} freed; cut off after {limit_ms} ms, it may still be at work"
                )?;
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

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Skipped { why } => write!(f, "skipped: {why}"),
            Outcome::Failed { why } => write!(f, "failed: {why}"),
            Outcome::Panicked { message } => write!(f, "panicked: {message}"),
            Outcome::CutOff { limit_ms } => write!(f, "cut off after {limit_ms} ms"),
        }
    }
}
