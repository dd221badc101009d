//! Text fits the terminal, whatever its width, and progress is only for terminals.

use crate::demo::WITH_RUNGS;
use crate::program::{Finished, Machine};

/// Runs the program in a terminal of so many columns; with `interrupt`, Ctrl-C is typed after it has
/// drawn twice.
fn in_terminal(machine: &Machine, columns: usize, interrupt: bool, arguments: &[&str]) -> Finished {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/in_terminal.py");
    let columns = columns.to_string();
    let interrupt = if interrupt { "yes" } else { "no" };
    let head = [script, &columns, interrupt, env!("CARGO_BIN_EXE_lowtide")];
    let output = machine.command("python3", &[&head, arguments].concat()).output().unwrap();
    Finished { output }
}

/// The lines without colours and other escape sequences.
fn plain(drawn: &str) -> String {
    let mut text = String::new();
    let mut parts = drawn.split('\u{1b}');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        text.push_str(&part[end..]);
    }
    text
}

/// Lines that are too long, except for those that end with a word that no column can take.
fn too_long(text: &str, columns: usize) -> Vec<String> {
    let length = |text: &str| text.chars().count();
    let is_too_long = |line: &&str| {
        length(line) > columns && line.split_whitespace().last().is_some_and(|it| length(it) < 30)
    };
    text.lines().filter(is_too_long).map(str::to_owned).collect()
}

#[test]
fn every_text_fits_the_columns() {
    let without = Machine::without_gpu();
    let double = Machine::with_double("total=1GiB,context=48MiB,unattributed=16MiB");
    let trace = without.path("trace.csv");
    let events = "Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1,3000000,0\n";
    std::fs::write(&trace, events).unwrap();
    let trace = trace.display().to_string();
    for columns in [60, 80, 120] {
        for (machine, arguments) in [
            (&without, &["doctor"][..]),
            (&without, &["ps"]),
            (&without, &["doctor", "--device", "cuda:0"]),
            (&without, &["replay", &trace, "--streams", "2"]),
            (&without, &["--help"]),
            (&without, &["demo", "--help"]),
            (&without, &["ps", "--help"]),
            (&double, &["doctor", "--measure", "--device", "cuda:0"]),
            (&double, &["ps"]),
        ] {
            // Measuring takes seconds, and the narrowest is the hardest.
            if columns > 60 && arguments.contains(&"--measure") {
                continue;
            }
            let mut command = machine.command(env!("CARGO_BIN_EXE_lowtide"), arguments);
            let output = command.env("COLUMNS", columns.to_string()).output().unwrap();
            for stream in [&output.stdout, &output.stderr] {
                let text = String::from_utf8(stream.clone()).unwrap();
                let long = too_long(&text, columns);
                assert!(long.is_empty(), "{arguments:?} in {columns} columns: {long:#?}");
            }
        }
    }
}

#[test]
fn the_demo_fits_eighty_columns() {
    let text = &*WITH_RUNGS;
    assert!(text.contains("5 of 5 scenarios proved"), "{text}");
    assert_eq!(too_long(text, 80), Vec::<String>::new());
}

#[test]
fn without_a_terminal_lines_have_a_hundred_columns() {
    let text = Machine::without_gpu().run(&["doctor"]).out();
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!((81..=100).contains(&longest), "{longest}: {text}");
}

#[test]
fn a_terminal_gets_its_own_width_and_a_bar_that_is_gone_at_the_end() {
    let machine = Machine::with_double("total=256MiB");
    let arguments = ["doctor", "--measure", "--device", "cuda:0"];
    let drawn = in_terminal(&machine, 66, false, &arguments);
    assert_eq!(drawn.code(), 0, "{}", drawn.out());
    assert!(drawn.out().contains(" MiB of "), "bytes done of bytes planned: {}", drawn.out());
    let text = plain(&drawn.out());
    // What the bar drew is on lines that it wiped: they end with a return, not with a new line.
    let lines: Vec<_> = text.split("\r\n").map(|line| line.rsplit('\r').next().unwrap()).collect();
    let report = lines.join("\n");
    assert_eq!(too_long(&report, 66), Vec::<String>::new(), "{report}");
    assert!(report.lines().any(|line| line.starts_with("  link out  ")), "{report}");
    assert!(!report.contains(" MiB of "), "the bar is still there: {report}");
}

#[test]
fn ctrl_c_ends_a_watch_in_a_terminal_with_zero() {
    let machine = Machine::with_double("context=48MiB");
    let drawn = in_terminal(&machine, 80, true, &["ps", "--watch", "0.1"]);
    assert_eq!(drawn.code(), 0, "{}", drawn.out());
    let looks: Vec<_> = drawn.out().split("\u{1b}[H").skip(1).map(plain).collect();
    assert!(looks.len() >= 2, "{looks:?}");
    for look in &looks {
        assert!(look.starts_with("cuda:0  GPU-"), "{look}");
        assert_eq!(too_long(&look.replace('\r', ""), 80), Vec::<String>::new());
    }
}
