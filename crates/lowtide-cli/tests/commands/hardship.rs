//! What every program is put through: no room to write, too few threads, too little address space. Its
//! answer is an error and an exit code of ours, and never a panic.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::PROGRAM;
use crate::program::{Finished, Machine};

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Asserts that a command ended with one of these codes and did not panic.
#[track_caller]
pub(crate) fn assert_ended(finished: &Finished, codes: &[i32], what: &str) {
    let (status, err) = (finished.output.status, finished.err());
    assert!(status.code().is_some_and(|code| codes.contains(&code)), "{what}: {status}: {err}");
    assert!(!err.contains("panicked"), "{what}: {err}");
    // The allocator that they share ends both with the name of the first.
    let has_reason = ["lowtide: ", "lowtide-bench: "].iter().any(|name| err.contains(name));
    assert!(status.code() != Some(3) || has_reason, "{what}: no reason: {err}");
}

fn full() -> fs::File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// Runs commands whose output cannot be written.
pub(crate) fn without_output(machine: &Machine, lines: &[String]) {
    for line in lines {
        let mut command = machine.command(PROGRAM, &words(line));
        command.stdout(full()).stderr(Stdio::piped());
        let finished = Finished { output: command.spawn().unwrap().wait_with_output().unwrap() };
        assert_ended(&finished, &[3], line);
        let told = "writing to standard output: No space left";
        assert!(finished.err().contains(told), "{line}: {}", finished.err());
    }
}

/// Runs commands whose log cannot be written. Each ends with the code beside it.
pub(crate) fn without_log(machine: &Machine, lines: &[(String, i32)]) {
    for (line, expected) in lines {
        let mut command = machine.command(PROGRAM, &words(line));
        command.env("LOWTIDE_LOG", "trace").stdout(Stdio::null()).stderr(full());
        let status = command.status().unwrap();
        assert_eq!(status.code(), Some(*expected), "{line}: {status}");
    }
}

/// Runs commands with too few threads; `lines` makes them for a folder that everybody may write.
pub(crate) fn with_few_threads(
    machine: &Machine,
    lines: impl FnOnce(&Path) -> Vec<String>,
) -> Vec<(u32, String, Finished)> {
    // The limit does not bind root, so the program runs as nobody, where nobody can reach it.
    let folder = tempfile::Builder::new().prefix("lowtide-threads-").tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("program");
    fs::copy(PROGRAM, &program).unwrap();
    let is_root = lowtide_device::private_files::effective_user() == 0;
    let limited = |threads: u32, arguments: &[&str]| {
        let limit = format!("--nproc={threads}");
        let nobody = ["setpriv", "--reuid", "65534", "--clear-groups"];
        let all = [if is_root { &nobody[..] } else { &[] }, &["prlimit", &limit]].concat();
        let mut command = machine.command(all[0], &all[1..]);
        command.arg(&program).args(arguments).env("XDG_CACHE_HOME", folder.path().join("cache"));
        command.output().map(|output| Finished { output })
    };
    if !limited(100_000, &["--version"]).is_ok_and(|finished| finished.output.status.success()) {
        println!("skipped: setpriv or prlimit is missing, or nobody cannot run the program");
        return Vec::new();
    }
    let lines = lines(folder.path());
    let mut ended = Vec::new();
    for threads in [1, 2, 4] {
        for line in &lines {
            let finished = limited(threads, &words(line)).unwrap();
            assert_ended(&finished, &[0, 3], &format!("{line} with {threads} threads"));
            ended.push((threads, line.clone(), finished));
        }
    }
    ended
}

/// Runs commands with too little address space.
pub(crate) fn with_little_address_space(machine: &Machine, lines: &[String]) {
    for kib in [20_000, 60_000] {
        for line in lines {
            let limited = format!("ulimit -v {kib} && exec \"$@\"");
            let shell = [&["-c", &limited, "sh", PROGRAM], &words(line)[..]].concat();
            let finished = Finished { output: machine.command("sh", &shell).output().unwrap() };
            // A thread for which the C library has no memory for a destructor is ended by the library, with
            // the whole process. Nobody can catch that.
            if !finished.err().contains("Fatal glibc error: failed to register TLS destructor") {
                assert_ended(&finished, &[0, 3], &format!("{line} with {kib} KiB"));
            }
        }
    }
}

/// Waits until something has happened. Fails after minutes, which nothing here takes.
#[track_caller]
pub(crate) fn until(what: &str, mut has_happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !has_happened() {
        assert!(began.elapsed() < Duration::from_secs(300), "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
