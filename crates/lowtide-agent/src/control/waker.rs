//! The gate's waker: brings the process back for a thread that is about to use the device.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lowtide_proto::{Answer, Ask};

use crate::control::worker;
use crate::driver::codes::{OUT_OF_MEMORY, UNKNOWN};
use crate::gate;
use crate::room::{self, Ended};
use crate::say::say;
use crate::sleep::agent;

/// The first pause between two attempts to wake; each is twice the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The time between two lines about the same wait.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// Has the worker bring the process back; tries again, for whatever reason it fails, up to the time limit.
///
/// # Errors
/// After the time limit, the driver's code for a device without room, or for an unknown error where waking fails
/// for another reason. The process stays asleep, and the next call tries again.
pub(crate) fn bring_back(ask: Ask) -> Result<(), i32> {
    let Some(agent) = agent::get() else {
        gate::open();
        return Ok(());
    };
    let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
    // A call that has a grant wakes its process with it.
    let mut turns = room::get().map(|room| (room, None, room.has_grant()));
    loop {
        if let Some((room, asking, has_grant)) = &mut turns
            && !*has_grant
        {
            match asking.get_or_insert_with(|| room.ask_to_come_back(ask)).wait() {
                Ok(()) | Err(Ended::Alone) => {}
                Err(Ended::Refused(why) | Ended::Late(why)) => {
                    return Err(fails(OUT_OF_MEMORY, &why));
                }
            }
        }
        let (reason, code) = match worker::ask(ask) {
            Answer::Woken(_) | Answer::Resumed(_) => {
                *last_notice() = None;
                if let Some((_, Some(asking), _)) = turns {
                    asking.end(true);
                }
                return Ok(());
            }
            Answer::NoRoom(no_room) => (no_room.to_string(), OUT_OF_MEMORY),
            Answer::Refused { reason } => (reason, UNKNOWN),
            answer => (format!("{answer:?}"), UNKNOWN),
        };
        if began.elapsed() >= agent.wake_timeout {
            return Err(fails(code, &reason));
        }
        match &mut turns {
            Some((room, asking, has_grant)) if room.has_arbiter() => {
                *has_grant = false;
                // Another thread may have brought the process back meanwhile, and it may be away again.
                if asking.as_mut().is_some_and(|asking| !asking.failed()) {
                    *asking = None;
                }
            }
            _ => notice(&reason),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Says that a call fails, and returns its code.
fn fails(code: i32, reason: &str) -> i32 {
    say!("a call of the program fails with code {code}: {reason}");
    code
}

/// Says why the process does not wake, once for all threads that wait together.
fn notice(reason: &str) {
    let mut last = last_notice();
    if last.is_none_or(|when| when.elapsed() > NOTICE_EVERY) {
        *last = Some(Instant::now());
        drop(last);
        say!("waiting to wake: {reason}");
    }
}

/// Returns when a reason was last said; `None` since the last wake.
fn last_notice() -> MutexGuard<'static, Option<Instant>> {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}
