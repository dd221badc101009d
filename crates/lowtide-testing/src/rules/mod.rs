//! The rules of the CUDA driver that lowtide relies on, asked of a real GPU and of the double.
//!
//! Each rule is a sentence, asked with raw calls in a process of its own, because some of them cost
//! the context. What a GPU answers is the rule; the double must answer the same. A rule that a GPU
//! does not have is no rule, and goes.

mod accounts;
mod capture;
mod checkpoint;
mod checkpoint_deaths;
mod contexts;
mod exporter;
mod fixture;
mod host_memory;
mod legacy_ipc;
mod lost;
mod sharing;
mod streams;
mod virtual_memory;

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, panic};

use crate::suite::Case;
use fixture::{Fixture, RULE_VARIABLE, Rule};

/// No rule takes longer than a few seconds; one that hangs must not hold the suite.
const PATIENCE: Duration = Duration::from_secs(300);

fn all() -> impl Iterator<Item = &'static Rule> {
    [
        virtual_memory::RULES,
        host_memory::RULES,
        streams::RULES,
        contexts::RULES,
        lost::RULES,
        capture::RULES,
        accounts::RULES,
        sharing::RULES,
        legacy_ipc::RULES,
        checkpoint::RULES,
        checkpoint_deaths::RULES,
    ]
    .into_iter()
    .flatten()
}

/// Asks the one rule that the environment names, and returns the process's exit code. Returns
/// `None` if it names none. A test program with rules calls this first in its `main`.
pub fn main_of_child() -> Option<ExitCode> {
    env::var(RULE_VARIABLE).ok().map(|name| ask(&name))
}

/// Returns one case for each rule.
pub fn cases() -> Vec<Case> {
    all().map(|(name, _)| Case::new(name, |_| in_a_child(name))).collect()
}

fn in_a_child(name: &str) {
    let state = env::temp_dir().join(format!("lowtide-rule-{name}-{}", std::process::id()));
    let program = env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.env(RULE_VARIABLE, name).env("LOWTIDE_DOUBLE_STATE", &state).env("RUST_BACKTRACE", "0");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("this program starts again");
    let ended = ended_within(&mut child, PATIENCE);
    if !ended {
        child.kill().expect("a child of ours can be killed");
    }
    let output = child.wait_with_output().expect("a child of ours can be waited for");
    let _ = std::fs::remove_file(state);
    let said = String::from_utf8_lossy(&output.stderr);
    // What the child said is the message; a panic here would put a second one around it.
    if !ended {
        panic::resume_unwind(Box::new(format!("no answer within {PATIENCE:?}: {said}")));
    } else if !output.status.success() {
        panic::resume_unwind(Box::new(format!("{}: {said}", output.status)));
    }
}

// What a rule says is a few lines: the pipe holds it until the child has ended.
fn ended_within(child: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if child.try_wait().expect("a child of ours can be asked").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn ask(name: &str) -> ExitCode {
    if let Some(pid) = name.strip_prefix(checkpoint::LOCKER) {
        return checkpoint::lock_and_answer(pid.parse().expect("a pid"));
    }
    if name == checkpoint_deaths::TARGET {
        return checkpoint_deaths::target();
    }
    if name == exporter::EXPORTER {
        return exporter::export_and_answer();
    }
    let Some((_, rule)) = all().find(|(known, _)| *known == name) else {
        eprintln!("there is no rule {name:?}");
        return ExitCode::from(2);
    };
    rule(&Fixture::new());
    ExitCode::SUCCESS
}
