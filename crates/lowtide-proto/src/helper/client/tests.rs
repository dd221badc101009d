use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use super::*;
use crate::helper::{ProcessState, ProcessStatus, Target};

fn socket(folder: &TempDir) -> PathBuf {
    let namespace = fs::read_link("/proc/self/ns/pid").expect("a namespace");
    folder.path().join(socket_name(&namespace.to_string_lossy()))
}

/// Keeps tests with programs apart. A process that another test starts has, for a moment, every file of this
/// one open, and a program that is open for writing cannot be run.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A helper that is started from a script with this text.
fn scripted(folder: &TempDir, script: &str) -> Helper {
    let program = folder.path().join("program");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("it can be run");
    Helper::new(folder.path(), program)
}

/// Greets one client and answers its lines with these.
fn serve(listener: &UnixListener, greeting: &str, answers: &[&str]) {
    let (mut client, _) = listener.accept().expect("a client");
    client.write_all(greeting.as_bytes()).expect("the client reads");
    for answer in answers {
        let (mut byte, mut line) = ([0], Vec::new());
        while byte != *b"\n" {
            client.read_exact(&mut byte).expect("the client writes a line");
            line.push(byte[0]);
        }
        Request::from_line(&line).expect("a question");
        client.write_all(answer.as_bytes()).expect("the client reads");
    }
}

#[test]
fn a_helper_that_listens_is_asked() {
    let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
    let helper = scripted(&folder, "exit 1");
    assert!(helper.running().expect("nobody listens").is_none());
    let listener = UnixListener::bind(socket(&folder)).expect("a socket");
    let target = Target { pid: 3, start_ticks: 4 };
    let status = ProcessStatus { target, state: ProcessState::Checkpointed, needs: Vec::new() };
    let (one, two) = (Answer::State(status), Answer::List { processes: Vec::new() });
    thread::scope(|scope| {
        scope.spawn(|| {
            // Both answers at once: the second is kept for the second question.
            serve(&listener, &Greeting::line(77), &[&(one.to_line() + &two.to_line()), ""]);
        });
        let mut connection = helper.connect().expect("it listens");
        assert_eq!(connection.pid(), 77);
        assert_eq!(connection.ask(Ask::State { target }).expect("an answer"), one);
        assert_eq!(connection.ask(Ask::List).expect("an answer"), two);
    });
}

#[test]
fn a_helper_that_is_not_of_this_version_or_goes_away_is_told_apart() {
    let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
    let helper = scripted(&folder, "exit 1");
    let listener = UnixListener::bind(socket(&folder)).expect("a socket");
    thread::scope(|scope| {
        scope.spawn(|| {
            serve(&listener, "{\"version\":9,\"pid\":5}\n", &[]);
            serve(&listener, "hello\n", &[]);
            serve(&listener, &Greeting::line(77), &[]);
            serve(&listener, "", &[]);
        });
        let other = helper.connect().map(drop);
        assert!(matches!(other, Err(HelperError::Version { found: 9, pid: 5 })), "{other:?}");
        assert!(matches!(helper.connect(), Err(HelperError::Format(_))));
        let mut gone = helper.connect().expect("it greets");
        assert!(matches!(gone.ask(Ask::List), Err(HelperError::NoAnswer(_))));
        assert!(helper.running().expect("it was about to end").is_none());
    });
}

#[test]
fn a_program_that_fails_is_named_and_leaves_no_child() {
    let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
    let failed = scripted(&folder, "exit 7").connect().map(drop);
    let Err(HelperError::NotStarted { program, source }) = failed else { panic!("{failed:?}") };
    assert!(program.ends_with("program") && source.to_string().contains('7'), "{source}");
    let missing = Helper::new(folder.path(), folder.path().join("nothing"));
    assert!(matches!(missing.connect(), Err(HelperError::NotStarted { .. })));
    let beside = folder.path().join("lowtide");
    assert!(matches!(Helper::find_program(&beside), Err(HelperError::NotInstalled { .. })));
    fs::write(folder.path().join(PROGRAM), "").expect("a file");
    assert_eq!(Helper::find_program(&beside).expect("it is there"), folder.path().join(PROGRAM));
}

#[test]
fn the_program_gets_few_variables_and_no_preloaded_library() {
    let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
    let mut helper = scripted(&folder, "/usr/bin/env > \"$1/env\"; exit 3");
    helper.variables = vec![("LOWTIDE_DOUBLE".into(), "devices=2".into())];
    assert!(helper.connect().is_err());
    let text = fs::read_to_string(folder.path().join("env")).expect("what it got");
    let names: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
    assert!(names.contains(&"LOWTIDE_DOUBLE"), "{text}");
    // The shell adds these.
    let of_the_shell = ["LOWTIDE_DOUBLE", "PWD", "SHLVL", "_", "OLDPWD", "PATH"];
    assert!(names.iter().all(|name| of_the_shell.contains(name)), "{text}");
}

#[test]
fn a_full_queue_is_no_wait_without_an_end() {
    let (_alone, folder) = (alone(), TempDir::new().expect("a folder"));
    let path = socket(&folder);
    let _listener = UnixListener::bind(&path).expect("a socket");
    let mut waiting = Vec::new();
    // Somebody who never accepts: the queue has an end.
    let full = loop {
        match connect(&path) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100_000, "the queue has no end");
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock, "{full}");
    let asked = scripted(&folder, "exit 1").connect().map(drop);
    assert!(matches!(asked, Err(HelperError::NoAnswer(_))), "{asked:?}");
}
