//! Several suites from one test program: each runs in a process of its own, because a process has
//! one driver and some suites leave it unusable. As many run at once as there are cores.

use std::io::Write;
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::{env, io, thread};

use super::target::Target;

/// Runs this program once for each suite and target. Prints the output of each when it ends. Fails
/// if one of them fails.
///
/// # Panics
/// If this program cannot be started again.
pub(super) fn run(runs: &[(&str, Target)], arguments: &[String], at_once: usize) -> ExitCode {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..at_once.min(runs.len()) {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, SeqCst)) {
                    let output = again(*run, arguments);
                    failed.fetch_or(!output.status.success(), SeqCst);
                    print(*run, &output);
                }
            });
        }
    });
    if failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn again((suite, target): (&str, Target), arguments: &[String]) -> Output {
    let program = env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args(["--suite", suite, "--on", &target.to_string()]).args(arguments);
    command.output().expect("this program starts again")
}

// Locked, so that the output of two suites does not mix.
fn print((suite, target): (&str, Target), output: &Output) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(&output.stdout).and_then(|()| stdout.write_all(&output.stderr));
    written.expect("standard output can be written");
    if !output.status.success() {
        writeln!(stdout, "{suite} on {target}: {}", output.status).expect("as above");
    }
}
