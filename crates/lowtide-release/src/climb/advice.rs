//! Advice: what is left after a release that missed its target, and what would free it.

use lowtide_types::{
    Bytes, ClaimBasis, Holder, Ledger, LedgerKind, Receipt, RungName, RungOutcome, Target, Verdict,
    signed,
};

/// Smaller amounts get no line.
const WORTH: u64 = 1 << 20;

const NO_DEVICE: &str = "nothing was measured, because there is no device: `lowtide doctor` lists this machine's \
                         devices and says what is missing";

/// Returns sentences that say what to do next; none where nothing is to be done.
pub(crate) fn advise(receipt: &Receipt) -> Vec<String> {
    let mut lines = Vec::new();
    match receipt.verdict {
        Verdict::Released | Verdict::Busy => return lines,
        Verdict::NoDevice => return vec![NO_DEVICE.to_owned()],
        _ => {}
    }
    for rung in &receipt.rungs {
        match &rung.outcome {
            RungOutcome::Failed { why } => lines.push(format!("{} failed: {why}", rung.rung)),
            RungOutcome::Panicked { message } => {
                lines.push(format!("{} panicked: {message}", rung.rung));
            }
            RungOutcome::CutOff { limit_ms } => lines.push(format!(
                "{} did not end within {limit_ms} ms and was left behind",
                rung.rung
            )),
            RungOutcome::Done | RungOutcome::Skipped { .. } => {}
        }
    }
    lines.extend(receipt.holders.iter().map(Holder::remedy));
    match receipt.claim.map(|claim| claim.basis) {
        Some(ClaimBasis::Target) => {}
        // The holders say it.
        Some(ClaimBasis::Owned) if !receipt.holders.is_empty() => return lines,
        Some(ClaimBasis::Owned) => {
            lines.extend(rest_of_claim(receipt));
            return lines;
        }
        Some(ClaimBasis::Level) => {
            lines.extend(above_level(receipt));
            return lines;
        }
        // Live memory was not claimed, so that nothing is to be done about it.
        _ => return lines,
    }
    if receipt.target == Some(Target::Floor) && receipt.verdict == Verdict::Unverified {
        lines.push("the floor of this device is unknown: `lowtide doctor` measures it".to_owned());
    }
    if let Some(ledger) = &receipt.ledger {
        lines.extend(left(ledger, receipt));
    }
    lines
}

/// Says how much more is in use than the level that was claimed.
fn above_level(receipt: &Receipt) -> Option<String> {
    let above = missed(receipt)?;
    Some(format!(
        "{above} more are in use than after the first task: a task keeps memory. What holds it: `lowtide.why()` in \
         Python, `receipt.detailed()` in Rust"
    ))
}

/// Says how much of what owners had is still in use, and where.
fn rest_of_claim(receipt: &Receipt) -> Option<String> {
    let missed = missed(receipt)?;
    let of = |kind| receipt.ledger.as_ref().map_or(Bytes::ZERO, |ledger| ledger.of(kind));
    let cause = match (of(LedgerKind::Live), of(LedgerKind::Cached)) {
        // More is live than is missing: some of it is somebody else's.
        (live, _) if live.0 >= WORTH && live <= missed => ": blocks that nobody has dropped",
        (_, cached) if cached >= missed => ": it is cached beside live blocks",
        _ => "",
    };
    Some(format!("{missed} of the claim are still in use{cause}"))
}

/// Returns the part of the claim that was not freed.
fn missed(receipt: &Receipt) -> Option<Bytes> {
    let missed = receipt.claim?.bytes.0.cast_signed() - receipt.freed_bytes?;
    u64::try_from(missed).ok().filter(|missed| *missed >= WORTH).map(Bytes)
}

fn left(ledger: &Ledger, receipt: &Receipt) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |bytes: Bytes, text: &str| {
        if bytes.0 >= WORTH {
            lines.push(format!("{bytes} {text}"));
        }
    };
    let names = |kind: LedgerKind| {
        let of_kind = ledger.lines.iter().filter(|line| line.kind == kind);
        of_kind.map(|line| line.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let slept = receipt.rung(RungName::Sleep).is_some();
    let live = names(LedgerKind::Live);
    let device = receipt.device.map(|id| id.to_string()).unwrap_or_default();
    let way = match device.as_str() {
        // The heap of a program in Python: most of it is no memory of a device.
        "cpu" => "`lowtide.why()` names who holds tensors of it",
        _ if slept => "free them",
        _ => "free them, or climb to `sleep`",
    };
    line(ledger.of(LedgerKind::Live), &format!("are live ({live}): {way}"));
    let cached = names(LedgerKind::Cached);
    line(
        ledger.of(LedgerKind::Cached),
        &format!("are cached ({cached}): each chunk has a live byte, which pins it"),
    );
    line(ledger.of(LedgerKind::Graphs), "are captured graphs: drop them");
    line(ledger.of(LedgerKind::Libraries), "belong to libraries: the rung `libraries` frees some");
    line(
        ledger.of(LedgerKind::Context),
        "are the bare context: only a suspended or ended process frees it",
    );
    line(
        ledger.of(LedgerKind::ContextAndLibraries),
        "are the context and libraries: `lowtide doctor` measures the context; only a suspended or ended \
         process frees it",
    );
    let others = names(LedgerKind::Others);
    // Nobody ends the other programs of a machine for its host memory.
    if !matches!(device.as_str(), "host" | "cpu") {
        line(ledger.of(LedgerKind::Others), &format!("belong to other processes ({others})"));
    }
    if ledger.unknown_bytes.unsigned_abs() >= WORTH {
        let unknown = signed(ledger.unknown_bytes);
        let is_told = [LedgerKind::Context, LedgerKind::ContextAndLibraries]
            .iter()
            .any(|kind| ledger.of(*kind) > Bytes::ZERO);
        let floor = ": the floor may be part of it; `lowtide doctor` measures it";
        lines.push(format!("{unknown} are unknown{}", if is_told { "" } else { floor }));
    }
    lines
}
