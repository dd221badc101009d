//! Room on the devices that other programs have (`lowtide run --share`).
//!
//! A call that finds no room has left the gate when it asks the arbiter, a part of the helper, for some. It waits in
//! its own thread without any lock, so its program can give way meanwhile, and is made again once there is room. A
//! touch that finds the process asleep asks in the same way. Nothing of this is on the way of a call that succeeds.
//!
//! Here is what calls see of it. The connection to the arbiter is in `control/arbiter.rs`, and the worker gives way.

mod asking;
mod holding;
pub(crate) mod limit;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use lowtide_types::{Bytes, DeviceId};

pub(crate) use self::asking::Ended;
use self::table::Wanted;
pub(crate) use self::table::{Arbiter, Room};
use crate::driver::calls;
use crate::driver::codes::OUT_OF_MEMORY;
use crate::driver::layouts::Properties;
use crate::say::say;
use crate::sleep::agent;
use crate::threads::uncancelled;
use crate::{gate, obstacles};

/// The room that a call needs whose size nobody knows: a context, a module, a graph.
const FIRST_GUESS: Bytes = Bytes::mib(64);

static ROOM: OnceLock<Room> = OnceLock::new();

/// Returns the room that this process shares with others; `None` where it does not, and in children.
pub(crate) fn get() -> Option<&'static Room> {
    ROOM.get().filter(|_| agent::get().is_some())
}

/// Has the process share its devices from now on.
pub(crate) fn share(room: Room) -> &'static Room {
    ROOM.get_or_init(|| room)
}

/// What a call wants to take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Want {
    /// `None` where nobody knows.
    bytes: Option<Bytes>,
    /// `None` for the device of the current context.
    device: Option<DeviceId>,
}

impl Want {
    /// Makes a want of bytes on the device of the current context.
    pub(crate) fn of(bytes: usize) -> Want {
        Want { bytes: Some(Bytes(bytes as u64)), device: None }
    }

    /// Makes a want on a device.
    pub(crate) fn on(ordinal: i32) -> Want {
        Want { bytes: None, device: u32::try_from(ordinal).ok().map(DeviceId::Cuda) }
    }

    /// Makes a want of virtual memory with the properties at an address.
    pub(crate) fn of_virtual(bytes: usize, properties: Option<&Properties>) -> Want {
        Want { bytes: Some(Bytes(bytes as u64)), device: properties.and_then(Properties::device) }
    }

    /// Finds out which device that is; `None` where the thread has none.
    fn resolve(self) -> Option<Wanted> {
        let DeviceId::Cuda(ordinal) = self.device.or_else(calls::current_device)? else {
            return None;
        };
        let uuid = lowtide_device::cuda::uuid_text(&calls::uuid(ordinal)?);
        let bytes = self.bytes.unwrap_or(FIRST_GUESS);
        Some(Wanted { uuid, bytes, is_guess: self.bytes.is_none() })
    }
}

/// Makes a call that takes device memory, inside the gate; makes it again, if the driver has none, once there is room.
/// The call is not made twice otherwise.
#[inline]
pub(crate) fn taking(name: &'static str, want: impl Fn() -> Want, call: impl Fn() -> i32) -> i32 {
    match attempt(name, &want, &call) {
        Ok(OUT_OF_MEMORY) => take_later(name, &want, &|| attempt(name, &want, &call)),
        Ok(code) | Err(code) => code,
    }
}

/// Makes a call inside the gate, within the limit of the program. An error is that of entering, or the limit's.
#[inline]
fn attempt(name: &str, want: impl Fn() -> Want, call: impl Fn() -> i32) -> Result<i32, i32> {
    let is_inside = gate::is_inside();
    let _pass = gate::enter_to_take()?;
    match limit::get().filter(|limits| limits.has_cap() && !is_inside) {
        Some(limits) => limits.within(name, want(), call),
        None => Ok(call()),
    }
}

/// Makes a call again for which there was no memory, as often as there is room for it.
#[cold]
fn take_later(
    name: &'static str,
    want: &dyn Fn() -> Want,
    attempt: &dyn Fn() -> Result<i32, i32>,
) -> i32 {
    let asked = get().and_then(|room| caught(|| room.ask(name, want().resolve()?)).flatten());
    let Some(mut asking) = asked else { return OUT_OF_MEMORY };
    loop {
        match caught(|| gate::counted(|| asking.wait())) {
            Some(Ok(())) => {}
            Some(Err(ended)) => {
                if let Some(why) = ended.reason() {
                    say!("{name} fails with code {OUT_OF_MEMORY}: {why}");
                }
                return OUT_OF_MEMORY;
            }
            None => return OUT_OF_MEMORY,
        }
        match attempt() {
            Ok(OUT_OF_MEMORY) if caught(|| asking.failed()) == Some(true) => {}
            Ok(code) => {
                asking.end(code != OUT_OF_MEMORY);
                return code;
            }
            Err(code) => return code,
        }
    }
}

/// Runs code of the agent's outside the gate; `None` if it panicked, after which the process does not sleep.
fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    let done = uncancelled(|| catch_unwind(AssertUnwindSafe(run)));
    done.inspect_err(|_| obstacles::add_panic()).ok()
}
