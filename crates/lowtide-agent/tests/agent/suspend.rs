//! A program that is suspended, and comes back when it needs the driver.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{self as protocol, Helper, Step};
use lowtide_proto::{Answer, Ask, Request};
use lowtide_types::{Bytes, Verdict};

use crate::MIB;
use crate::program::{LIMIT, Program, Route, World, helper};

/// Starts a program with a block of 4 MiB that can be suspended.
fn started(world: &World, variables: &[(&str, &str)]) -> Program {
    started_on_full_disk(world, "", variables)
}

/// Starts such a program, with a helper that cannot write at these writes of its journal: `2+3`.
fn started_on_full_disk(world: &World, writes: &str, variables: &[(&str, &str)]) -> Program {
    // It ends soon after the test, and its locks are of this test's machine.
    let locks = world.folder().display();
    let (helper, settings) = (helper(), format!("idle_ms=3000,locks={locks},full={writes}"));
    let mut all = vec![
        ("LOWTIDE_HELPER_PROGRAM", helper.to_str().expect("a path of letters")),
        ("LOWTIDE_HELPER", &settings),
    ];
    all.extend_from_slice(variables);
    let mut program = world.start_with(Route::Dlsym, &all);
    program.does("alloc 0 4194304; write 0 7");
    program
}

/// Suspends the program, and expects the proof.
fn suspended(program: &Program) {
    match program.ask(Ask::Suspend) {
        Answer::Suspended { suspended, .. } => {
            let steps: Vec<Step> = suspended.steps.iter().map(|step| step.step).collect();
            assert_eq!(steps, [Step::Lock, Step::Checkpoint]);
            assert_eq!(suspended.verdict, Verdict::Released, "{suspended:?}");
            for device in &suspended.devices {
                assert_eq!(device.process_after, Some(Bytes::ZERO), "{device:?}");
            }
        }
        answer => panic!("{answer:?}"),
    }
    let status = program.status();
    assert!(status.is_asleep && status.is_suspended, "{status:?}");
}

#[test]
fn a_suspended_program_comes_back_at_its_next_touch_with_its_data() {
    let world = World::new();
    let mut program = started(&world, &[]);
    for _ in 0..3 {
        suspended(&program);
        program.does("check 0");
        let status = program.status();
        assert!(!status.is_asleep && !status.is_suspended, "{status:?}");
    }
}

#[test]
fn a_suspended_program_needs_no_file_to_come_back() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    program.does("no-files; check 0");
}

#[test]
fn the_place_of_a_standard_stream_that_a_daemon_has_closed_stays_free() {
    let world = World::new();
    let mut program = started(&world, &[]);
    program.does("close-file 2");
    suspended(&program);
    program.does("is-no-file 2; check 0; is-no-file 2");
}

#[test]
fn virtual_memory_of_a_suspended_program_comes_back_and_can_be_given_back() {
    let world = World::new();
    let mut program = started(&world, &[]);
    program.makes(1, 4 * MIB);
    program.does("write 1 9");
    suspended(&program);
    program.does("check 1");
    suspended(&program);
    // The driver of a suspended process would wait, so these resume it.
    program.does("unmap 1; uncreate 1");
    let status = program.status();
    assert!(status.is_asleep && !status.is_suspended, "{status:?}");
    program.does("check 0");
}

#[test]
fn a_program_that_is_suspended_already_stays_so() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    assert_eq!(program.ask(Ask::Suspend), Answer::Asleep);
    assert_eq!(program.ask(Ask::Sleep), Answer::Asleep);
    assert_eq!(program.ask(Ask::Release { to: None }), Answer::Asleep);
    assert!(program.status().is_suspended);
    program.does("check 0");
}

#[test]
fn a_quiet_call_that_would_wait_resumes_the_program_which_sleeps_on() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    program.does("free 0");
    let status = program.status();
    assert!(status.is_asleep && !status.is_suspended, "{status:?}");
}

