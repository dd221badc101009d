//! Wrong calls get the driver's answer: every misuse of every function that the agent answers itself, with and without
//! the agent (`xtask/gpu-pack/misuse.py`, which asks a GPU, too). Afterwards the program sleeps and wakes.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use lowtide_proto::Ask;

use crate::program::{World, agent};

/// Returns the answers of a program that misuses a function: the case, the code and what its memory says then.
fn answers(row: &str, with_agent: bool) -> Vec<String> {
    let world = World::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/gpu-pack/misuse.py");
    let mut command = world.command(Path::new("python3"));
    command.arg(script).args(["--row", row]);
    if with_agent {
        command.env("LD_PRELOAD", agent());
    }
    let mut program = world.spawn(&mut command);
    let mut lines: Vec<String> =
        std::iter::repeat_with(|| program.answer()).take_while(|line| line != "end").collect();
    if with_agent {
        let said = program.ask(Ask::Sleep);
        assert!(program.status().is_asleep, "{row}: {said:?}");
    }
    lines.push(program.text("go on"));
    lines
}

#[test]
fn wrong_calls_get_the_drivers_answer_and_memory_stays_whole() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let table = include_str!("../../table/driver.tsv").lines();
    let is_own =
        |line: &&str| !line.starts_with('#') && line.split([' ', '\t']).any(|word| word == "own");
    let own = table.filter(is_own);
    let left: Mutex<Vec<&str>> =
        Mutex::new(own.filter_map(|line| line.split('\t').next()).collect());
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(row) = { left.lock().expect("no panic").pop() } {
                    let [without, with] = [false, true].map(|with_agent| answers(row, with_agent));
                    assert!(
                        without.len() > 3 && with.last().is_some_and(|last| last == "right"),
                        "{row}: {with:?}"
                    );
                    assert_eq!(with.len(), without.len(), "{row}");
                    let differ = without.iter().zip(&with).filter(|(one, other)| one != other);
                    wrong.lock().expect("no panic").extend(
                        differ.map(|(one, other)| format!("{row}: {one} without, {other} with")),
                    );
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
