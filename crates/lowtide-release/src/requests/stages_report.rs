//! What stages took and gave back: plain data, and a table for people.

use std::fmt;

use lowtide_types::{Bytes, Receipt};
use schemars::JsonSchema;
use serde::Serialize;

/// The memory that one stage took, and what its end freed.
///
/// Peaks are of the moments at which the device was asked: after the load, before each clean-up between
/// tasks, at the end, and at each [`Stage::look`](crate::Stage::look).
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StageReport {
    /// The name of the stage.
    pub name: String,
    /// The peak of memory in use, above what was in use before the stage.
    pub own_peak_bytes: Bytes,
    /// The peak of memory in use during the stage, in all.
    pub peak_bytes: Bytes,
    /// The duration of the teardown.
    pub teardown_s: f64,
    /// The receipt of the teardown.
    pub receipt: Receipt,
}

/// The memory that a sequence of stages took. `Display` prints a table.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct StagesReport {
    /// The stages, in the order in which they ended.
    pub stages: Vec<StageReport>,
    /// The peak of memory in use.
    pub peak_bytes: Bytes,
    /// The own peak of the largest stage.
    pub largest_bytes: Bytes,
    /// The sum of the stages' own peaks: what they would have taken at once.
    pub sum_bytes: Bytes,
    /// The budget of the sequence, if it has one. A stage that was loaded without its size can exceed it.
    pub budget_bytes: Option<Bytes>,
    /// The time spent on freeing memory.
    pub cleaning_s: f64,
    /// The share of that in the time since the first stage, from 0 to 1.
    pub cleaning_share: f64,
}

impl fmt::Display for StagesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.stages.iter().map(|stage| stage.name.chars().count());
        let width = names.chain(["stage".len()]).max().unwrap_or_default();
        let row = |f: &mut fmt::Formatter<'_>, [name, own, peak, teardown, verdict]: [&str; 5]| {
            writeln!(f, "{name:<width$}  {own:>14}  {peak:>14}  {teardown:>12}  {verdict}")
        };
        row(f, ["stage", "own peak", "device peak", "teardown", "verdict"])?;
        for stage in &self.stages {
            let (own, peak) = (stage.own_peak_bytes.to_string(), stage.peak_bytes.to_string());
            let verdict = stage.receipt.verdict.to_string();
            row(f, [&stage.name, &own, &peak, &milliseconds(stage.teardown_s), &verdict])?;
        }
        writeln!(
            f,
            "peak {}, largest stage {}, sum of all stages {}",
            self.peak_bytes, self.largest_bytes, self.sum_bytes
        )?;
        if let Some(budget) = self.budget_bytes.filter(|budget| self.peak_bytes > *budget) {
            writeln!(f, "the peak is {} above the budget of {budget}", self.peak_bytes - budget)?;
        }
        let (cleaning, share) = (milliseconds(self.cleaning_s), self.cleaning_share * 100.0);
        write!(f, "freeing memory took {cleaning}, {share:.1} % of the time")
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use lowtide_types::{Reading, Verdict};

    use super::*;

    fn stage(name: &str, own_mib: u64, before_mib: u64) -> StageReport {
        let readings = (Reading::default(), Reading::default());
        StageReport {
            name: name.to_owned(),
            own_peak_bytes: Bytes::mib(own_mib),
            peak_bytes: Bytes::mib(own_mib + before_mib),
            teardown_s: 0.0125,
            receipt: Receipt::new(name, None, Verdict::Released, readings),
        }
    }

    #[test]
    fn a_report_prints_as_a_table_with_units() {
        let mut report = StagesReport {
            stages: vec![stage("embedder", 16, 8), stage("reranker, large", 2048, 8)],
            peak_bytes: Bytes::mib(2056),
            largest_bytes: Bytes::mib(2048),
            sum_bytes: Bytes::mib(2064),
            budget_bytes: Some(Bytes::mib(2056)),
            cleaning_s: 0.025,
            cleaning_share: 0.034,
        };
        assert_eq!(
            report.to_string(),
            "stage                  own peak     device peak      teardown  verdict\n\
             embedder               16.0 MiB        24.0 MiB       12.5 ms  released\n\
             reranker, large     2,048.0 MiB     2,056.0 MiB       12.5 ms  released\n\
             peak 2,056.0 MiB, largest stage 2,048.0 MiB, sum of all stages 2,064.0 MiB\n\
             freeing memory took 25.0 ms, 3.4 % of the time"
        );
        report.budget_bytes = Some(Bytes::mib(2000));
        let told = "\nthe peak is 56.0 MiB above the budget of 2,000.0 MiB\nfreeing";
        assert!(report.to_string().contains(told), "{report}");
        report.stages.clear();
        assert!(report.to_string().starts_with("stage        own peak"), "{report}");
    }
}
