//! Makes the agent's functions from the one table of the driver's entry points, `table/driver.tsv`.
//!
//! Each row becomes an exported function of the driver's name: a trampoline by its class, or the
//! agent's own function where the row says `own`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=table/driver.tsv");
    let table = fs::read_to_string("table/driver.tsv").expect("table/driver.tsv");
    let rows: Vec<Row> = table.lines().filter(|line| !line.starts_with('#')).map(Row::of).collect();
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("entries.rs"), text(&rows)).expect("entries.rs");
    link_statically(&out);
    bind_to_older(&out);
    avoid_the_loader();
}

/// One entry point.
struct Row<'a> {
    name: &'a str,
    /// The types of the arguments.
    arguments: Vec<&'static str>,
    /// The arm of `trampoline!` that makes its function.
    way: &'a str,
    is_own: bool,
}

impl Row<'_> {
    fn of(line: &str) -> Row<'_> {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_else(|| panic!("`{line}` lacks a column"));
        let (name, letters, class) = (next(), next(), next());
        let mut words = class.split(' ');
        let class = words.next().unwrap_or_default();
        assert!(["touch", "quiet", "wait"].contains(&class), "`{line}`: decide about its class");
        let (mut is_own, mut way) = (false, if class == "touch" { "touch" } else { "quiet" });
        for word in words {
            match word {
                "own" => is_own = true,
                "answers" => way = "answered",
                "done" => way = "done",
                other => panic!("`{line}`: there is no `{other}`"),
            }
        }
        // The driver does not know the agent's numbers for handles.
        assert!(
            is_own || !letters.contains('h'),
            "`{line}`: takes a handle, so it has to be `own`"
        );
        let letters = letters.trim_matches('-').chars();
        let arguments = letters.map(|letter| match letter {
            'w' | 'h' => "usize",
            'f' => "f32",
            's' => "Structure",
            other => panic!("`{line}`: no argument is a `{other}`"),
        });
        Row { name, arguments: arguments.collect(), way, is_own }
    }
}

fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    let count = rows.len();
    writeln!(text, "pub(crate) static ENTRIES: [Entry; {count}] = [").expect("text");
    for row in rows {
        let name = row.name;
        let function =
            if row.is_own { format!("crate::entry::own::{name}") } else { name.to_owned() };
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
        let (name, way) = (row.name, row.way);
        if row.is_own {
            continue;
        }
        let arguments: Vec<String> =
            row.arguments.iter().enumerate().map(|(at, kind)| format!("a{at}: {kind}")).collect();
        writeln!(text, "trampoline!({way} {name} {index} ({}));", arguments.join(", "))
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

/// Has Rust do without the C library's function for ends of threads, which takes the lock of the loader. A
/// library that uses the device while it is loaded has that lock, and waits for threads of ours.
fn avoid_the_loader() {
    println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym=__cxa_thread_atexit_impl=0");
}

/// Has the linker find the functions of `table/older.tsv` in libraries that have only those, in the
/// versions of the table. At run time the real libraries are loaded.
fn bind_to_older(out: &Path) {
    println!("cargo::rerun-if-changed=table/older.tsv");
    let table = fs::read_to_string("table/older.tsv").expect("table/older.tsv");
    let mut libraries = BTreeMap::<&str, Vec<(&str, &str)>>::new();
    for row in table.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = row.split('\t').collect();
        let [library, function, version] = columns[..] else {
            panic!("`{row}` has no three columns")
        };
        libraries.entry(library).or_default().push((function, version));
    }
    for (library, functions) in libraries {
        let (source, versions) = (out.join("older.s"), out.join("older.map"));
        fs::write(&source, assembly(&functions)).expect("older.s");
        fs::write(&versions, version_script(&functions)).expect("older.map");
        // The name under which the linker looks for it.
        let (name, _) = library.split_once(".so").expect("the name of a shared library");
        let built = Command::new("cc")
            .args(["-shared", "-nostdlib", "-o"])
            .arg(out.join(format!("{name}.so")))
            .arg(format!("-Wl,-soname,{library},--version-script,{}", versions.display()))
            .arg(&source)
            .status();
        assert!(built.is_ok_and(|status| status.success()), "cc could not link {library}");
    }
}

fn assembly(functions: &[(&str, &str)]) -> String {
    let mut text = String::from(".text\n");
    for (function, _) in functions {
        writeln!(text, ".globl {function}\n.type {function}, @function\n{function}: ret")
            .expect("text");
    }
    text.push_str(".section .note.GNU-stack,\"\",@progbits\n");
    text
}

fn version_script(functions: &[(&str, &str)]) -> String {
    let versions: BTreeSet<&str> = functions.iter().map(|(_, version)| *version).collect();
    let mut text = String::new();
    for version in versions.into_iter().filter(|version| *version != "-") {
        let names: Vec<&str> =
            functions.iter().filter(|one| one.1 == version).map(|one| one.0).collect();
        writeln!(text, "{version} {{ global: {}; }};", names.join("; ")).expect("text");
    }
    text
}