#[test]
fn whoever_asks_a_suspended_program_for_the_end_of_its_work_is_told_that_all_is_done() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    program.does("poll");
    assert!(program.status().is_suspended, "a poller does not bring it back");
    program.does("check 0");
}

#[test]
fn somebody_else_resumes_a_program_and_wakes_it() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    let Answer::Resumed(resumed) = program.ask(Ask::Resume) else { panic!("it stays suspended") };
    let steps: Vec<Step> = resumed.steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, [Step::Restore, Step::Unlock]);
    assert!(program.status().is_asleep);
    suspended_again(&program);
    assert!(matches!(program.ask(Ask::Wake), Answer::Woken(_)));
    assert!(!program.status().is_asleep);
    program.does("check 0");
}

/// Suspends a program that sleeps.
fn suspended_again(program: &Program) {
    let Answer::Suspended { receipts, .. } = program.ask(Ask::Suspend) else {
        panic!("{:?}", program.status())
    };
    assert!(receipts.is_empty(), "it slept already");
}

#[test]
fn an_idle_program_is_suspended_by_itself_and_again_after_a_quiet_call() {
    let world = World::new();
    let mut program =
        started(&world, &[("LOWTIDE_FREE_ON_IDLE", "50ms"), ("LOWTIDE_IDLE_TO", "suspend")]);
    program.does("alloc 1 2097152");
    for turn in ["check 0", "free 1", "check 0"] {
        wait_until_suspended(&program);
        program.does(turn);
    }
}

#[test]
fn a_status_is_told_at_every_moment_of_a_suspend() {
    let world = World::new();
    let mut program =
        started(&world, &[("LOWTIDE_FREE_ON_IDLE", "5ms"), ("LOWTIDE_IDLE_TO", "suspend")]);
    for _ in 0..40 {
        wait_until_suspended(&program);
        program.does("check 0");
    }
}

/// Asks for the status of an idle program until it is suspended.
fn wait_until_suspended(program: &Program) {
    let began = Instant::now();
    while !program.status().is_suspended {
        assert!(began.elapsed() < LIMIT, "{:?}", program.status());
    }
}

#[test]
fn a_program_that_exits_while_it_is_suspended_ends_as_it_would() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    program.end_of_input();
    assert_eq!(program.exit_code(), Some(0), "{}", world.said());
}

#[test]
fn a_program_that_exits_while_it_falls_asleep_for_a_suspend_ends_as_it_would() {
    let world = World::new();
    let mut program = started(&world, &[("LOWTIDE_DOUBLE", "copy_us=50000")]);
    program.does("alloc 1 67108864; write 1 3; reset-calls");
    thread::scope(|scope| {
        let socket = program.socket();
        scope.spawn(move || {
            let mut asker = UnixStream::connect(socket).expect("the agent listens");
            asker.write_all(Request::new(Ask::Suspend).to_line().as_bytes()).expect("it reads");
            // The process ends meanwhile.
            let _answer = asker.read(&mut [0; 1]);
        });
        while !program.text("calls").contains("cuMemcpyDtoH") {
            thread::sleep(Duration::from_millis(1));
        }
        program.tell("exit 7");
        assert_eq!(program.exit_code(), Some(7), "{}", world.said());
    });
    program.is_over();
    let helper = Helper::new(&world.folder().join("run/lowtide"), helper());
    if let Some(mut running) = helper.running().expect("it answers") {
        let answer = running.ask(protocol::Ask::List).expect("it answers");
        let protocol::Answer::List { processes } = answer else { panic!("{answer:?}") };
        assert!(processes.is_empty(), "{processes:?}");
    }
}

