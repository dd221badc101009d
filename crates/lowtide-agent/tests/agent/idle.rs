//! A program that sleeps by itself when it is idle.

use std::time::{Duration, Instant};

use lowtide_proto::{Answer, Ask};

use crate::program::{LIMIT, Program, Route, World};

/// Waits until the program sleeps; polls the driver meanwhile.
fn falls_asleep(program: &mut Program) {
    let began = Instant::now();
    while !program.status().is_asleep {
        assert!(began.elapsed() < LIMIT, "it does not fall asleep: {:?}", program.status());
        program.does("poll");
    }
}

#[test]
fn an_idle_program_falls_asleep_by_itself_and_pollers_do_not_keep_it_awake() {
    let world = World::new();
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_FREE_ON_IDLE", "50ms")]);
    program.does("alloc 0 4194304; write 0 8");
    for _ in 0..3 {
        falls_asleep(&mut program);
        program.does("check 0");
    }
}

#[test]
fn the_quiet_time_grows_when_work_comes_back_soon_after_a_sleep() {
    let world = World::new();
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_FREE_ON_IDLE", "500ms")]);
    program.does("alloc 0 4194304; write 0 8");
    assert_eq!((program.status().idle_s, program.status().quiet_s), (Some(0.5), Some(0.5)));
    let began = Instant::now();
    // Where the machine is slow the work comes late, which is no reason to grow.
    while program.status().quiet_s <= Some(0.5) {
        assert!(began.elapsed() < LIMIT, "{:?}", program.status());
        falls_asleep(&mut program);
        program.does("check 0");
        // The worker counts the work after its answer.
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(program.status().idle_s, Some(0.5), "as it was asked for");
}

#[test]
fn a_program_that_frees_everything_and_ends_stays_asleep() {
    let world = World::new();
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_FREE_ON_IDLE", "50ms")]);
    program.does("alloc 0 4194304; alloc 1 65536; capture 0; end-capture");
    falls_asleep(&mut program);
    let touches = program.status().touches;
    for line in ["free 0", "free 1", "drop-graph", "drop-stream", "release"] {
        program.does(line);
        assert!(program.status().is_asleep, "{line} woke it");
    }
    assert_eq!(program.status().touches, touches);
}

#[test]
fn a_word_that_means_nothing_here_is_said_and_the_program_runs() {
    for word in ["task", "soon"] {
        let world = World::new();
        let program = world.start_with(Route::Dlsym, &[("LOWTIDE_FREE_ON_IDLE", word)]);
        assert_eq!(program.status().idle_s, None);
        assert!(world.said().contains("LOWTIDE_FREE_ON_IDLE"), "{}", world.said());
    }
}

#[test]
fn an_idle_sleep_gives_way_to_a_process_that_starts_and_what_a_person_types_does_not() {
    let world = World::new();
    let hidden = ("LOWTIDE_DOUBLE", "pid_offset=1000000");
    let start = |give_way: &str, more: &[(&str, &str)]| {
        let ours = [("LOWTIDE_FREE_ON_IDLE", "50ms"), ("LOWTIDE_GIVE_WAY", give_way)];
        let mut program = world.start_with(Route::Dlsym, &[&ours, more].concat());
        program.does("alloc 0 4194304; write 0 8");
        program
    };
    let gives_way = |program: &Program| program.status().gives_way.expect("it sleeps by itself");
    let mut program = start("1h", &[]);
    falls_asleep(&mut program);
    assert_eq!(gives_way(&program), "to processes that started less than 3600 s ago");
    let mut neighbour = world.start(Route::Dlsym);
    neighbour.does("alloc 0 4194304");
    program.does("check 0");
    for (give_way, more, said) in [
        ("0", &[][..], "to nobody: LOWTIDE_GIVE_WAY=0"),
        ("1h", &[hidden][..], "is not in NVML's lists"),
    ] {
        let mut other = start(give_way, more);
        assert!(gives_way(&other).contains(said), "{}", gives_way(&other));
        falls_asleep(&mut other);
    }
    // Many times its quiet time.
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(25));
        assert!(!program.status().is_asleep, "{}", gives_way(&program));
    }
    let said = format!("now: client (pid {}) started", neighbour.pid());
    assert!(gives_way(&program).starts_with(&said), "{} {said}", gives_way(&program));
    assert!(matches!(program.ask(Ask::Sleep), Answer::Slept { .. }));
    program.does("check 0");
    drop(neighbour);
    falls_asleep(&mut program);
}
