//! Helpers and programs that are killed, and two questions at once. Each has a defined end.

use std::process::Command;
use std::thread;

use lowtide_proto::helper::{Answer, Ask, Helper, ProcessState, Refusal};
use lowtide_testing::double::Double;

use crate::world::{Program, World, ask, has_ended, kill, refused, state, until};

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
fn it_leaves_its_starter_and_takes_neither_preloaded_libraries_nor_files_along() {
    let world = World::new();
    let helper = world.helper();
    // As a shell starts it: with a preloaded library, and with a file that is open as number 9.
    let script = "exec 9>\"$1/held\"; exec \"$2\" \"$1\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(world.sockets())
        .arg(env!("CARGO_BIN_EXE_lowtide-helper"));
    std::fs::create_dir_all(world.sockets()).expect("a folder");
    let started =
        command.env("LD_PRELOAD", Double::path()).env("CUDA_VISIBLE_DEVICES", "").status();
    assert!(started.expect("it starts").success(), "its first process ends at once");
    // Connecting before it listens would start another one.
    until("it listens", || helper.running().expect("no other answer").is_some());
    let pid = helper.connect().expect("it listens").pid();
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).expect("it runs");
    let variables = String::from_utf8_lossy(&read("environ")).into_owned();
    assert!(!variables.contains("LD_PRELOAD") && !variables.contains("CUDA_"), "{variables}");
    let stat = String::from_utf8_lossy(&read("stat")).into_owned();
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    assert_ne!(fields[1], std::process::id().to_string(), "it is no child of this process");
    assert_eq!(fields[3], fields[2], "it has a session and a group of its own: {stat}");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let held: Vec<_> = open.filter(|path| path.ends_with("held")).collect();
    assert!(held.is_empty(), "{held:?}");
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

#[test]
fn one_whose_folder_cannot_be_used_serves_whoever_starts_it_and_leads_back() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(8));
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)));
    kill(helper.connect().expect("it listens").pid());
    std::fs::remove_dir_all(world.sockets()).expect("a folder");
    std::fs::write(world.sockets(), "").expect("a file");
    let refusal = refused(&helper, world.program(8).suspend());
    assert!(matches!(refusal, Refusal::NoJournal { .. }), "{refusal:?}");
    let mut connection = helper.connect().expect("it is started");
    let pid = connection.pid();
    assert!(matches!(connection.ask(program.resume(0)), Ok(Answer::Resumed(_))));
    program.is_right();
    drop(connection);
    until("it ends", || has_ended(pid));
}

#[test]
fn it_does_not_keep_the_limits_of_its_starter() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(8));
    // As in a shell that allows few files, and none with content.
    let script = "ulimit -S -n 16; ulimit -S -f 0; exec \"$0\" \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lowtide-helper")]).arg(world.sockets());
    command.envs(world.variables(""));
    assert!(command.status().expect("it starts").success());
    until("it listens", || helper.running().expect("no other answer").is_some());
    let _clients: Vec<_> = (0..20).map(|_| helper.connect().expect("it listens")).collect();
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)));
    assert!(matches!(ask(&helper, program.resume(0)), Answer::Resumed(_)));
    program.is_right();
}
