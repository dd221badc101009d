//! Virtual memory that the program makes itself, as JAX and torch's expandable segments do.

use lowtide_proto::{Answer, Ask};
use lowtide_types::Bytes;

use crate::program::{Program, Route, World};
use crate::{MIB, ROUTES, sleep, slept};

#[test]
fn virtual_memory_of_a_program_leaves_the_device_and_comes_back_by_every_route() {
    for route in ROUTES {
        let mut program = Program::start(route);
        let bare = program.number("info");
        program.makes(0, 8 * MIB);
        program.makes(1, 2 * MIB);
        program.does("write 0 5; write 1 6");
        assert_eq!(program.number("info") - bare, 10 * MIB, "{route:?}");
        let status = program.status();
        assert!(status.staying.is_empty(), "{route:?}: {status:?}");
        assert_eq!((status.contexts[0].blocks, status.contexts[0].bytes), (2, Bytes::mib(10)));
        assert_eq!(status.contexts[0].on_device, Bytes::mib(10));
        slept(&program);
        let asleep = program.number("info") - bare;
        assert!(asleep <= 4 * MIB, "{route:?}: {asleep} bytes are left");
        assert!(program.status().is_asleep, "{route:?}");
        program.does("check 0; check 1");
        assert!(!program.status().is_asleep, "{route:?}");
        assert!(program.status().obstacles.is_empty(), "{route:?}");
    }
}

#[test]
fn segments_grow_and_shrink_between_sleeps() {
    let mut program = Program::start(Route::Dlsym);
    let bare = program.number("info");
    // PyTorch reserves much, maps handles one behind the other, and takes some away again.
    program.does(&format!("reserve 60 {}", 64 * MIB));
    for number in 0..8 {
        program.does(&format!("inside {number} 60 {} {}", number * 2 * MIB, 2 * MIB));
        program.does(&format!("create {number} {}; map {number} {number}", 2 * MIB));
        program.does(&format!("grant {number} 3; write {number} {number}"));
        if number % 3 == 0 {
            slept(&program);
        }
    }
    slept(&program);
    // A trim does not wake the program.
    for number in [1, 6] {
        program.does(&format!("unmap {number}; uncreate {number}"));
    }
    assert!(program.status().is_asleep, "a free does not wake");
    assert_eq!(program.status().contexts[0].bytes, Bytes::mib(12));
    let rest = [0, 2, 3, 4, 5, 7];
    for number in rest {
        program.does(&format!("check {number}"));
    }
    assert_eq!(program.text("check 1"), "error 1", "nothing is mapped there");
    slept(&program);
    program.does(&format!("create 1 {}; map 1 1; grant 1 3; write 1 77", 2 * MIB));
    slept(&program);
    for number in [0, 1, 2, 3, 4, 5, 7] {
        program.does(&format!("check {number}; unmap {number}; uncreate {number}"));
    }
    program.does("unreserve 60");
    let left = program.number("info") - bare;
    assert!(left <= 4 * MIB, "{left} bytes are left");
    assert_eq!(program.status().contexts[0].blocks, 0);
}

#[test]
fn a_handle_lives_while_it_is_referenced_or_mapped() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 2 * MIB);
    let bare = program.number("info") - 2 * MIB;
    program.does("write 0 9");
    // Released right after it was mapped, and retained by its address, as XLA frees.
    program.does("uncreate 0");
    slept(&program);
    program.does("check 0");
    assert_eq!(program.number("retain 0 0"), 1, "the same handle");
    slept(&program);
    program.does("unmap 0");
    assert!(program.status().is_asleep);
    assert_eq!(program.status().contexts[0].blocks, 1, "it is still referenced");
    program.does("map 0 0; grant 0 3; check 0; unmap 0; uncreate 0; unreserve 0");
    assert_eq!(program.number("info"), bare);
    assert_eq!(program.text("uncreate 0"), "error 1", "it was released");
    assert_eq!(program.text("map 0 0"), "error 1", "it is gone");
}

