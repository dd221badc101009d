//! The table in `docs/requirements.md` names a test for every number and the devices that it is seen
//! on, and every test that it names is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lowtide_testing::suite::Target;

const TABLE: &str = include_str!("../../../../docs/requirements.md");
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The numbers that have a proof here.
fn numbers() -> impl Iterator<Item = u32> {
    (1..=45).chain([47])
}

/// A test, as the table names it, `file.rs::name`: the file, with a path where it is not ours, and
/// the name.
type Named = (&'static str, &'static str);

/// The tests in a row of the table.
fn named(row: &'static str) -> impl Iterator<Item = Named> {
    let marked = row.split('`').skip(1).step_by(2);
    marked.filter_map(|text| text.split_once(".rs::"))
}

fn row(number: u32) -> &'static str {
    let start = format!("| R{number} |");
    // What is proved from Python has a table of its own, and a test there.
    let (here, _) = TABLE.split_once("## From Python").expect("a table for Python");
    let mut rows = here.lines().filter(|line| line.starts_with(&start));
    let row = rows.next().unwrap_or_else(|| panic!("docs/requirements.md has no row of R{number}"));
    assert!(rows.next().is_none(), "docs/requirements.md has two rows of R{number}");
    row
}

/// The devices that the tests of a row run on, as the table names them.
fn seen_on(row: &'static str) -> String {
    let mut targets = BTreeSet::new();
    for (file, _) in named(row) {
        targets.extend(targets_of(file));
    }
    targets.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}

/// The devices that the tests in a file run on, in order.
fn targets_of(file: &str) -> Vec<(usize, &'static str)> {
    const NAMES: [(Target, &str); 3] =
        [(Target::Host, "host"), (Target::Double, "double"), (Target::Cuda, "GPU")];
    let names = NAMES.into_iter().enumerate();
    let Some((folder, module)) = file.rsplit_once('/') else {
        let here = names.filter(|(_, (target, _))| super::TARGETS.contains(target));
        return here.map(|(at, (_, name))| (at, name)).collect();
    };
    let main = fs::read_to_string(Path::new(WORKSPACE).join(folder).join("main.rs")).unwrap();
    let cases = format!("{module}::cases()");
    let suite = main.lines().find(|line| line.contains(&cases));
    // A test that is in no suite has a `host` device.
    let suite = suite.unwrap_or("Target::Host");
    let in_suite = names.filter(|(_, (target, _))| suite.contains(&format!("Target::{target:?}")));
    in_suite.map(|(at, (_, name))| (at, name)).collect()
}

/// The devices that a row says it is seen on.
fn told(row: &'static str) -> &'static str {
    row.split(" | ").nth(3).unwrap_or_default().trim()
}

pub(super) fn check() {
    let here: BTreeSet<Named> = super::files()
        .into_iter()
        .flat_map(|(file, proofs)| proofs.iter().map(move |proof| (file, proof.name)))
        .collect();
    for number in numbers() {
        let prefix = format!("r{number}_");
        let is_own = |(file, test): Named| !file.contains('/') && test.starts_with(&prefix);
        assert!(named(row(number)).any(is_own), "no test of R{number} is named: {}", row(number));
    }
    for number in numbers().chain([48]) {
        assert_eq!(told(row(number)), seen_on(row(number)), "R{number} is seen on");
    }
    let told: BTreeSet<Named> = TABLE.lines().flat_map(named).collect();
    for (file, test) in told.difference(&here) {
        // Elsewhere in the workspace, perhaps.
        let text = fs::read_to_string(Path::new(WORKSPACE).join(format!("{file}.rs")));
        let is_there = text.is_ok_and(|text| text.contains(&format!("fn {test}(")));
        assert!(is_there, "there is no {file}.rs::{test}");
    }
    if let Some((file, test)) = here.difference(&told).next() {
        panic!("docs/requirements.md does not name {file}.rs::{test}");
    }
}
