//! Makes the agent's functions from the one table of the driver's entry points, `table/driver.tsv`.
//!
//! Each row becomes an exported function of the driver's name: a trampoline by its class, or the
//! agent's own function where the row says `own`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=table/driver.tsv");
    let table = fs::read_to_string("table/driver.tsv").expect("table/driver.tsv");
    let rows: Vec<Row> = table.lines().filter(|line| !line.starts_with('#')).map(Row::of).collect();
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("entries.rs"), text(&rows)).expect("entries.rs");
    link_statically(&out);
}

/// One entry point.
struct Row<'a> {
    name: &'a str,
    /// The types of the arguments.
    arguments: Vec<&'static str>,
    class: &'a str,
    is_own: bool,
}

impl Row<'_> {
    fn of(line: &str) -> Row<'_> {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_else(|| panic!("`{line}` lacks a column"));
        let (name, letters, class) = (next(), next(), next());
        let (class, own) = class.split_once(' ').unwrap_or((class, ""));
        assert!(["touch", "quiet", "wait"].contains(&class), "`{line}`: decide about its class");
        let letters = letters.trim_matches('-').chars();
        let arguments = letters.map(|letter| match letter {
            'w' => "usize",
            'f' => "f32",
            's' => "Structure",
            other => panic!("`{line}`: no argument is a `{other}`"),
        });
        Row { name, arguments: arguments.collect(), class, is_own: own == "own" }
    }
}

fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    let count = rows.len();
    writeln!(text, "pub(crate) static ENTRIES: [Entry; {count}] = [").expect("text");
    for row in rows {
        let name = row.name;
        let function = if row.is_own { format!("crate::hooks::{name}") } else { name.to_owned() };
        writeln!(text, "    Entry::new(c\"{name}\", {function} as *const ()),").expect("text");
    }
    writeln!(text, "];").expect("text");
    writeln!(text, "/// The row of each entry point, by its name.").expect("text");
    writeln!(text, "#[allow(dead_code, reason = \"the agent uses some\")]").expect("text");
    writeln!(text, "pub(crate) mod row {{").expect("text");
    for (index, row) in rows.iter().enumerate() {
        writeln!(text, "    pub(crate) const {}: usize = {index};", row.name).expect("text");
    }
    writeln!(text, "}}").expect("text");
    for (index, row) in rows.iter().enumerate() {
        let (name, class) = (row.name, row.class);
        if row.is_own {
            continue;
        }
        let arguments: Vec<String> =
            row.arguments.iter().enumerate().map(|(at, kind)| format!("a{at}: {kind}")).collect();
        writeln!(text, "trampoline!({class} {name} {index} ({}));", arguments.join(", "))
            .expect("text");
    }
    text
}

/// Has the linker take libgcc's parts from its archives: the agent needs no library but the C library's,
/// because one that is missing would end every program that preloads the agent.
fn link_statically(out: &Path) {
    fs::write(out.join("libgcc_s.so"), "INPUT ( -lgcc_eh -lgcc )\n").expect("libgcc_s.so");
    println!("cargo::rustc-link-arg-cdylib=-L{}", out.display());
}