#[test]
fn a_handle_in_two_places_and_one_in_none_keep_their_bytes() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 4 * MIB);
    program.does(&format!("reserve 1 {}; map 1 0; grant 1 1; write 0 8", 4 * MIB));
    program.makes(2, 2 * MIB);
    program.does("write 2 4; unmap 2");
    slept(&program);
    program.does("check 0");
    slept(&program);
    program.does(&format!("reserve 3 {}; map 3 2; grant 3 3; same 3 2; check 3", 2 * MIB));
    program.does("same 1 0; check 1");
    slept(&program);
    assert_eq!(program.number("access 1"), 1, "it may be read there, as before");
    assert_eq!(program.number("access 0"), 3);
    assert_eq!(program.text("write 1 3"), "error 1");
}

#[test]
fn the_rules_of_the_driver_hold_asleep() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 4 * MIB);
    program.does("write 0 8");
    slept(&program);
    assert_eq!(program.text("unreserve 0"), "error 1", "something is mapped there");
    program.does(&format!("inside 1 0 {} {}", 2 * MIB, 2 * MIB));
    assert_eq!(program.text("unmap 1"), "error 1", "a mapping is not unmapped in part");
    assert_eq!(program.text("properties 0"), "1 0 1 0 0");
    assert!(program.status().is_asleep);
    assert_eq!(program.number("range 0 7"), 1);
    slept(&program);
    assert_eq!(program.number("attribute 0 18"), 4 * MIB);
    program.does("check 0");
}

#[test]
fn memory_keeps_the_properties_that_it_was_made_with() {
    let mut program = Program::start(Route::Dlsym);
    let bare = program.number("info");
    // A file descriptor may be asked for, and another process's network card.
    program.does(&format!("create 0 {0} 1 0; create 1 {0} 0 256", 2 * MIB));
    for number in [0, 1] {
        program.does(&format!("reserve {number} {}; map {number} {number}", 2 * MIB));
        program.does(&format!("grant {number} 3; write {number} {number}"));
    }
    slept(&program);
    assert!(program.number("info") - bare <= 4 * MIB);
    program.does("check 0; check 1");
    assert_eq!(program.text("properties 0"), "1 1 1 0 0");
    // Somebody else may use it from now on, so the process stays awake until the memory is gone.
    assert_eq!(program.text("export 1"), "error 1");
    slept(&program);
    program.number("export 0");
    let Answer::Refused { reason } = sleep(&program) else { panic!() };
    assert!(reason.contains("cuMemExportToShareableHandle"), "{reason}");
    program.does("check 0; unmap 0; uncreate 0");
    slept(&program);
    program.does("check 1");
}

#[test]
fn memory_that_is_compressed_stays_and_is_named() {
    let mut program = Program::start(Route::Dlsym);
    program.does(&format!("create 0 {} 0 1", 2 * MIB));
    let staying = program.status().staying;
    assert_eq!((staying[0].count, staying[0].bytes), (1, Bytes::mib(2)), "{staying:?}");
    program.does("uncreate 0");
    assert!(program.status().staying.is_empty());
}

#[test]
fn a_release_that_needs_nothing_leaves_it_mapped() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 4 * MIB);
    program.does("write 0 8");
    let Answer::Released { .. } = program.ask(Ask::Release { to: Some(Bytes::gib(1)) }) else {
        panic!()
    };
    assert!(!program.status().is_asleep);
    program.does("check 0");
}

#[test]
fn a_destroyed_context_leaves_handles_that_can_be_given_back() {
    for is_asleep in [false, true] {
        let mut program = Program::start(Route::Dlsym);
        program.makes(0, 4 * MIB);
        program.does(&format!("write 0 8; create 1 {}", 2 * MIB));
        if is_asleep {
            slept(&program);
        }
        program.does("release");
        assert!(program.status().contexts.is_empty());
        program.does("start");
        if !is_asleep {
            // The driver's handles outlive a context.
            program.does("check 0");
            let staying = program.status().staying;
            assert_eq!((staying[0].count, staying[0].bytes), (2, Bytes::mib(6)), "{staying:?}");
        }
        program.makes(2, 2 * MIB);
        program.does("write 2 3");
        slept(&program);
        program.does("unmap 0; uncreate 0; unreserve 0; uncreate 1");
        assert!(program.status().staying.is_empty());
        program.does("check 2; unmap 2; uncreate 2");
        let live = program.text("live");
        assert!(live.contains("\"handles\":0,") && live.contains("\"mappings\":0,"), "{live}");
    }
}

