//! `suspend` as an ordinary user: processes of others, and processes that may not be traced.
//!
//! Root may do everything, so the tests start the command, its helper and its targets as another user. Where
//! that is not possible they say why and skip.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::agents::program::{LIMIT, World};
use crate::suspend::{Idle, command, ended, helper};

/// A user without rights, whether it has a name here or not.
const USER: u32 = 65534;

/// Makes a machine whose files belong to the user; `None` where no process can be started as one.
fn world() -> Option<World> {
    let own = fs::metadata("/proc/self").expect("a process").uid();
    if own != 0 {
        eprintln!("skipped: only root can start processes of another user, and this is user {own}");
        return None;
    }
    let programs = [Path::new(env!("CARGO_BIN_EXE_lowtide")), &helper()];
    let can_read = |path: &&Path| {
        let mut test = Command::new("test");
        test.arg("-x").arg(path).uid(USER).gid(USER);
        test.status().is_ok_and(|status| status.success())
    };
    if let Some(path) = programs.iter().find(|path| !can_read(path)) {
        eprintln!("skipped: user {USER} may not start {}", path.display());
        return None;
    }
    let world = World::new();
    for folder in [world.folder().to_owned(), world.folder().join("run")] {
        chown(&folder, Some(USER), Some(USER)).expect("root may do that");
    }
    Some(world)
}

/// Runs the program as the user.
fn as_user(world: &World, arguments: &[&str]) -> (i32, String) {
    let mut command = command(world, arguments);
    // Made by root just now.
    chown(world.folder().join("locks"), Some(USER), Some(USER)).expect("root may do that");
    ended(command.uid(USER).gid(USER))
}

/// Starts a process, and waits until it runs its program.
fn started(command: &mut Command) -> Idle {
    let child = command.arg("600").stdin(Stdio::null()).spawn().expect("it starts");
    let (idle, began) = (Idle(child), Instant::now());
    let line = format!("/proc/{}/cmdline", idle.0.id());
    while !fs::read(&line).is_ok_and(|line| line.ends_with(b"600\0")) {
        assert!(began.elapsed() < LIMIT, "it does not start");
    }
    idle
}

#[test]
fn a_process_of_another_user_is_refused_with_both_users() {
    let Some(world) = world() else { return };
    let target = started(&mut Command::new("sleep"));
    for verb in ["suspend", "resume"] {
        let (code, text) = as_user(&world, &[verb, &target.0.id().to_string()]);
        assert_eq!(code, 3, "{verb}: {text}");
        let told = format!("belongs to user 0; the helper runs as user {USER}");
        assert!(text.contains(&told), "{verb}: {text}");
    }
}

#[test]
fn an_ordinary_process_of_the_user_gets_as_far_as_the_driver() {
    let Some(world) = world() else { return };
    let target = started(Command::new("sleep").uid(USER).gid(USER));
    let (code, text) = as_user(&world, &["suspend", &target.0.id().to_string()]);
    assert!(code == 3 && text.contains("has nothing on a device"), "{code}: {text}");
}

#[test]
fn a_process_that_is_not_dumpable_is_refused_with_the_reason() {
    let Some(world) = world() else { return };
    // A program that its user may start and not read: the kernel lets nobody of that user look into it.
    let program = world.folder().join("sleep");
    let usual = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| Path::new(path).is_file());
    fs::copy(usual.expect("a program"), &program).expect("a copy");
    fs::set_permissions(&program, Permissions::from_mode(0o711)).expect("root may do that");
    let target = started_unseen(Command::new(&program).uid(USER).gid(USER));
    let pid = target.0.id().to_string();
    for arguments in [&["suspend", &pid] as &[&str], &["suspend", "--force", &pid]] {
        let (code, text) = as_user(&world, arguments);
        assert!(code == 3 && text.contains("is not dumpable"), "{code}: {text}");
    }
}

/// Starts a process whose program runs when the kernel has given its files to root.
fn started_unseen(command: &mut Command) -> Idle {
    let (idle, began) = (started(command), Instant::now());
    let file = format!("/proc/{}/maps", idle.0.id());
    while fs::metadata(&file).expect("it runs").uid() != 0 {
        assert!(began.elapsed() < LIMIT, "the kernel lets its user look into it");
    }
    idle
}
