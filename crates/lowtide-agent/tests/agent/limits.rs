//! Programs whose memory is limited (`LOWTIDE_MEMORY`): what they are told, and what they are refused.

use lowtide_types::Bytes;

use crate::program::{Program, Route, World};
use crate::{MIB, slept};

/// A machine that has 400 MiB for programs, of which a context takes 64.
const SMALL: (&str, &str) = ("LOWTIDE_DOUBLE", "total=432MiB");

fn limited(world: &World, cap: &str) -> Program {
    world.start_with(Route::Dlsym, &[SMALL, ("LOWTIDE_MEMORY", cap)])
}

fn told(program: &mut Program, free_mib: u64, total_mib: u64) {
    assert_eq!(program.text("told"), format!("{} {}", free_mib * MIB, total_mib * MIB));
}

#[test]
fn a_cap_is_told_as_the_whole_device_and_no_kind_of_memory_goes_beyond_it() {
    for cap in ["200MiB", "50%"] {
        let world = World::new();
        let mut program = limited(&world, cap);
        assert_eq!(program.number("total"), 200 * MIB);
        told(&mut program, 136, 200);
        program.does(&format!("alloc 0 {}; write 0 5", 64 * MIB));
        program.makes(1, 64 * MIB);
        told(&mut program, 8, 200);
        for line in ["alloc 2", "create 2", "alloc-async 2"] {
            assert_eq!(program.text(&format!("{line} {}", 10 * MIB)), "error 2", "{line}");
        }
        assert!(world.said().contains("may have 200.0 MiB (--memory)"), "{}", world.said());
        // To the byte, and small ones too.
        program.does(&format!("alloc 3 {}", 8 * MIB));
        told(&mut program, 0, 200);
        assert_eq!(program.text("alloc 4 4096"), "error 2");
        // What sleeps counts.
        slept(&program);
        told(&mut program, 0, 200);
        program.does("check 0; free 3");
        told(&mut program, 8, 200);
        let [limit] = &program.status().limits[..] else { panic!("{:?}", program.status()) };
        assert_eq!((limit.own, limit.cap, limit.life), (Bytes::mib(192), Bytes::mib(200), None));
        assert_eq!((limit.told_free, limit.free), (Bytes::mib(8), Bytes::mib(208)));
    }
}

#[test]
fn what_the_device_does_not_have_is_not_told_either() {
    let world = World::new();
    let mut program = limited(&world, "200MiB");
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does(&format!("alloc 0 {}", 200 * MIB));
    told(&mut program, 72, 200);
    other.does("free 0");
    told(&mut program, 136, 200);
    assert_eq!(other.number("total"), 400 * MIB);
}

#[test]
fn what_the_drivers_pool_keeps_and_nobody_uses_is_taken_for_the_next_call() {
    let world = World::new();
    let mut program = limited(&world, "200MiB");
    for line in ["alloc-async 1", "alloc 2"] {
        program.does(&format!("alloc-async 0 {}; free-async 0; end", 100 * MIB));
        program.does(&format!("{line} {}", 120 * MIB));
        let free = if line == "alloc 2" { "free 2" } else { "free-async 1" };
        program.does(&format!("{free}; end"));
    }
}
