//! Hooks for the rungs `suspend` and `exit` of a ladder.
//!
//! The rungs run what is registered at [`HookPoint::Suspend`](lowtide_release::HookPoint::Suspend) and
//! [`HookPoint::Exit`](lowtide_release::HookPoint::Exit): workers and servers of this user, not the process
//! that releases.

use std::time::Duration;

use lowtide_device::process_tree;
use lowtide_proto::helper::{Answer, Ask, Helper, Refusal, Resume, Suspend, Target};
use lowtide_release::{Failure, Hook};
use lowtide_types::Touch;

use crate::process::handle::ProcessHandle;

/// The longest time that a checkpoint or a restore may take: the driver copies about 2 GiB in a second.
const LIMIT: Duration = Duration::from_secs(900);
/// The longest wait for the work of a process.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for room when a process comes back.
const ROOM_LIMIT: Duration = Duration::from_secs(60);

/// Returns a hook that takes a process off the device, and brings it back before the next work. It is skipped,
/// with the reason, for a process that cannot be suspended: one that has ended, is stopped, belongs to another
/// user, or uses a library that communicates.
pub fn suspend(name: impl Into<String>, helper: Helper, target: Target) -> Hook {
    let back = helper.clone();
    let check = move || ProcessHandle::find(target)?.check_suspendable(false);
    Hook::new(name, move |_| {
        let (lock_limit_ms, limit_ms) = (ms(LOCK_LIMIT), ms(LIMIT));
        let ask = Ask::Suspend(Suspend {
            target,
            lock_limit_ms,
            limit_ms,
            force: false,
            is_alone: false,
        });
        let mut connection = helper.connect()?;
        // A driver that fails must fail with a disposable process. Where there is no room for one, the helper
        // goes by what it remembers.
        connection.ask(Ask::Try)?;
        match connection.ask(ask)? {
            Answer::Suspended(suspended) if suspended.was_suspended => Ok(Vec::new()),
            Answer::Suspended(_) => Ok(vec![touched(target, "suspended")]),
            answer => Err(refused(answer)),
        }
    })
    .limit(LIMIT)
    .unless(move || check().err().map(|refusal: Refusal| refusal.to_string()))
    .restored_by(move || {
        let (maps, wait_ms, limit_ms) = (Vec::new(), ms(ROOM_LIMIT), ms(LIMIT));
        let ask = Ask::Resume(Resume { target, needs: Vec::new(), maps, wait_ms, limit_ms });
        match back.connect()?.ask(ask)? {
            Answer::Resumed(resumed) if resumed.was_running => Ok(Vec::new()),
            Answer::Resumed(_) => Ok(vec![touched(target, "resumed")]),
            answer => Err(refused(answer)),
        }
    })
}

/// Returns a hook that ends a process and all that it started: it asks them, waits for up to `grace`, kills the
/// rest, and fails if one of them is still there. It is skipped for a process that has ended.
pub fn exit(name: impl Into<String>, target: Target, grace: Duration) -> Hook {
    let check = move || ProcessHandle::find(target).map(drop);
    Hook::new(name, move |_| {
        ProcessHandle::find(target)?;
        let end = process_tree::end(target.pid, grace)?;
        if !end.left.is_empty() {
            return Err(format!("still there: processes {:?}", end.left).into());
        }
        let how = |pid: &u32| if end.killed.contains(pid) { "killed" } else { "ended" };
        Ok(end.ended.iter().map(|pid| format!("process {pid}, {}", how(pid)).into()).collect())
    })
    .limit(grace + LIMIT)
    .unless(move || check().err().map(|refusal: Refusal| refusal.to_string()))
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

fn touched(target: Target, what: &str) -> Touch {
    format!("{target}, {what}").into()
}

fn refused(answer: Answer) -> Failure {
    match answer {
        Answer::Refused { refusal } => refusal.into(),
        answer => format!("the helper answered something else: {answer:?}").into(),
    }
}
