//! Receipts: the result of a release, by the device's own numbers. Data first; the text for people
//! (`receipt_text.rs`), the log line and the JSON are made from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Claim, DeviceId, Holder, Ledger, Reading, RungName, RungOutcome, Settling, Target,
    Touch, Verdict,
};

/// The result of one rung in one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RungReceipt {
    /// The name of the rung.
    pub rung: RungName,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The end of the rung.
    pub outcome: RungOutcome,
    /// The objects, allocators or libraries that the rung acted on.
    pub touched: Vec<Touch>,
    /// Parts of the rung that did not apply, each with its reason.
    pub skipped: Vec<String>,
    /// The memory that the rung expected to free, where it could tell.
    pub expected_bytes: Option<Bytes>,
    /// The numbers before the rung.
    pub before: Reading,
    /// The numbers after the rung, settled.
    pub after: Reading,
    /// The memory that the rung freed, by the device's numbers; negative where more was in use
    /// afterwards.
    pub freed_bytes: Option<i64>,
    /// A flag: had the numbers stopped moving?
    pub settling: Settling,
    /// The duration of the rung, without the time to settle.
    pub took_s: f64,
}

impl RungReceipt {
    /// Returns whether the rung was climbed, to its end or not.
    pub fn is_climbed(&self) -> bool {
        !matches!(self.outcome, RungOutcome::Skipped { .. })
    }
}

/// The result of a release. Its JSON schema is `docs/schemas/receipt.json`.
///
/// `Display` prints the verdict, what is left and what to do; [`Receipt::detailed`] adds the numbers
/// and every rung.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Receipt {
    /// The purpose of the release: `shutdown`, `idle`, the name of a stage.
    pub name: String,
    /// The device; `None` where there is none.
    pub device: Option<DeviceId>,
    /// The target of the release, where it had one.
    pub target: Option<Target>,
    /// What the release said it would free; `None` where it did not start.
    #[serde(default)]
    pub claim: Option<Claim>,
    /// The result in one word.
    pub verdict: Verdict,
    /// The numbers before the release.
    pub before: Reading,
    /// The numbers after the release, settled.
    pub after: Reading,
    /// The memory that was freed, by the device's numbers; negative where more was in use afterwards.
    pub freed_bytes: Option<i64>,
    /// The rungs in the order in which they were climbed.
    pub rungs: Vec<RungReceipt>,
    /// The rung at which the caller stopped the release: it was not climbed, or not to its end. `None`
    /// if the release was not stopped.
    #[serde(default)]
    pub stopped_at: Option<RungName>,
    /// Hooks that apply and were not run, because their rung is not part of this ladder.
    #[serde(default)]
    pub not_run: Vec<String>,
    /// References that keep alive what should be gone.
    pub holders: Vec<Holder>,
    /// A breakdown of what is left; `None` where the device could not be asked.
    pub ledger: Option<Ledger>,
    /// Sentences that say what to do next, where the release did not free what it was meant to.
    pub advice: Vec<String>,
    /// The duration of the whole release.
    pub took_s: f64,
}

impl Receipt {
    /// Creates a receipt without rungs, holders and ledger.
    pub fn new(
        name: impl Into<String>,
        device: Option<DeviceId>,
        verdict: Verdict,
        (before, after): (Reading, Reading),
    ) -> Receipt {
        Receipt {
            name: name.into(),
            device,
            target: None,
            claim: None,
            verdict,
            before,
            after,
            freed_bytes: after.freed_since(&before),
            rungs: Vec::new(),
            stopped_at: None,
            not_run: Vec::new(),
            holders: Vec::new(),
            ledger: None,
            advice: Vec::new(),
            took_s: 0.0,
        }
    }

    /// Returns the rung of this name from the last attempt that had it.
    pub fn rung(&self, name: impl Into<RungName>) -> Option<&RungReceipt> {
        let name = name.into();
        self.rungs.iter().rev().find(|rung| rung.rung == name)
    }
}
