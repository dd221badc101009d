//! What people and programs read of a release.

use lowtide_device::Bytes;
use lowtide_pool::Pool;
use lowtide_release::{Ladder, ManualClock, Receipt, Releaser, Request, Target, Verdict};

use crate::world::World;

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas/receipt.json");

fn world() -> (Pool, Releaser) {
    let World { pool, releaser, .. } = World::<ManualClock>::new();
    (pool, releaser)
}

#[test]
fn the_schema_in_the_docs_is_that_of_a_receipt() {
    let schema = schemars::schema_for!(Receipt);
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("LOWTIDE_WRITE_SCHEMAS").is_some() {
        std::fs::write(SCHEMA, &text).unwrap();
    }
    let known = std::fs::read_to_string(SCHEMA).unwrap_or_default();
    assert!(
        known == text,
        "docs/schemas/receipt.json is not the schema of a receipt; write it anew with \
         LOWTIDE_WRITE_SCHEMAS=1 cargo test -p lowtide-release --test release receipt"
    );
}

#[test]
fn a_receipt_has_the_keys_of_its_schema() {
    let (pool, releaser) = world();
    drop(pool.block(Bytes::mib(4)).unwrap());
    let receipt =
        releaser.release(Request::new("all", Ladder::whole()).to(Target::Under(Bytes(0))));
    let value = serde_json::to_value(&receipt).unwrap();
    let schema = serde_json::to_value(schemars::schema_for!(Receipt)).unwrap();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(keys(&value), keys(&schema["properties"]));
    assert_eq!(keys(&value["rungs"][0]), keys(&schema["$defs"]["RungReceipt"]["properties"]));
    assert_eq!(keys(&value["before"]), keys(&schema["$defs"]["Reading"]["properties"]));
    assert_eq!(value["verdict"], "released");
}

// Times are zero on this clock, so the whole text is known.
#[test]
fn a_receipt_reads_like_this() {
    let (pool, releaser) = world();
    let (kept, line) = (pool.block(Bytes::mib(6)).unwrap(), line!());
    drop(pool.block(Bytes::mib(4)).unwrap());
    let ask = Request::new("stage reranker", Ladder::cache()).to(Target::Under(Bytes::mib(1)));
    let receipt = releaser.release(ask);
    assert_eq!(receipt.verdict, Verdict::Partial);
    let text = receipt.detailed().to_string();
    // What the clock was paused for while numbers settled is not what this is about.
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with(
            "stage reranker on host: partial, 4.0 MiB freed of 9.0 MiB claimed (10.0 MiB → 6.0 MiB in use) in "
        ) && first.ends_with(" ms, target: at most 1.0 MiB"),
        "{first}"
    );
    let since = format!(", since {}:{line}", file!());
    let text = text.replace(&since, ", since HERE");
    let rest: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(
        rest.join("\n"),
        "  Before: allocated      6.00 MiB, reserved     10.00 MiB; in use on the device     10.00 MiB (10.00 MiB by this process)\n  \
           After:  allocated      6.00 MiB, reserved      6.00 MiB; in use on the device      6.00 MiB (6.00 MiB by this process)\n  \
           Freed:  allocated      0.00 MiB, reserved      4.00 MiB; in use on the device      4.00 MiB\n  \
           collect       skipped: no collector of a host language is registered\n  \
           trim                 4.0 MiB freed of 4.0 MiB expected in 0.0 ms; touched pool, cached memory\n  \
           live                6.0 MiB  default, since HERE\n  \
           unknown             0.0 MiB\n  \
           in use              6.0 MiB\n  \
           → 6.0 MiB are live (default, since HERE): free them, or climb to `sleep`"
    );
    let short: Vec<String> = {
        let short = receipt.to_string().replace(&since, ", since HERE");
        short.lines().skip(1).map(str::to_owned).collect()
    };
    assert_eq!(short, rest[5..], "the short form has what is left and what to do");
    drop(kept);
}
