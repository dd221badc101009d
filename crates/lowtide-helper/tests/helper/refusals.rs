//! What the helper refuses, and that nothing happens then.

use lowtide_proto::helper::{Answer, Ask, ProcessState, Refusal, Step, Suspend, Target};

use crate::world::{World, ask, kill, refused, state, until};

#[test]
fn processes_that_cannot_be_suspended_are_refused_with_the_reason() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(8));
    let pid = program.target.pid;
    let suspend = |target| {
        Ask::Suspend(Suspend {
            target,
            lock_limit_ms: 1000,
            limit_ms: 10_000,
            force: false,
            is_alone: false,
        })
    };
    let older = Target { start_ticks: 1, ..program.target };
    assert_eq!(refused(&helper, suspend(older)), Refusal::Ended { pid });
    let this = Target::of(std::process::id()).expect("it runs");
    assert_eq!(refused(&helper, suspend(this)), Refusal::NotOnDevice { pid: this.pid });
    let its = helper.connect().expect("it listens").pid();
    let itself = Target::of(its).expect("it runs");
    assert_eq!(refused(&helper, suspend(itself)), Refusal::Helper { pid: its });
    program.signal("-STOP");
    assert_eq!(refused(&helper, suspend(program.target)), Refusal::Stopped { pid });
    program.signal("-CONT");
    program.is_right();
    program.kill_it();
    assert_eq!(refused(&helper, suspend(program.target)), Refusal::Ended { pid });
}

#[test]
fn a_driver_that_refuses_a_checkpoint_leaves_the_process_running() {
    let world = World::new();
    let helper = world.helper_with("fail=cuCheckpointProcessCheckpoint@1:801");
    let mut program = world.program(8);
    let refusal = refused(&helper, program.suspend());
    let Refusal::Driver { step: Step::Checkpoint, code: 801, state: left, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(left, ProcessState::Running);
    program.is_right();
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)), "the next one");
    assert!(matches!(ask(&helper, program.resume(0)), Answer::Resumed(_)));
    program.is_right();
}

#[test]
fn a_process_at_work_is_busy_and_runs_on() {
    let world = World::new();
    let helper = world.helper_with("fail=cuCheckpointProcessLock@1:600");
    let mut program = world.program(8);
    let pid = program.target.pid;
    assert_eq!(refused(&helper, program.suspend()), Refusal::Busy { pid, limit_ms: 10_000 });
    assert_eq!(state(&helper, &program), ProcessState::Running);
    assert_eq!(ask(&helper, Ask::List), Answer::List { processes: Vec::new() });
    program.is_right();
}

#[test]
fn an_operation_past_its_limit_is_left_alone_and_its_device_refuses_others_by_name() {
    let world = World::new();
    // So long that nobody waits for it.
    let helper = world.helper_with("checkpoint_us=600000000");
    let (mut program, mut other) = (world.program(8), world.program(8));
    let target = program.target;
    let ask_it =
        Suspend { target, lock_limit_ms: 3000, limit_ms: 0, force: false, is_alone: false };
    let refusal = refused(&helper, Ask::Suspend(ask_it));
    let (pid, limit_ms) = (target.pid, 3000);
    assert_eq!(refusal, Refusal::Unfinished { pid, step: Step::Checkpoint, limit_ms });
    let refusal = refused(&helper, other.suspend());
    let Refusal::DeviceTaken { pid, step: Step::Checkpoint, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(pid, target.pid);
    other.is_right();
    // It was not cancelled, and ends with its process.
    assert_eq!(state(&helper, &program), ProcessState::Locked);
    program.kill_it();
    until("its device is free", || match ask(&helper, other.resume(0)) {
        Answer::Resumed(resumed) => resumed.was_running,
        Answer::Refused { refusal: Refusal::DeviceTaken { .. } } => false,
        answer => panic!("{answer:?}"),
    });
    other.is_right();
}

#[test]
fn a_machine_without_a_driver_is_told() {
    let world = World::new();
    let program = world.program(8);
    let helper = world.helper().with_variable("LOWTIDE_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
    let refusal = refused(&helper, program.suspend());
    assert!(matches!(refusal, Refusal::NoDriver { .. }), "{refusal}");
    assert!(refusal.to_string().contains("/nowhere/libcuda.so.1"), "{refusal}");
}

#[test]
fn a_process_under_mps_or_on_a_partitioned_gpu_is_refused_before_it_is_locked() {
    for (settings, word) in [("mps=on", "MPS"), ("mig=on", "MIG")] {
        let world = World::new();
        let (helper, mut program) = (world.helper_with(settings), world.program(8));
        let refusal = refused(&helper, program.suspend());
        assert!(refusal.to_string().contains(word), "{settings}: {refusal}");
        assert_eq!(state(&helper, &program), ProcessState::Running);
        program.is_right();
    }
}

#[test]
fn a_driver_is_tried_once_on_a_disposable_process_and_its_failure_is_remembered() {
    let world = World::new();
    // The first checkpoint fails, and no other would.
    let helper = world.helper_with("fail=cuCheckpointProcessCheckpoint@1:801");
    let mut program = world.program(8);
    let Answer::Tried(trial) = ask(&helper, Ask::Try) else { panic!("not tried") };
    assert!(trial.failure.as_ref().is_some_and(|why| why.contains("801")), "{trial:?}");
    assert_eq!(ask(&helper, Ask::Try), Answer::Tried(trial.clone()), "it is not tried again");
    let refusal = refused(&helper, program.suspend());
    assert!(matches!(refusal, Refusal::Tried { .. }), "{refusal}");
    kill(helper.connect().expect("it listens").pid());
    let refusal = refused(&world.helper(), program.suspend());
    assert!(matches!(refusal, Refusal::Tried { .. }), "the next helper knows it: {refusal}");
    let Ask::Suspend(forced) = program.suspend() else { unreachable!() };
    let forced = Ask::Suspend(Suspend { force: true, ..forced });
    assert!(matches!(ask(&world.helper(), forced), Answer::Suspended(_)));
    assert!(matches!(ask(&world.helper(), program.resume(0)), Answer::Resumed(_)));
    program.is_right();
}

#[test]
fn a_driver_that_works_is_tried_once_and_leaves_nothing_behind() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(8));
    let Answer::Tried(trial) = ask(&helper, Ask::Try) else { panic!("not tried") };
    assert_eq!(trial.failure, None);
    assert_eq!(ask(&helper, Ask::List), Answer::List { processes: Vec::new() });
    let Answer::Devices { devices } = ask(&helper, Ask::Devices) else { panic!("no numbers") };
    assert_eq!(devices[0].processes.len(), 1, "only the program is there: {devices:?}");
    // With a driver that refuses, a second trial would fail.
    kill(helper.connect().expect("it listens").pid());
    let helper = world.helper_with("fail=cuCheckpointProcessLock:801");
    assert_eq!(ask(&helper, Ask::Try), Answer::Tried(trial));
    program.is_right();
}
