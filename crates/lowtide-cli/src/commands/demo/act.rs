//! What an act showed, as data: the device's numbers both ways, and what they prove.

use std::sync::Arc;

use lowtide::{Bytes, Holder, Planned, Receipt, StagesReport, Verdict};
use serde::Serialize;

use super::site::Site;
use super::watch::{Part, State, Watch};

/// One practice, as people follow it today and with lowtide.
#[derive(Serialize)]
pub(super) struct Act {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// What is done, in a line.
    pub(super) how: &'static str,
    pub(super) before_bytes: Bytes,
    pub(super) peak_bytes: Bytes,
    pub(super) after_bytes: Bytes,
    /// What the device must have in use at the peak, by the sizes that were asked for: no less
    /// would do, and no more is needed.
    pub(super) largest_bytes: Bytes,
    pub(super) holders: Vec<Holder>,
    /// What the pool had taken from the device after each update.
    pub(super) reserved_bytes: Vec<Bytes>,
    /// In which order a shutdown drops.
    pub(super) plan: Vec<Planned>,
    /// What was refused before it was loaded.
    pub(super) refused: Option<String>,
    pub(super) cleaning: Option<Cleaning>,
    pub(super) today: Today,
    pub(super) claims: Vec<Claim>,
    pub(super) receipts: Vec<Arc<Receipt>>,
    /// In the order of time.
    pub(super) states: Vec<State>,
    /// Both ways, with the time that states were held.
    pub(super) took_s: f64,
}

/// The same without a release.
#[derive(Serialize)]
pub(super) struct Today {
    pub(super) how: &'static str,
    pub(super) before_bytes: Bytes,
    pub(super) peak_bytes: Bytes,
    pub(super) after_bytes: Bytes,
    pub(super) reserved_bytes: Vec<Bytes>,
}

/// Time spent giving memory back.
#[derive(Serialize)]
pub(super) struct Cleaning {
    pub(super) took_s: f64,
    /// Of all the time that the work took, from 0 to 1.
    pub(super) share: f64,
}

impl Cleaning {
    pub(super) fn new(report: &StagesReport, watch: &Watch<'_>) -> Cleaning {
        let took_s = report.cleaning_s;
        Cleaning { took_s, share: took_s / watch.worked_s().max(f64::MIN_POSITIVE) }
    }
}

/// Something that was checked.
#[derive(Serialize)]
pub(super) struct Claim {
    pub(super) what: String,
    pub(super) holds: bool,
}

impl Act {
    /// An act by its two parts, of which nothing is proved yet.
    pub(super) fn new(
        name: &'static str,
        (how_today, today): (&'static str, Part),
        (how, with): (&'static str, Part),
        largest_bytes: Bytes,
    ) -> Act {
        let mut states = today.states;
        states.extend(with.states);
        Act {
            name,
            verdict: Verdict::Unverified,
            how,
            before_bytes: with.before,
            peak_bytes: with.peak,
            after_bytes: with.after,
            largest_bytes,
            holders: Vec::new(),
            reserved_bytes: Vec::new(),
            plan: Vec::new(),
            refused: None,
            cleaning: None,
            today: Today {
                how: how_today,
                before_bytes: today.before,
                peak_bytes: today.peak,
                after_bytes: today.after,
                reserved_bytes: Vec::new(),
            },
            claims: Vec::new(),
            receipts: Vec::new(),
            states,
            took_s: 0.0,
        }
    }

    pub(super) fn claim(&mut self, holds: bool, what: impl Into<String>) {
        self.claims.push(Claim { what: what.into(), holds });
    }

    /// That no more was ever taken than was needed at once.
    pub(super) fn claim_peak(&mut self, site: &Site, blocks: u64, what: &str) {
        let (peak, largest) = (self.peak_bytes, self.largest_bytes);
        let holds = site.same_in_blocks(peak, largest, blocks);
        self.claim(holds, format!("the peak, {peak}, is {what}, {largest}"));
    }

    /// That the device has back what it had.
    pub(super) fn claim_after(&mut self, site: &Site, wanted: Bytes, what: &str) {
        let after = self.after_bytes;
        self.claim(site.same(after, wanted), format!("{after} in use afterwards: {what}"));
    }

    /// Proved only where every claim holds; otherwise what the last release said of itself.
    pub(super) fn judged(mut self) -> Act {
        let last = self.receipts.last().map(|receipt| receipt.verdict);
        self.verdict = match last {
            _ if self.is_proved() => Verdict::Released,
            Some(verdict) if verdict != Verdict::Released => verdict,
            _ => Verdict::Partial,
        };
        self
    }

    pub(super) fn is_proved(&self) -> bool {
        !self.claims.is_empty() && self.claims.iter().all(|claim| claim.holds)
    }

    /// The claims that do not hold.
    pub(super) fn not_proved(&self) -> impl Iterator<Item = &str> {
        self.claims.iter().filter(|claim| !claim.holds).map(|claim| claim.what.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act() -> Act {
        let part =
            || Part { before: Bytes(0), peak: Bytes(2), after: Bytes(0), states: Vec::new() };
        Act::new("an act", ("so", part()), ("otherwise", part()), Bytes(2))
    }

    #[test]
    fn an_act_is_proved_by_its_claims_alone() {
        assert_eq!(act().judged().verdict, Verdict::Partial, "nothing claimed, nothing proved");
        let mut proved = act();
        proved.claim(true, "this");
        assert_eq!(proved.judged().verdict, Verdict::Released);
        let mut half = act();
        half.claim(true, "this");
        half.claim(false, "that");
        let half = half.judged();
        assert_eq!((half.verdict, half.is_proved()), (Verdict::Partial, false));
        assert_eq!(half.not_proved().collect::<Vec<_>>(), ["that"]);
    }
}