#[test]
fn a_program_that_becomes_another_user_while_it_is_suspended_comes_back() {
    if fs::metadata("/proc/self").expect("a process").uid() != 0 {
        return eprintln!("skipped: only root can become another user");
    }
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    program.does("become 65534; check 0");
    let answer = program.ask(Ask::Suspend);
    assert!(matches!(answer, Answer::Refused { .. }), "nobody may attach to it: {answer:?}");
    program.does("check 0");
}

#[test]
fn a_program_whose_first_thread_ends_while_it_is_suspended_comes_back() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    program.does("leave-main; first; check 0");
}

#[test]
fn a_program_without_a_helper_says_so_and_stays_awake() {
    let world = World::new();
    let nowhere = world.folder().join("nowhere");
    let variables = [("LOWTIDE_HELPER_PROGRAM", nowhere.to_str().expect("a path of letters"))];
    let mut program = started(&world, &variables);
    let Answer::Refused { reason } = program.ask(Ask::Suspend) else { panic!("it is suspended") };
    assert!(reason.contains("the helper did not start") && reason.contains("nowhere"), "{reason}");
    assert!(!program.status().is_asleep);
    program.does("check 0");
}

#[test]
fn a_touch_does_not_wait_for_a_suspend_whose_helper_does_not_start() {
    let idle = [("LOWTIDE_FREE_ON_IDLE", "50ms"), ("LOWTIDE_IDLE_TO", "suspend")];
    for settings in [&idle[..0], &idle] {
        let world = World::new();
        let [hangs, pid, end] = ["hangs", "pid", "end"].map(|name| world.folder().join(name));
        let text = format!(
            "#!/bin/sh\necho $$ >{0}.part; mv {0}.part {0}; while [ -e {0} ] && ! [ -e {1} ]; do sleep 0.1; done; exit 3\n",
            pid.display(),
            end.display()
        );
        fs::write(&hangs, text).expect("a script");
        fs::set_permissions(&hangs, fs::Permissions::from_mode(0o700)).expect("it can be run");
        let program = [("LOWTIDE_HELPER_PROGRAM", hangs.to_str().expect("a path of letters"))];
        let mut program = started(&world, &[&program, settings].concat());
        assert!(matches!(program.ask(Ask::Sleep), Answer::Slept { .. } | Answer::Asleep));
        let mut asker = UnixStream::connect(program.socket()).expect("the agent listens");
        if settings.is_empty() {
            let suspend = Request::new(Ask::Suspend).to_line();
            asker.write_all(suspend.as_bytes()).expect("it reads");
        }
        let began = Instant::now();
        while !pid.exists() {
            assert!(began.elapsed() < LIMIT, "no helper is started");
            thread::sleep(Duration::from_millis(5));
        }
        program.does("check 0");
        let pid = fs::read_to_string(&pid).expect("a number");
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        assert!(state.is_ok_and(|state| !state.contains(") Z")), "the touch waited for its end");
        fs::write(&end, "").expect("a file");
    }
}

#[test]
fn a_disk_that_is_full_after_the_lock_keeps_nobody_off_the_device() {
    let world = World::new();
    let writes: Vec<String> = (2..40).map(|number| number.to_string()).collect();
    let mut program = started_on_full_disk(&world, &writes.join("+"), &[]);
    suspended(&program);
    program.does("check 0");
    // What is written before a lock is refused, and the program is asleep as before.
    let Answer::Refused { reason } = program.ask(Ask::Suspend) else {
        panic!("nothing is written")
    };
    assert!(reason.contains("journal") && reason.ends_with("the process stays asleep"), "{reason}");
    assert!(!program.status().is_suspended);
    program.does("check 0");
}

