//! What keeps a process from sleeping, by name, and how a person overrules it.

use std::fs;
use std::path::Path;

use lowtide_proto::{Answer, Ask};

use crate::program::{Program, Route, World, agent};
use crate::slept;

fn started(world: &World, variables: &[(&str, &str)]) -> Program {
    let mut program = world.start_with(Route::Dlsym, variables);
    program.does("alloc 0 4194304; write 0 5");
    program
}

/// Expects that the process does not sleep, for this reason.
fn refuses(program: &Program, why: &str) {
    let Answer::Refused { reason } = program.ask(Ask::Sleep) else { panic!("{why}: it slept") };
    assert!(reason.contains(why), "{reason}");
    let obstacles = program.status().obstacles;
    assert!(obstacles.iter().any(|obstacle| obstacle.contains(why)), "{obstacles:?}");
    assert!(!program.status().is_asleep);
}

#[test]
fn libraries_that_share_memory_behind_the_driver_are_named() {
    for (file, title, word) in
        [("libucp.so.0", "UCX", "ucx"), ("nvshmem_transport_ibrc.so.3", "NVSHMEM", "nvshmem")]
    {
        let world = World::new();
        let plugin = world.plugin(file);
        let mut program = started(&world, &[]);
        slept(&program);
        // It touches the device while the loader's lock is held.
        program.does(&format!("load {}", plugin.display()));
        refuses(&program, title);
        refuses(&program, file);
        program.does("check 0");

        let mut program = started(&world, &[("LOWTIDE_DESPITE", word)]);
        program.does(&format!("load {}", plugin.display()));
        slept(&program);
        program.does("check 0");
    }
}

#[test]
fn a_library_that_is_only_loaded_is_no_obstacle() {
    let world = World::new();
    let mut program = started(&world, &[]);
    for file in ["libibverbs.so.1", "libcufile.so.0", "libnvshmem_host.so.3", "libnccl.so.2"] {
        program.does(&format!("load {}", world.plugin(file).display()));
    }
    slept(&program);
    program.does("check 0");
}

#[test]
fn what_cannot_be_seen_may_be_in_the_way() {
    let world = World::new();
    let mut program = started(&world, &[]);
    slept(&program);
    // The connection that asks takes the last one.
    program.does("check 0; no-files 1");
    refuses(&program, "whether /dev/infiniband/ is open cannot be read: Too many open files");
    refuses(&program, "whether libucp. is loaded cannot be read");
    let all = ("LOWTIDE_DESPITE", "rdma,gdrcopy,cufile,ucx,nvshmem");
    let mut program = started(&world, &[all]);
    slept(&program);
    program.does("check 0; no-files 1");
    slept(&program);
    program.does("check 0");
}

#[test]
fn the_multi_process_service_is_named() {
    let world = World::new();
    let folder = world.folder().join("mps");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("control"), "").expect("a file");
    let variable = ("CUDA_MPS_PIPE_DIRECTORY", folder.to_str().expect("text"));
    refuses(&started(&world, &[variable]), "MPS");
    slept(&started(&world, &[variable, ("LOWTIDE_DESPITE", "ucx, mps")]));
    fs::remove_file(folder.join("control")).expect("a file");
    slept(&started(&world, &[variable]));
}

#[test]
fn synchronous_memory_is_named_once_it_is_asked_for() {
    let world = World::new();
    let mut program = started(&world, &[]);
    program.does("alloc 1 65536; sync-memops 1 0");
    slept(&program);
    program.does("sync-memops 1 1");
    refuses(&program, "SYNC_MEMOPS");
    let mut program = started(&world, &[("LOWTIDE_DESPITE", "sync-memops")]);
    program.does("alloc 1 65536; sync-memops 1 1");
    slept(&program);
}

#[test]
fn a_green_context_is_named_while_it_lives() {
    let world = World::new();
    let mut program = started(&world, &[]);
    program.does("green");
    refuses(&program, "a green context (cuGreenCtxCreate)");
    program.does("no-green");
    slept(&program);
    program.does("check 0");
}

#[test]
fn a_lost_context_is_named_and_stays_so() {
    let world = World::new();
    let mut program = started(&world, &[]);
    program.does("fault fail=cuCtxRecordEvent@1:719");
    assert!(matches!(program.ask(Ask::Sleep), Answer::Refused { .. }));
    refuses(&program, "a lost context");
    refuses(&program, "719");
}

#[test]
fn a_wrong_word_is_said_and_counts_for_nothing() {
    let world = World::new();
    let mut program = started(&world, &[("LOWTIDE_DESPITE", "everything")]);
    program.does(&format!("load {}", world.plugin("libucp.so.0").display()));
    refuses(&program, "UCX");
    assert!(world.said().contains("everything") && world.said().contains("gdrcopy"));
}

#[test]
fn a_library_that_binds_its_own_way_to_the_driver_is_named() {
    let world = World::new();
    let mut program = started(&world, &[]);
    // It has no way to the driver.
    program.does(&format!("load-deep {}", world.plugin("plain.so").display()));
    slept(&program);
    program.does(&format!("check 0; load-deep {}", world.interposer().display()));
    refuses(&program, "RTLD_DEEPBIND (interposer.so");
    let mut program = started(&world, &[("LOWTIDE_DESPITE", "deepbind")]);
    program.does(&format!("load-deep {}", world.interposer().display()));
    slept(&program);
    program.does("check 0");
}

#[test]
fn a_dlsym_before_the_agents_that_leads_past_it_is_named() {
    let world = World::new();
    let (interposer, agent) = (world.interposer(), agent());
    let both = |one: &Path, two: &Path| format!("{}:{}", one.display(), two.display());
    let before = both(&interposer, &agent);
    let mut program = world.start_with(Route::Linked, &[("LD_PRELOAD", &before)]);
    program.does("alloc 0 4194304; write 0 5");
    refuses(&program, "another library's dlsym");
    let behind = both(&agent, &interposer);
    let program = world.start_with(Route::Linked, &[("LD_PRELOAD", &behind)]);
    assert_eq!(program.status().obstacles, Vec::<String>::new());
    slept(&program);
}
