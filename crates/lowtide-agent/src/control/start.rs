//! The start of the agent in a process, and what it does before the process exits.
#![allow(unsafe_code, reason = "hands the driver's functions over, and asks for what runs at exit")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use lowtide_device::cuda::Driver;
use lowtide_device::tallies;
use lowtide_proto::{Answer, Ask, WITHOUT_GPU};
use lowtide_types::variables;

use crate::control::{arbiter, socket, waker, worker};
use crate::driver::{calls, library};
use crate::room::{self, Room, limit};
use crate::say::say;
use crate::sleep::agent::{self, Agent};
use crate::sleep::begin_exit;
use crate::{gate, obstacles, settings};

/// The time for which a process that exits waits for room on the device.
const EXIT_LIMIT: Duration = Duration::from_secs(10);
/// The pause between two attempts to find room at exit.
const PAUSE: Duration = Duration::from_millis(50);

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Starts the agent, once. The driver is initialised.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    if settings::is_off() || gate::is_inherited() {
        return;
    }
    STARTED.call_once(|| {
        // Before a thread of ours runs beside the program's, which may set some.
        variables::keep();
        tallies::begin("agent", None);
        let look_up = |name: &CStr| NonNull::new(library::look_up(name));
        // SAFETY: functions of the driver that the program has loaded and initialised; it is never unloaded.
        let driver = match unsafe { Driver::from_entry_points(look_up) } {
            Ok(driver) => Arc::new(driver),
            // This driver lacks what sleeping needs.
            Err(error) => return obstacles::add(&error.to_string()),
        };
        if library::is_passed_by() {
            obstacles::add("another library's dlsym, which comes before the agent's in LD_PRELOAD");
        }
        let agent = agent::create(driver);
        worker::start(agent);
        gate::set_waker(waker::bring_back);
        let (cap, shares) = (settings::memory(), settings::shares());
        if cap.is_some() || shares {
            limit::set(cap, settings::reserve(), settings::family());
        }
        if shares {
            take_turns(agent);
        }
        // SAFETY: the function lives as long as this library, which is never unloaded. What the driver does at
        // exit comes after what is registered here.
        unsafe { on_exit(before_exit, ptr::null_mut()) };
        socket::start(agent);
    });
}

/// Has the program take turns with others. What any of it needs from libraries is found now, in the thread that has
/// initialised the driver: another one may wait for room with the loader's lock.
fn take_turns(agent: &'static Agent) {
    calls::prepare();
    match Room::new(agent.wake_timeout) {
        Ok(room) => arbiter::start(agent, room::share(room), settings::priority()),
        Err(error) => say!("the program takes no turns with others: {error}"),
    }
}

/// Says once that the driver has no device for the process.
pub(crate) fn say_why_not(code: i32) {
    static SAID: Once = Once::new();
    if !settings::is_off() {
        SAID.call_once(|| say!("warning: nothing of this program can be freed here: cuInit failed with code {code}; {WITHOUT_GPU}"));
    }
}

/// Has the process resumed before it exits.
extern "C" fn before_exit(status: c_int, _argument: *mut c_void) {
    begin_exit();
    if agent::get().is_none() {
        return;
    }
    if let Some(room) = room::get() {
        room.report();
    }
    let deadline = Instant::now() + EXIT_LIMIT;
    while gate::is_suspended() {
        if !matches!(worker::ask(Ask::Resume), Answer::Resumed(_)) && Instant::now() > deadline {
            say!(
                "the process ends while it is suspended: there is no room on the device for its end"
            );
            // SAFETY: writes what the program has printed.
            unsafe { libc::fflush(ptr::null_mut()) };
            // SAFETY: ends the process, as it was about to.
            unsafe { libc::_exit(status) };
        }
        if gate::is_suspended() {
            std::thread::sleep(PAUSE);
        }
    }
}
