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
    for (name, text) in [
        ("entries.rs", entries(&rows)),
        ("ours.rs", ours(&rows)),
        ("trampolines.rs", trampolines(&rows)),
    ] {
        fs::write(out.join(name), text).expect(name);
    }
    link_statically(&out);
    bind_to_older(&out);
    avoid_the_loader();
}

/// One entry point.
struct Row<'a> {
    name: &'a str,
    /// The letter of each argument.
    letters: &'a str,
    /// The arm of `trampoline!` that makes its function.
    way: &'a str,
    is_own: bool,
    is_obstacle: bool,
}

impl Row<'_> {
    fn of(line: &str) -> Row<'_> {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_else(|| panic!("`{line}` lacks a column"));
        let (name, letters, class) = (next(), next().trim_matches('-'), next());
        let mut words = class.split(' ');
        let class = words.next().unwrap_or_default();
        assert!(["touch", "quiet", "wait"].contains(&class), "`{line}`: decide about its class");
        let way = if class == "touch" { "touch" } else { "quiet" };
        let mut row = Row { name, letters, way, is_own: false, is_obstacle: false };
        for word in words {
            match word {
                "own" => row.is_own = true,
                "obstacle" => row.is_obstacle = true,
                "answers" => row.way = "answered",
                "done" => row.way = "done",
                "takes" => row.way = "takes",
                other => panic!("`{line}`: there is no `{other}`"),
            }
        }
        row
    }

    /// Writes the function that passes its calls on.
    fn trampoline(&self, index: usize) -> String {
        let (mut arguments, mut before) = (String::new(), String::new());
        for (at, letter) in self.letters.chars().enumerate() {
            let kind = match letter {
                'w' | 'h' => "usize",
                'f' => "f32",
                other => panic!("`{}`: no argument is a `{other}`", self.name),
            };
            write!(arguments, "a{at}: {kind}, ").expect("text");
            if letter == 'h' {
                write!(before, "let a{at} = real_handle!(a{at}); ").expect("text");
            }
        }
        let (name, way) = (self.name, self.way);
        let title = name.trim_end_matches("_v2");
        let obstacle = if self.is_obstacle { format!("\"{title}\"") } else { String::new() };
        format!("trampoline!({way} {name} {index} ({arguments}) {{ {before}}} [{obstacle}]);\n")
    }
}

/// Writes the list of the driver's functions, and the row of each by its name.
fn entries(rows: &[Row]) -> String {
    let count = rows.len();
    let mut text = format!("pub(crate) static ENTRIES: [Entry; {count}] = [\n");
    for row in rows {
        writeln!(text, "    Entry::new(c\"{}\"),", row.name).expect("text");
    }
    text.push_str("];\n/// The row of each entry point, by its name.\n");
    text.push_str("#[allow(dead_code, reason = \"the agent uses some\")]\npub(crate) mod row {\n");
    for (index, row) in rows.iter().enumerate() {
        writeln!(text, "    pub(crate) const {}: usize = {index};", row.name).expect("text");
    }
    text + "}\n"
}

/// Writes the list of our functions, in the order of the rows.
fn ours(rows: &[Row]) -> String {
    let count = rows.len();
    let mut text = format!("static OURS: [Function; {count}] = [\n");
    for row in rows {
        writeln!(text, "    Function({} as *const ()),", row.name).expect("text");
    }
    text + "];\n"
}

/// Writes the functions that only pass their calls on.
fn trampolines(rows: &[Row]) -> String {
    let passing = rows.iter().enumerate().filter(|(_, row)| !row.is_own);
    passing.map(|(index, row)| row.trampoline(index)).collect()
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
