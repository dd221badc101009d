//! Suspending and resuming, where all goes well.

use lowtide_proto::helper::{Answer, Ask, DeviceBytes, ProcessState, Resume, Step};
use lowtide_types::{Bytes, Verdict};

use crate::world::{World, ask, has_ended, state, until};

#[test]
fn a_process_leaves_the_device_and_comes_back() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(100));
    program.is_right();
    let Answer::Suspended(suspended) = ask(&helper, program.suspend()) else { panic!("refused") };
    assert_eq!(suspended.verdict, Verdict::Released, "{suspended:?}");
    let steps: Vec<Step> = suspended.steps.iter().map(|time| time.step).collect();
    assert_eq!(steps, [Step::Lock, Step::Checkpoint]);
    let [device] = suspended.devices.as_slice() else { panic!("{suspended:?}") };
    // 64 MiB is the context.
    assert_eq!(device.process_before, Some(Bytes::mib(164)));
    assert_eq!(device.process_after, Some(Bytes::ZERO));
    assert_eq!(device.before.in_use() - device.after.in_use(), Bytes::mib(164));
    assert_eq!(
        suspended.needs,
        [DeviceBytes { uuid: device.uuid.clone(), bytes: Bytes::mib(228) }]
    );

    let Answer::Devices { devices } = ask(&helper, Ask::Devices) else { panic!("no numbers") };
    assert_eq!((&devices[0].uuid, devices[0].usage), (&device.uuid, device.after));
    assert!(devices[0].processes.is_empty(), "{devices:?}");

    assert_eq!(state(&helper, &program), ProcessState::Checkpointed);
    let Answer::List { processes } = ask(&helper, Ask::List) else { panic!("no list") };
    assert_eq!(processes.len(), 1);
    assert_eq!((processes[0].target, &processes[0].needs), (program.target, &suspended.needs));
    let Answer::Suspended(again) = ask(&helper, program.suspend()) else { panic!("refused") };
    assert!(again.was_suspended && again.steps.is_empty() && again.needs == suspended.needs);

    let Answer::Resumed(resumed) = ask(&helper, program.resume(0)) else { panic!("refused") };
    let steps: Vec<Step> = resumed.steps.iter().map(|time| time.step).collect();
    assert_eq!(steps, [Step::Restore, Step::Unlock]);
    assert_eq!(resumed.devices[0].process_before, Some(Bytes::ZERO));
    assert_eq!(resumed.devices[0].process_after, Some(Bytes::mib(164)));
    program.is_right();
    let Answer::Resumed(again) = ask(&helper, program.resume(0)) else { panic!("refused") };
    assert!(again.was_running && again.steps.is_empty());
    assert_eq!(ask(&helper, Ask::List), Answer::List { processes: Vec::new() });
}

#[test]
fn a_device_that_it_filled_alone_has_room_for_it_again() {
    let world = World::new();
    // All of the device but 10 MiB: less than the margin is free.
    let mut program = world.program_with(1024 - 32 - 64 - 10, "total=1GiB");
    let helper = world.helper();
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)));
    let answer = ask(&helper, program.resume(0));
    assert!(matches!(answer, Answer::Resumed(_)), "{answer:?}");
    program.is_right();
}

#[test]
fn what_the_caller_maps_afterwards_needs_room_too() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program_with(100, "total=1GiB"));
    let Answer::Suspended(suspended) = ask(&helper, program.suspend()) else { panic!("refused") };
    let uuid = suspended.needs[0].uuid.clone();
    // The device has 992 MiB, and 500 of them go to another program with its context.
    let mut other = world.program(436);
    let maps = vec![DeviceBytes { uuid, bytes: Bytes::mib(300) }];
    let target = program.target;
    let with_maps =
        Ask::Resume(Resume { target, needs: Vec::new(), maps, wait_ms: 0, limit_ms: 60_000 });
    let Answer::Refused { refusal } = ask(&helper, with_maps) else { panic!("no room for it") };
    let text = refusal.to_string();
    assert!(text.contains("526.0 MiB needed, 492.0 MiB free"), "{text}");
    assert!(text.contains(&format!("(pid {}) 500.0 MiB", other.target.pid)), "{text}");
    other.is_right();
    assert!(matches!(ask(&helper, program.resume(0)), Answer::Resumed(_)), "without them it fits");
    program.is_right();
}

#[test]
fn a_resume_waits_for_room_and_for_no_longer_than_it_was_told() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program_with(500, "total=1GiB"));
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)));
    let mut other = world.program(600);
    let Answer::Refused { refusal } = ask(&helper, program.resume(30)) else { panic!("no room") };
    assert!(refusal.to_string().contains("no room"), "{refusal}");
    assert_eq!(state(&helper, &program), ProcessState::Checkpointed);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&helper, program.resume(60_000)));
        // Others are not held up by one that waits.
        assert!(matches!(ask(&helper, other.suspend()), Answer::Suspended(_)));
        let answer = waiting.join().expect("no panic");
        assert!(matches!(answer, Answer::Resumed(_)), "{answer:?}");
    });
    program.is_right();
    program.kill_it();
    assert!(matches!(ask(&helper, other.resume(60_000)), Answer::Resumed(_)));
    other.is_right();
}

#[test]
fn where_the_driver_does_not_name_processes_the_fall_of_its_number_counts() {
    // As in another PID namespace, and as in containers that hide what each process uses.
    for settings in ["pid_offset=100000", "accounting=off"] {
        let world = World::new();
        let (helper, mut program) = (world.helper_with(settings), world.program(100));
        let other = world.program(50);
        let Answer::Suspended(suspended) = ask(&helper, program.suspend()) else {
            panic!("refused")
        };
        assert_eq!(suspended.verdict, Verdict::Unverified, "{settings}: {suspended:?}");
        assert_eq!(suspended.needs[0].bytes, Bytes::mib(164), "{settings}");
        assert!(matches!(ask(&helper, program.resume(0)), Answer::Resumed(_)), "{settings}");
        program.is_right();
        drop(other);
    }
}

#[test]
fn it_ends_when_nobody_needs_it_and_stays_while_somebody_is_suspended() {
    let world = World::new();
    let (helper, mut program) = (world.helper(), world.program(8));
    let helper = helper.with_variable("LOWTIDE_HELPER", "idle_ms=100");
    assert!(matches!(ask(&helper, program.suspend()), Answer::Suspended(_)));
    let pid = helper.connect().expect("it listens").pid();
    // It looks every half second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(helper.connect().expect("it listens").pid(), pid, "somebody is suspended");
    assert!(matches!(ask(&helper, program.resume(0)), Answer::Resumed(_)));
    until("it has ended", || has_ended(pid));
    program.is_right();
}
