//! Helpers and programs that are killed, and two questions at once. Each has a defined end.

use std::thread;

use lowtide_proto::helper::{Answer, Ask, Helper, ProcessState, Refusal};

use crate::world::{Program, World, ask, kill, refused, state, until};

/// Asks a helper that does not live to answer.
fn is_killed_at(helper: &Helper, question: Ask) {
    let answer = helper.connect().expect("it listens").ask(question);
    assert!(answer.is_err(), "it was to be killed: {answer:?}");
}

/// Waits until the next helper has finished what was begun; returns the state then.
fn settled(helper: &Helper, program: &Program) -> ProcessState {
    let settled = [ProcessState::Running, ProcessState::Checkpointed];
    until("what was begun is finished", || settled.contains(&state(helper, program)));
    state(helper, program)
}

#[test]
fn a_helper_killed_between_any_two_steps_of_a_suspend_leaves_nobody_locked() {
    let steps = [
        ("die=cuCheckpointProcessLock@1", ProcessState::Running),
        ("die=cuCheckpointProcessCheckpoint@1", ProcessState::Running),
        // The first state is asked before the lock, the second after the checkpoint.
        ("die=cuCheckpointProcessGetState@2", ProcessState::Checkpointed),
    ];
    for (death, expected) in steps {
        let world = World::new();
        let mut program = world.program(8);
        is_killed_at(&world.helper_with(death), program.suspend());
        let next = world.helper();
        assert_eq!(settled(&next, &program), expected, "{death}");
        // Whatever was left, both can be asked for again.
        assert!(matches!(ask(&next, program.suspend()), Answer::Suspended(_)), "{death}");
        assert!(matches!(ask(&next, program.resume(0)), Answer::Resumed(_)), "{death}");
        program.is_right();
    }
}

#[test]
fn a_helper_killed_between_any_two_steps_of_a_resume_brings_the_process_back() {
    for death in ["die=cuCheckpointProcessRestore@1", "die=cuCheckpointProcessUnlock@1"] {
        let world = World::new();
        let mut program = world.program(8);
        let first = world.helper();
        assert!(matches!(ask(&first, program.suspend()), Answer::Suspended(_)));
        kill(first.connect().expect("it listens").pid());
        is_killed_at(&world.helper_with(death), program.resume(0));
        let next = world.helper();
        until("it is back", || state(&next, &program) == ProcessState::Running);
        program.is_right();
        until("it is forgotten", || {
            ask(&next, Ask::List) == Answer::List { processes: Vec::new() }
        });
    }
}

#[test]
fn a_checkpoint_goes_on_without_the_helper_that_asked_for_it() {
    let world = World::new();
    let mut program = world.program(8);
    let slow = world.helper_with("checkpoint_us=1500000");
    thread::scope(|scope| {
        scope.spawn(|| is_killed_at(&slow, program.suspend()));
        until("it is locked", || state(&slow, &program) == ProcessState::Locked);
        // It is locked while the checkpoint is under way, or a moment before.
        kill(slow.connect().expect("it listens").pid());
    });
    let next = world.helper();
    settled(&next, &program);
    assert!(matches!(ask(&next, program.resume(0)), Answer::Resumed(_)));
    program.is_right();
}

#[test]
fn a_program_that_is_killed_while_it_is_suspended_is_forgotten() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(8));
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)));
    program.kill_it();
    let pid = program.target.pid;
    assert_eq!(ask(&helper, Ask::List), Answer::List { processes: Vec::new() });
    assert_eq!(refused(&helper, program.resume(60_000)), Refusal::Ended { pid });
}

#[test]
fn a_program_that_is_killed_in_the_middle_of_a_checkpoint_is_told_at_once() {
    let world = World::new();
    let mut program = world.program(8);
    let (helper, target) = (world.helper_with("checkpoint_us=600000000"), program.target);
    let question = program.suspend_within(600_000);
    thread::scope(|scope| {
        let asked = scope.spawn(|| refused(&helper, question));
        until("it is locked", || state(&helper, &program) == ProcessState::Locked);
        program.kill_it();
        assert_eq!(asked.join().expect("no panic"), Refusal::Ended { pid: target.pid });
    });
    assert_eq!(ask(&helper, Ask::List), Answer::List { processes: Vec::new() });
}

#[test]
fn two_suspends_at_once_and_a_suspend_during_a_resume_come_one_after_the_other() {
    let world = World::new();
    let (helper, mut program) = (world.helper_with("checkpoint_us=100000"), world.program(8));
    thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| ask(&helper, program.suspend())));
        let done = both.map(|asked| match asked.join().expect("no panic") {
            Answer::Suspended(suspended) => !suspended.was_suspended,
            answer => panic!("{answer:?}"),
        });
        assert_eq!(done.iter().filter(|did| **did).count(), 1, "one did it, one found it done");
    });
    thread::scope(|scope| {
        let resume = scope.spawn(|| ask(&helper, program.resume(60_000)));
        let suspend = scope.spawn(|| ask(&helper, program.suspend()));
        for asked in [resume, suspend] {
            let answer = asked.join().expect("no panic");
            assert!(!matches!(answer, Answer::Refused { .. }), "{answer:?}");
        }
    });
    assert!(matches!(ask(&helper, program.resume(60_000)), Answer::Resumed(_)));
    program.is_right();
}

#[test]
fn clients_that_start_it_at_once_find_the_same_helper() {
    let world = World::new();
    let helper = world.helper();
    let pids: Vec<u32> = thread::scope(|scope| {
        let all: Vec<_> =
            (0..6).map(|_| scope.spawn(|| helper.connect().expect("it listens").pid())).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
}

#[test]
fn a_suspended_program_waits_in_its_next_call_until_it_is_resumed() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(8));
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)));
    program.tell("byte");
    thread::sleep(std::time::Duration::from_millis(200));
    assert!(!program.has_answered(), "it is off the device");
    assert!(matches!(ask(&helper, program.resume(0)), Answer::Resumed(_)));
    assert_eq!(program.answer(), "7");
}
