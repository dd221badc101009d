//! The policy by its conditions, in the time of a clock that the test moves.

use std::time::Duration;

use lowtide_device::neighbours::Neighbour;
use lowtide_release::{Clock, Decision, Idle, IdleOptions, ManualClock, Ticket};

const SECOND: Duration = Duration::from_secs(1);

fn idle(after: Duration) -> (Idle, ManualClock) {
    let clock = ManualClock::default();
    let options = IdleOptions { enabled: true, after, ..IdleOptions::default() };
    (Idle::new(options, std::sync::Arc::new(clock.clone())), clock)
}

fn ticket(idle: &Idle) -> Ticket {
    match idle.due(|| true) {
        Decision::Release(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

/// What is still to wait for, in seconds.
fn left(idle: &Idle) -> u64 {
    match idle.due(|| panic!("asked too early")) {
        Decision::Wait { left } => left.as_secs(),
        other => panic!("{other:?}"),
    }
}

/// Runs a task, and releases as soon as it is due; says how long that took, in seconds.
fn round(idle: &Idle, clock: &ManualClock) -> u64 {
    drop(idle.task());
    let quiet = left(idle);
    clock.advance(Duration::from_secs(quiet));
    ticket(idle).done();
    quiet
}

#[test]
fn r26_all_four_conditions_are_needed() {
    for case in 0..16 {
        let [enabled, finished, active, something] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let clock = ManualClock::default();
        let options = IdleOptions { enabled, after: SECOND, ..IdleOptions::default() };
        let idle = Idle::new(options, std::sync::Arc::new(clock.clone()));
        if finished {
            drop(idle.task());
        }
        let running = active.then(|| idle.task());
        clock.advance(SECOND);
        let decision = idle.due(|| something);
        let as_wanted = match (enabled, active, finished, something) {
            (false, ..) => matches!(decision, Decision::Off),
            (_, true, ..) => matches!(decision, Decision::Active { count: 1 }),
            (_, _, false, _) => matches!(decision, Decision::NothingRan),
            (.., false) => matches!(decision, Decision::NothingToUnload),
            _ => matches!(decision, Decision::Release(_)),
        };
        assert!(as_wanted, "{case}: {decision:?}");
        drop(running);
    }
}

#[test]
fn r25_off_changes_nothing() {
    struct Untouched;

    impl Clock for Untouched {
        fn now(&self) -> Duration {
            panic!("switched off, and asked for the time")
        }

        fn pause(&self, _duration: Duration) {
            self.now();
        }

        fn within(&self, _limit: Duration, _work: Box<dyn FnOnce() + Send>) -> bool {
            self.now() < Duration::ZERO
        }
    }

    let idle = Idle::new(IdleOptions::default(), std::sync::Arc::new(Untouched));
    let decide = || idle.due(|| panic!("switched off, and asked for something to unload"));
    let is_counting = |active| format!("{idle:?}").contains(&format!("active: {active}"));
    assert!(matches!(decide(), Decision::Off));
    let tasks = [idle.task(), idle.task()];
    assert!(is_counting(2));
    assert!(matches!(decide(), Decision::Off));
    drop(tasks);
    assert!(is_counting(0));
    assert!(matches!(decide(), Decision::Off));
}

#[test]
fn the_quiet_time_counts_from_the_last_task_that_finished() {
    let (idle, clock) = idle(10 * SECOND);
    let (long, short) = (idle.task(), idle.task());
    drop(short);
    clock.advance(60 * SECOND);
    assert!(matches!(idle.due(|| true), Decision::Active { count: 1 }));
    drop(long);
    clock.advance(4 * SECOND);
    assert_eq!(left(&idle), 6);
    // One that comes in between begins it anew.
    drop(idle.task());
    assert_eq!(left(&idle), 10);
    clock.advance(10 * SECOND);
    ticket(&idle).done();
}

#[test]
fn r26_a_release_needs_a_task_that_finished_since_the_last() {
    let (idle, clock) = idle(SECOND);
    for ends in [Ticket::done, drop] {
        drop(idle.task());
        clock.advance(60 * SECOND);
        ends(ticket(&idle));
        clock.advance(60 * SECOND);
        assert!(matches!(idle.due(|| true), Decision::NothingRan));
    }
    // Where there was nothing to unload, it stays due.
    drop(idle.task());
    clock.advance(60 * SECOND);
    assert!(matches!(idle.due(|| false), Decision::NothingToUnload));
    ticket(&idle).done();
}

#[test]
fn there_is_one_ticket_at_a_time_and_it_knows_that_a_task_came() {
    let (idle, clock) = idle(SECOND);
    drop(idle.task());
    clock.advance(SECOND);
    let ticket_one = ticket(&idle);
    assert!(matches!(idle.due(|| true), Decision::Underway));
    assert!(!ticket_one.is_stale());
    drop(idle.task());
    assert!(ticket_one.is_stale(), "it began and is over already");
    clock.advance(60 * SECOND);
    assert!(matches!(idle.due(|| true), Decision::Underway));
    ticket_one.done();
    // That task counts for the next release: what it loaded came after the ticket.
    assert!(!ticket(&idle).is_stale());
}

#[test]
fn a_task_that_begins_while_the_memory_is_looked_at_is_seen() {
    let (idle, clock) = idle(SECOND);
    drop(idle.task());
    clock.advance(SECOND);
    let mut task = None;
    let decision = idle.due(|| {
        task = Some(idle.task());
        true
    });
    assert!(matches!(decision, Decision::Active { count: 1 }));
    drop(task);
    assert_eq!(left(&idle), 1);
}

#[test]
fn a_ticket_that_is_put_back_is_due_again_after_the_quiet_time() {
    let (idle, clock) = idle(10 * SECOND);
    drop(idle.task());
    clock.advance(60 * SECOND);
    ticket(&idle).put_back();
    assert_eq!(left(&idle), 10);
    clock.advance(10 * SECOND);
    // Nothing was freed, so a task that comes now is not too soon.
    ticket(&idle).put_back();
    drop(idle.task());
    assert_eq!(left(&idle), 10);
}

#[test]
fn tasks_that_come_back_too_soon_double_the_quiet_time_up_to_the_limit() {
    let (idle, clock) = idle(10 * SECOND);
    let quiet = [(); 7].map(|()| round(&idle, &clock));
    assert_eq!(quiet, [10, 20, 40, 80, 160, 160, 160]);
}

#[test]
fn of_tasks_that_come_after_one_release_only_the_first_tells() {
    let (idle, clock) = idle(10 * SECOND);
    round(&idle, &clock);
    drop((idle.task(), idle.task()));
    assert_eq!(left(&idle), 20);
    drop(idle.task());
    assert_eq!(left(&idle), 20);
}

#[test]
fn a_task_that_comes_during_the_release_is_too_soon() {
    let (idle, clock) = idle(10 * SECOND);
    drop(idle.task());
    clock.advance(10 * SECOND);
    let ticket_one = ticket(&idle);
    clock.advance(60 * SECOND);
    let task = idle.task();
    ticket_one.done();
    drop(task);
    assert_eq!(left(&idle), 20);
    // Only once: the next task has seen no other release.
    drop(idle.task());
    assert_eq!(left(&idle), 20);
}

#[test]
fn memory_left_alone_for_longer_than_the_quiet_time_halves_it() {
    let (idle, clock) = idle(10 * SECOND);
    assert_eq!([(); 4].map(|()| round(&idle, &clock)), [10, 20, 40, 80]);
    // As long as the quiet time is neither too soon nor long.
    clock.advance(80 * SECOND);
    assert_eq!(round(&idle, &clock), 80);
    clock.advance(81 * SECOND);
    assert_eq!(round(&idle, &clock), 40);
    clock.advance(10 * SECOND);
    assert_eq!(round(&idle, &clock), 40);
    for quiet in [20, 10, 10] {
        clock.advance(81 * SECOND);
        assert_eq!(round(&idle, &clock), quiet);
    }
}

/// A process on the device, `started` seconds after the boot.
fn neighbour(pid: u32, started: u64, clock: &ManualClock) -> Neighbour {
    let age = clock.now().saturating_sub(Duration::from_secs(started));
    Neighbour { pid, start_ticks: started * 100, name: "engine".to_owned(), age }
}

/// Decides beside processes that started at these seconds; returns the PID of that to which it gives way, or
/// `None` for a release.
fn beside(idle: &Idle, clock: &ManualClock, others: &[(u32, u64)]) -> Option<u32> {
    let others = || others.iter().map(|(pid, at)| neighbour(*pid, *at, clock)).collect();
    match idle.due_beside(|| true, others) {
        Decision::GivesWay { to } => Some(to.pid),
        Decision::Release(ticket) => {
            ticket.done();
            None
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_release_gives_way_to_a_process_until_it_is_two_minutes_old() {
    let (idle, clock) = idle(SECOND);
    clock.advance(1000 * SECOND);
    drop(idle.task());
    clock.advance(SECOND);
    let others = [(5, 10), (6, 950), (7, 990)];
    assert_eq!(beside(&idle, &clock, &others), Some(7), "the youngest is named");
    // Between two looks nobody is asked.
    let decision = idle.due_beside(|| panic!("asked"), || panic!("asked"));
    assert!(decision.to_string().starts_with("engine (pid 7) started 11 s ago"), "{decision}");
    for _ in 0..108 {
        clock.advance(SECOND);
        assert_eq!(beside(&idle, &clock, &others), Some(7), "{:?}", clock.now());
    }
    clock.advance(SECOND);
    assert_eq!(beside(&idle, &clock, &others), None, "all are old");
    // One that ends before it is old is waited for no longer.
    drop(idle.task());
    clock.advance(20 * SECOND);
    assert_eq!(beside(&idle, &clock, &[(8, 1100)]), Some(8));
    clock.advance(SECOND);
    assert_eq!(beside(&idle, &clock, &[]), None);
}

#[test]
fn a_machine_where_something_starts_all_the_time_keeps_no_memory_for_ever() {
    let (idle, clock) = idle(SECOND);
    drop(idle.task());
    clock.advance(SECOND);
    let began = clock.now();
    // A process every minute, and one from the future, which never grows old.
    let others = || -> Vec<(u32, u64)> {
        let now = clock.now().as_secs();
        let by_minute =
            (0..=now / 60).map(|minute| (100 + u32::try_from(minute).unwrap(), minute * 60));
        by_minute.chain([(9, 1_000_000)]).collect()
    };
    while beside(&idle, &clock, &others()).is_some() {
        clock.advance(SECOND);
    }
    assert_eq!(clock.now(), began + 600 * SECOND);
    // What was young then puts off nothing more; what starts later does.
    drop(idle.task());
    clock.advance(20 * SECOND);
    assert_eq!(beside(&idle, &clock, &others()), None);
    drop(idle.task());
    clock.advance(60 * SECOND);
    assert_eq!(beside(&idle, &clock, &others()), Some(others()[others().len() - 2].0));
    // A task ends the row.
    clock.advance(599 * SECOND);
    drop(idle.task());
    clock.advance(20 * SECOND);
    assert!(beside(&idle, &clock, &others()).is_some());
    clock.advance(SECOND);
    assert!(beside(&idle, &clock, &others()).is_some());
}

#[test]
fn who_gives_way_to_nobody_does_not_look() {
    let clock = ManualClock::default();
    let options: IdleOptions = "1s".parse().unwrap();
    let options = IdleOptions { give_way: Duration::ZERO, ..options };
    let idle = Idle::new(options, std::sync::Arc::new(clock.clone()));
    drop(idle.task());
    clock.advance(SECOND);
    assert!(matches!(idle.due_beside(|| true, || panic!("asked")), Decision::Release(_)));
}