#[test]
fn a_wake_without_room_leaves_it_asleep_and_whole() {
    let world = World::new();
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_WAKE_TIMEOUT", "0s")]);
    program.makes(0, 4 * MIB);
    program.does("write 0 8; alloc 1 4194304; write 1 9");
    slept(&program);
    // Room for one of the two.
    let foreign = (4 << 30) - program.number("info") - 6 * MIB;
    program.does(&format!("fault foreign=7:{foreign}"));
    for _ in 0..2 {
        assert_eq!(program.text("check 0"), "error 2");
        assert!(program.status().is_asleep);
    }
    program.does("fault foreign=off; check 0; check 1");
}

#[test]
fn a_forked_child_and_a_second_context_do_no_harm() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 4 * MIB);
    program.does("write 0 8; second");
    program.makes(1, 2 * MIB);
    program.does("write 1 9");
    assert_eq!(program.status().contexts.len(), 2);
    slept(&program);
    program.does("fork");
    assert!(program.status().is_asleep, "the child has not woken its parent");
    program.does("check 1; check 0; fork");
    slept(&program);
    program.does("unmap 0; uncreate 0; check 1");
}

#[test]
fn a_graph_that_uses_it_runs_after_a_sleep() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 4 * MIB);
    program.does("capture 0");
    // Segments grow and shrink during a capture, too.
    program.makes(1, 2 * MIB);
    program.does("unmap 1; uncreate 1; end-capture");
    slept(&program);
    program.does("replay 0");
}

#[test]
fn memory_that_was_never_written_needs_no_memory_of_the_host() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 64 * MIB);
    program.does("zero 0");
    let Answer::Slept { receipts } = sleep(&program) else { panic!() };
    let text = serde_json::to_string(&receipts).expect("a text");
    let nothing = "0.0 MiB copied, 0.0 MiB unchanged\",\"bytes\":67108864";
    assert!(text.contains(nothing), "{text}");
    program.does("zeros 0");
}

#[test]
fn its_number_stays_the_same() {
    let mut program = Program::start(Route::Dlsym);
    program.makes(0, 2 * MIB);
    program.makes(1, 2 * MIB);
    let numbers = [0, 1].map(|block| program.number(&format!("attribute {block} 7")));
    assert_ne!(numbers[0], numbers[1]);
    slept(&program);
    let asleep = [0, 1].map(|block| program.number(&format!("attribute {block} 7")));
    assert_eq!(asleep, numbers);
    assert!(program.status().is_asleep, "a question that was asked before does not wake");
    program.does("zero 0");
    assert_eq!(program.number("attribute 0 7"), numbers[0]);
    assert_eq!(program.number("attribute 1 7"), numbers[1]);
}

#[test]
fn plain_memory_has_no_handle_and_asking_for_it_does_no_harm() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; reserve 1 4194304");
    assert_eq!(program.text("retain 0 0"), "error 1");
    assert_eq!(program.text("retain 1 0"), "error 1");
    slept(&program);
}

/// Any context of the program may use its memory, also one in which it has allocated nothing, on the same device or on
/// another that was given access.
#[test]
fn work_in_every_context_of_the_program_keeps_it_awake() {
    for device in [0, 1] {
        let world = World::new();
        let settings = [("LOWTIDE_DOUBLE", "devices=2,late_us=3600000000")];
        let mut program = world.start_with(Route::Dlsym, &settings);
        program.makes(0, 4 * MIB);
        program.does(&format!("zero 0; grant-to 0 {device}; second {device}"));
        slept(&program);
        program.does("begin 0");
        let answer = sleep(&program);
        let Answer::Refused { reason } = &answer else { panic!("device {device}: {answer:?}") };
        assert!(reason.contains("busy: work is running"), "{reason}");
        program.does("end");
        slept(&program);
        program.does("no-second; zero 0");
        slept(&program);
    }
}
