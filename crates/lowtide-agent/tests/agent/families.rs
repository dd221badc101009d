//! Processes of one `lowtide run`: they take turns as one program, with the helper that decides.

use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::Target;

use crate::MIB;
use crate::crowd::Crowd;
use crate::program::{LIMIT, Program, Route};

/// Starts a process of the test's own run, or one that is apart. The machine has 98 MiB for programs.
fn start(crowd: &Crowd, is_kin: bool) -> Program {
    let family = Target::of(std::process::id()).expect("this process").to_text();
    let variables =
        [&crowd.variables()[..], &[("LOWTIDE_FAMILY", family.as_str())][..usize::from(is_kin)]];
    crowd.world.start_with(Route::Dlsym, &variables.concat())
}

fn with_memory(crowd: &Crowd, is_kin: bool, mib: u64) -> Program {
    let mut program = start(crowd, is_kin);
    program.does(&format!("alloc 0 {}; write 0 {mib}", mib * MIB));
    program
}

/// Waits until so many of some programs are asleep, and no more: a call has its memory while the last of it leaves.
fn sleep(programs: &[&Program], asleep: usize) {
    let began = Instant::now();
    loop {
        let found = programs.iter().filter(|program| program.status().is_asleep).count();
        if found == asleep {
            return;
        }
        assert!(found < asleep && began.elapsed() < LIMIT, "{found} are asleep");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_processes_of_a_run_give_way_and_come_back_together() {
    for is_kin in [true, false] {
        let crowd = Crowd::new();
        let mut kin = [30, 20].map(|mib| with_memory(&crowd, is_kin, mib));
        let mut other = crowd.start(48);
        sleep(&[&kin[0], &kin[1], &other], 1 + usize::from(is_kin));
        for turn in 0..3 {
            kin[0].does(&format!("check 0; write 0 {turn}"));
            if is_kin {
                sleep(&[&kin[1], &other], 2);
            }
            kin[1].does(&format!("check 0; write 0 {turn}"));
            if is_kin {
                sleep(&[&kin[0], &kin[1]], 0);
            }
            other.does(&format!("check 0; write 0 {turn}; check 0"));
        }
        for program in &mut kin {
            program.does("check 0");
        }
    }
}

#[test]
fn a_run_that_needs_more_than_the_device_is_refused_at_once_with_its_numbers() {
    let crowd = Crowd::new();
    let mut first = with_memory(&crowd, true, 52);
    let mut second = start(&crowd, true);
    assert_eq!(second.text(&format!("alloc 0 {}", 48 * MIB)), "error 2");
    let said = crowd.world.said();
    assert!(said.contains("its family takes turns as one program"), "{said}");
    assert!(said.contains(&format!("process {} has 53.0 MiB", first.pid())), "{said}");
    // Apart it waits for its turn.
    let mut apart = with_memory(&crowd, false, 48);
    first.does("check 0");
    apart.does("check 0");
}

#[test]
fn a_process_that_cannot_sleep_keeps_its_run_where_it_is_and_says_so() {
    let crowd = Crowd::new();
    let mut kin = [30, 20].map(|mib| with_memory(&crowd, true, mib));
    kin[1].does("green");
    let mut other = crowd.world.start_with(Route::Dlsym, &crowd.variables());
    assert_eq!(other.text(&format!("alloc 0 {}", 48 * MIB)), "error 2");
    crowd.waits_for("no process of this `lowtide run` gives way to others");
    assert!(crowd.world.said().contains(&kin[1].pid()), "{}", crowd.world.said());
    kin[1].does("no-green");
    assert_eq!(other.text(&format!("alloc 0 {}", 48 * MIB)), "ok");
    sleep(&[&kin[0], &kin[1]], 2);
    for program in &mut kin {
        program.does("check 0");
    }
}

#[test]
fn memory_that_processes_of_a_run_share_sleeps_with_them_and_keeps_its_addresses() {
    let crowd = Crowd::new();
    let bytes = 8 * MIB;
    let mut kin = [20, 20].map(|mib| with_memory(&crowd, true, mib));
    // Each has memory of the other open.
    for (number, seed) in [(0, 5), (1, 6)] {
        kin[number].does(&format!("alloc 1 {bytes}; write 1 {seed}"));
        let handle = kin[number].text("handle 1 0");
        let other = &mut kin[1 - number];
        other.does(&format!("open 2 {bytes} 1 {handle}; seed 2 {seed}; check 2"));
    }
    let mut other = crowd.start(40);
    for turn in 10..14 {
        sleep(&[&kin[0], &kin[1]], 2);
        let number = turn % 2;
        let (writer, seed) = (&mut kin[number], 10 * turn);
        writer.does(&format!("check 0; check 1; check 2; write 2 {seed}; check 2"));
        kin[1 - number].does(&format!("seed 1 {seed}; check 0; check 1; check 2"));
        other.does("check 0; write 0 9; check 0");
    }
    // What was closed meanwhile stays closed, and what its process took with it harms nobody.
    other.does("check 0");
    kin[0].does("close 2");
    let [mut left, gone] = kin;
    gone.kill();
    left.does("check 0");
    other.does("check 0");
}

#[test]
fn a_cap_is_for_all_processes_of_a_run() {
    let world = crate::program::World::new();
    let family = Target::of(std::process::id()).expect("this process").to_text();
    let capped = |family: &str| {
        let cap = [("LOWTIDE_MEMORY", "60MiB"), ("LOWTIDE_FAMILY", family)];
        let machine = ("LOWTIDE_DOUBLE", "total=200MiB,reserved=2MiB,context=1MiB");
        world.start_with(Route::Dlsym, &[&cap[..], &[machine]].concat())
    };
    let (mut first, mut second, mut apart) = (capped(&family), capped(&family), capped(""));
    first.does(&format!("alloc 0 {}", 20 * MIB));
    second.does(&format!("alloc 0 {}", 30 * MIB));
    for program in [&mut first, &mut second] {
        assert_eq!(program.text("told"), format!("{} {}", 8 * MIB, 60 * MIB));
        assert_eq!(program.text(&format!("alloc 1 {}", 10 * MIB)), "error 2");
    }
    assert!(world.said().contains("other processes of its run have"), "{}", world.said());
    apart.does(&format!("alloc 0 {}; free 0", 58 * MIB));
    // To the byte, what one frees the other may have, and asleep it counts too.
    first.does(&format!("alloc 1 {}", 8 * MIB));
    assert_eq!(second.text("alloc 1 4096"), "error 2");
    crate::slept(&first);
    assert_eq!(second.text("told"), format!("0 {}", 60 * MIB));
    first.does("free 1");
    second.does(&format!("alloc 1 {}", 8 * MIB));
    let limits = second.status().limits;
    assert_eq!((limits[0].own.0, limits[0].kin.0), (39 * MIB, 21 * MIB));
    // What a process had that was killed is free at once.
    first.kill();
    let began = Instant::now();
    while second.text(&format!("alloc 2 {}", 20 * MIB)) != "ok" {
        assert!(began.elapsed() < LIMIT, "its record is stale");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_that_has_ended_leaves_no_records_of_its_cap_once_another_begins() {
    let world = crate::program::World::new();
    let capped = |family: &str| {
        let variables = [("LOWTIDE_MEMORY", "128MiB"), ("LOWTIDE_FAMILY", family)];
        let mut program = world.start_with(Route::Dlsym, &variables);
        program.does(&format!("alloc 0 {MIB}"));
        program
    };
    let records = |family: &str| {
        let names = std::fs::read_dir(world.folder().join("run/lowtide")).expect("a folder");
        let names = names.map(|entry| entry.expect("an entry").file_name());
        let is_of = |name: &std::ffi::OsString| {
            name.to_string_lossy().starts_with(&format!("run-{family}-"))
        };
        names.filter(is_of).count()
    };
    let (ended, going_on, next) = ("4194300-1", "4194301-1", "4194302-1");
    capped(ended).kill();
    let _other = capped(going_on);
    let _next = capped(next);
    assert_eq!(records(ended), 0);
    assert_eq!((records(going_on), records(next)), (2, 2), "a record and a lock");
}
