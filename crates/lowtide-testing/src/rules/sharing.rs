//! Memory that several processes have, by shareable handles.

use std::os::fd::AsRawFd;

use super::checkpoint::locker_of;
use super::exporter::{FILE_DESCRIPTOR, exported, exporter, fill, import, mapped};
use super::fixture::{
    Fixture, ILLEGAL_STATE, INVALID_VALUE, NOT_SUPPORTED, PAGE, Rule, SUCCESS, made,
};

pub(super) const RULES: &[Rule] = &[
    ("exported_memory_is_the_same_memory_in_another_process", the_same_memory),
    ("imported_memory_outlives_the_exporters_release_and_its_death", outlives_the_exporter),
    ("a_descriptor_keeps_memory_that_nobody_holds", kept_by_a_descriptor),
    ("memory_is_exported_only_as_what_it_was_made_for", made_for_it),
    ("a_process_with_shared_memory_is_checkpointed_and_restored", checkpointed_and_restored),
    ("a_process_that_holds_imported_memory_is_lost_by_its_restore", lost_by_its_restore),
];

fn the_same_memory(gpu: &Fixture) {
    let mut other = exporter();
    let handle = import(gpu, exported(&mut other).as_raw_fd());
    let mut properties = [0; 8];
    let code = gpu.raw.cuMemGetAllocationPropertiesFromHandle(&mut properties, handle);
    // It is not exported again.
    assert_eq!((code, properties), (SUCCESS, [1, 0, 1, 0, 0, 0, 0, 0]));
    let at = mapped(gpu, handle);
    assert_eq!(gpu.byte(at), 7);
    fill(gpu, at, 9);
    assert_eq!(other.ask("byte"), 9);
    let retained = made(|retained| gpu.raw.cuMemRetainAllocationHandle(retained, at));
    assert_eq!(retained, handle);
}

fn outlives_the_exporter(gpu: &Fixture) {
    for exporter_dies in [false, true] {
        let mut other = exporter();
        let at = mapped(gpu, import(gpu, exported(&mut other).as_raw_fd()));
        if exporter_dies {
            drop(other);
        } else {
            assert_eq!(other.ask("release"), SUCCESS);
        }
        assert_eq!(gpu.byte(at), 7, "{exporter_dies}");
        fill(gpu, at, 9);
        assert_eq!(gpu.byte(at + PAGE - 1), 9);
    }
}

fn kept_by_a_descriptor(gpu: &Fixture) {
    let mut other = exporter();
    let descriptor = exported(&mut other);
    assert_eq!(other.ask("release"), SUCCESS);
    drop(other);
    let at = mapped(gpu, import(gpu, descriptor.as_raw_fd()));
    assert_eq!(gpu.byte(at), 7);
}

fn made_for_it(gpu: &Fixture) {
    let code = gpu.raw.cuMemExportToShareableHandle(&mut 0, gpu.create(1), FILE_DESCRIPTOR, 0);
    assert_eq!(code, INVALID_VALUE);
}

fn checkpointed_and_restored(_gpu: &Fixture) {
    let kinds: [&[&str]; 4] = [&[], &["export"], &["import", "let_go"], &["allocate", "handle"]];
    for kind in kinds {
        let mut other = exporter();
        for word in kind {
            other.0.ask(word);
        }
        assert_eq!(other.ask("byte"), 7, "it is ready");
        locker_of(other.0.child.id(), "").steps(&["lock", "checkpoint", "restore", "unlock"]);
        assert_eq!(other.ask("byte"), 7, "{kind:?}");
    }
}

fn lost_by_its_restore(_gpu: &Fixture) {
    let mut other = exporter();
    assert_eq!(other.ask("import"), SUCCESS);
    let mut locker = locker_of(other.0.child.id(), "");
    locker.steps(&["lock", "checkpoint"]);
    assert_eq!((locker.ask("restore"), locker.ask("unlock")), (NOT_SUPPORTED, ILLEGAL_STATE));
}
