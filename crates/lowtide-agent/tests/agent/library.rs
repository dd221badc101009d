//! The file of the agent: what it needs and what it exports.

use std::collections::BTreeSet;
use std::process::Command;

use crate::program::agent;

fn of_file(program: &str, option: &str) -> String {
    let output = Command::new(program).arg(option).arg(agent()).output();
    String::from_utf8(output.expect("binutils").stdout).expect("text")
}

#[test]
fn it_needs_the_c_library_only_and_exports_just_its_list() {
    let needed = of_file("readelf", "-d");
    let needed: Vec<&str> = needed.lines().filter(|line| line.contains("(NEEDED)")).collect();
    let is_of_c = |line: &&str| {
        ["[libc.so.6]", "[libdl.so.2]", "[libpthread.so.0]", "[ld-linux"]
            .iter()
            .any(|name| line.contains(name))
    };
    assert!(needed.iter().all(is_of_c), "{needed:?}");
    let exported = of_file("nm", "-D");
    let exported = exported.lines().filter(|line| line.contains(" T "));
    let exported: BTreeSet<&str> =
        exported.filter_map(|line| line.split(' ').next_back()).collect();
    let table = include_str!("../../table/driver.tsv").lines();
    let rows = table.filter(|line| !line.starts_with('#'));
    let listed = rows.filter_map(|row| row.split('\t').next()).chain([
        "dlopen",
        "dlsym",
        "lowtide_agent_version",
        "lowtide_is_asleep",
        "lowtide_is_suspended",
    ]);
    assert_eq!(exported, listed.collect::<BTreeSet<&str>>());
}

#[test]
fn it_needs_no_function_newer_than_glibc_2_17() {
    let symbols = of_file("objdump", "-T");
    let needed: Vec<&str> = symbols.lines().filter(|line| line.contains("*UND*")).collect();
    assert!(needed.len() > 50, "{symbols}");
    let minor = |line: &str| -> Option<u32> {
        let version = line.split("GLIBC_2.").nth(1)?;
        version.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    let newer: Vec<&&str> =
        needed.iter().filter(|line| minor(line).is_some_and(|minor| minor > 17)).collect();
    assert!(newer.is_empty(), "table/older.tsv lacks: {newer:#?}");
    // Without a version only what may be missing.
    let is_strong = |line: &&&str| !line.contains("  w ") && minor(line).is_none();
    let strong: Vec<&&str> = needed.iter().filter(is_strong).collect();
    assert!(strong.is_empty(), "table/older.tsv lacks a version for: {strong:#?}");
}

/// Some operations of a back end have a default. One that stands before another must pass on those, too.
#[test]
fn the_back_end_for_the_programs_chunks_passes_every_operation_on() {
    let contract = include_str!("../../../lowtide-device/src/backend.rs");
    let (_, contract) = contract.split_once("pub unsafe trait Backend:").expect("the contract");
    let contract = contract.split("pub unsafe trait BackendStream").next().unwrap_or_default();
    let passed = include_str!("../../src/memory/virtual_pool.rs");
    let names = contract.lines().filter_map(|line| line.trim_start().split_once("fn "));
    let names: Vec<&str> = names.filter_map(|(_, rest)| rest.split('(').next()).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(passed.contains(&format!("fn {name}(")), "`{name}` has the default");
    }
}
