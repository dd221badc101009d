//! The gate's waker: brings the process back for a thread that is about to use the device.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lowtide_proto::{Answer, Ask, NoRoom};

use crate::control::worker;
use crate::driver::codes::{OUT_OF_MEMORY, UNKNOWN};
use crate::gate;
use crate::say::say;
use crate::sleep::agent;

/// The first pause between two attempts to wake; each is twice the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The attempts to wake where something else fails than room.
const ATTEMPTS: u32 = 3;
/// The time between two lines about a lack of room.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// Has the worker bring the process back; tries again while there is no room.
///
/// # Errors
/// The driver's code for a device without room, after the time limit; or for an unknown error, where
/// waking fails for another reason. The process stays asleep, and the next call tries again.
pub(crate) fn bring_back(ask: Ask) -> Result<(), i32> {
    let Some(agent) = agent::get() else {
        gate::open();
        return Ok(());
    };
    let (began, mut failures, mut pause) = (Instant::now(), 0, FIRST_PAUSE);
    loop {
        match worker::ask(ask) {
            Answer::Woken(_) | Answer::Resumed(_) => {
                *last_notice() = None;
                return Ok(());
            }
            Answer::NoRoom(no_room) => {
                if began.elapsed() >= agent.wake_timeout {
                    say!("a call of the program is told that memory is out: {no_room}");
                    return Err(OUT_OF_MEMORY);
                }
                notice(&no_room);
            }
            answer => {
                failures += 1;
                if failures == ATTEMPTS {
                    say!("this process could not wake: {answer:?}");
                    return Err(UNKNOWN);
                }
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Says who uses the memory, once for all threads that wait together.
fn notice(no_room: &NoRoom) {
    let mut last = last_notice();
    if last.is_none_or(|when| when.elapsed() > NOTICE_EVERY) {
        *last = Some(Instant::now());
        drop(last);
        say!("waiting to wake: {no_room}");
    }
}

/// Returns when a lack of room was last said; `None` since the last wake.
fn last_notice() -> MutexGuard<'static, Option<Instant>> {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}
