//! Receipts travel between processes: what is written is read back the same.

use lowtide_types::{
    Bytes, Claim, ClaimBasis, DeviceId, Holder, Ledger, LedgerKind, LedgerLine, Reading, Receipt,
    RungName, RungOutcome, RungReceipt, Settling, Target, Touch, Verdict,
};

fn reading(mib: u64) -> Reading {
    Reading { driver: Some(Bytes::mib(mib)), reserved: Bytes::mib(mib), ..Reading::default() }
}

fn receipt() -> Receipt {
    let id = DeviceId::Cuda(3);
    let mut receipt =
        Receipt::new("shutdown", Some(id), Verdict::Pinned, (reading(80), reading(48)));
    receipt.target = Some(Target::Under(Bytes::mib(16)));
    receipt.took_s = 0.25;
    receipt.rungs.push(RungReceipt {
        rung: RungName::from("polish"),
        attempt: 1,
        outcome: RungOutcome::CutOff { limit_ms: 20 },
        touched: vec![Touch::sized("cache", Bytes::mib(32)), Touch::from("hook")],
        skipped: vec!["sessions: none".to_owned()],
        expected_bytes: Some(Bytes::mib(80)),
        before: reading(80),
        after: reading(48),
        freed_bytes: Some(32 << 20),
        settling: Settling::Falling,
        took_s: 0.125,
    });
    receipt.holders.push(Holder {
        path: "runner.pooling.model".to_owned(),
        holds: "runner.model".to_owned(),
        count: 2,
        since: Some("src/c.rs:44".to_owned()),
        held: Some(Bytes::mib(48)),
        cut: None,
        by_hand: None,
        number: None,
        together: Vec::new(),
    });
    let line =
        LedgerLine { kind: LedgerKind::Live, name: "torch".to_owned(), bytes: Bytes::mib(40) };
    receipt.ledger = Some(Ledger::new(id, Bytes::mib(48), vec![line]));
    receipt.advice.push("drop runner.pooling.model".to_owned());
    receipt
}

#[test]
fn a_receipt_is_read_back_as_it_was_written() {
    let written = serde_json::to_string(&receipt()).unwrap();
    assert_eq!(serde_json::from_str::<Receipt>(&written).unwrap(), receipt());
}

#[test]
fn the_short_text_leaves_out_rungs_and_the_detailed_text_has_them() {
    let receipt = receipt();
    let (short, detailed) = (receipt.to_string(), receipt.detailed().to_string());
    for text in [&short, &detailed, &receipt.summary()] {
        assert!(!text.ends_with('\n'), "`println!` ends the last line: {text:?}");
    }
    for text in [&short, &detailed] {
        assert!(text.starts_with("shutdown on cuda:3: pinned, 32.0 MiB freed"), "{text}");
        assert!(text.contains(
            "  held: runner.model by runner.pooling.model since src/c.rs:44, 2 references, 48.0 MiB"
        ));
        assert!(text.contains("  unknown             8.0 MiB"), "what is left adds up: {text}");
        assert!(text.ends_with("  → drop runner.pooling.model"), "{text}");
    }
    assert!(!short.contains("polish") && !short.contains("Before:"), "{short}");
    assert!(detailed.contains("polish") && detailed.contains("cut off after 20 ms"), "{detailed}");
    for line in ["Before:", "After:", "Freed:"] {
        assert!(detailed.contains(line), "R32: {detailed}");
    }
}

#[test]
fn a_receipt_that_claims_nothing_and_frees_nothing_says_so() {
    let mut receipt = Receipt::new("shutdown", None, Verdict::NoEffect, (reading(16), reading(16)));
    receipt.claim = Some(Claim::new(ClaimBasis::Owned, Bytes::ZERO));
    let told = "no-effect, nothing to free (16.0 MiB → 16.0 MiB in use)";
    assert!(receipt.line().contains(told), "{receipt}");
    receipt.verdict = Verdict::Released;
    assert!(receipt.line().contains("released, nothing to free ("), "{receipt}");
    receipt.verdict = Verdict::Unverified;
    assert!(receipt.line().contains("unverified, 0.0 MiB freed ("), "nobody knows: {receipt}");
    receipt.verdict = Verdict::NoEffect;
    receipt.claim = Some(Claim::new(ClaimBasis::Owned, Bytes::mib(4)));
    assert!(receipt.line().contains("no-effect, 0.0 MiB freed of 4.0 MiB claimed"), "{receipt}");
}