#[test]
fn a_touch_tries_again_until_its_limit_whatever_fails() {
    let world = World::new();
    let fails = |first: u32, last: u32| {
        let faults = (first..=last).map(|nth| format!("fail=cuCheckpointProcessRestore@{nth}:999"));
        faults.collect::<Vec<_>>().join(",")
    };
    let mut program = started(&world, &[("LOWTIDE_DOUBLE", &fails(1, 6))]);
    suspended(&program);
    program.does("check 0");
    assert!(
        world.said().contains("waiting to wake: the driver refused to restore"),
        "{}",
        world.said()
    );
    drop(program);

    let variables = [("LOWTIDE_DOUBLE", &*fails(1, 12)), ("LOWTIDE_WAKE_TIMEOUT", "700ms")];
    let world = World::new();
    let mut program = started(&world, &variables);
    suspended(&program);
    let began = Instant::now();
    program.tell("check 0");
    assert_ne!(program.answer(), "0", "the call fails");
    assert!(began.elapsed().as_millis() >= 700, "after its limit, and not before");
    assert!(world.said().contains("fails with code 999: the driver refused"), "{}", world.said());
}

#[test]
fn a_program_whose_helper_was_killed_comes_back_with_another() {
    let world = World::new();
    let mut program = started(&world, &[]);
    suspended(&program);
    kill_helper(&world);
    program.does("check 0");
}

fn kill_helper(world: &World) {
    let running = Helper::new(&world.folder().join("run/lowtide"), helper()).running();
    let pid = running.expect("it answers").expect("it runs").pid().to_string();
    let killed = Command::new("kill").args(["-9", &pid]).status();
    assert!(killed.is_ok_and(|status| status.success()), "{pid}");
}

#[test]
fn a_helper_that_hangs_up_during_the_sleep_before_a_suspend_is_asked_anew() {
    let world = World::new();
    let mut program = started(&world, &[("LOWTIDE_DOUBLE", "copy_us=300000")]);
    program.does("alloc 1 67108864; write 1 3; reset-calls");
    let other = started(&world, &[]);
    thread::scope(|scope| {
        let socket = program.socket();
        let answer = scope.spawn(move || {
            let mut asker = UnixStream::connect(socket).expect("the agent listens");
            asker.write_all(Request::new(Ask::Suspend).to_line().as_bytes()).expect("it reads");
            let mut answer = String::new();
            asker.read_to_string(&mut answer).expect("it answers");
            answer
        });
        while !program.text("calls").contains("cuMemcpyDtoH") {
            thread::sleep(Duration::from_millis(1));
        }
        kill_helper(&world);
        // The next one.
        suspended(&other);
        let answer = answer.join().expect("no panic");
        assert!(answer.contains("\"suspended\""), "{answer}");
    });
    program.does("check 0");
}

#[test]
fn a_suspended_program_comes_back_without_a_helper_and_without_the_runtime_folder() {
    let remove = |path: &Path| fs::remove_dir_all(path).expect("a folder");
    let replace = |path: &Path| {
        remove(path);
        fs::write(path, "").expect("a file");
    };
    // What the helper wrote down is lost with the folder: the program's room is known all the same.
    for damage in [&remove as &dyn Fn(&Path), &replace] {
        let world = World::new();
        let small = ("LOWTIDE_DOUBLE", "total=240MiB");
        let mut program = started(&world, &[small, ("LOWTIDE_WAKE_TIMEOUT", "10s")]);
        suspended(&program);
        let mut other = world.start_with(Route::Dlsym, &[small]);
        other.does("alloc 0 4194304");
        kill_helper(&world);
        damage(&world.folder().join("run/lowtide"));
        program.does("check 0");
    }
}

#[test]
fn a_program_that_may_not_be_suspended_wakes_at_its_next_touch() {
    // Not permitted to attach; a driver without the functions; a driver that fails.
    for code in [304, 801, 999] {
        let world = World::new();
        let fault = format!("fail=cuCheckpointProcessGetState:{code}");
        let mut program = started(&world, &[("LOWTIDE_DOUBLE", &fault)]);
        let Answer::Refused { reason } = program.ask(Ask::Suspend) else { panic!("{code}") };
        assert!(reason.ends_with("the process stays asleep"), "{reason}");
        program.does("check 0");
    }
}
