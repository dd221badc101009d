//! The C boundary: how an exported name is entered, and what it may do with the
//! pointers it was given.
//!
//! Every exported function is written with [`entry!`], so that counting, injected
//! faults, the checkpoint gate, the capture rules and the catching of panics are
//! each done in one place and in one order. Pointers arrive as [`Out`], [`In`],
//! [`Text`] and [`Params`]: a value of these types is made only by a C caller, who
//! promises by the driver's contract that it is null or good for its purpose. That
//! promise is the invariant that the unsafe blocks below rest on.
#![allow(unsafe_code, reason = "reads and writes what C callers point at")]

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::{capture, checkpoint, code, faults, machine};

/// What an entry comes to: a driver code if it failed.
pub(super) type Outcome<T = ()> = Result<T, i32>;

/// Names that work before `cuInit`.
const BEFORE_INIT: &[&str] = &["cuInit", "cuDriverGetVersion", "cuGetErrorName"];

/// Defines exported entries. The body is a block of type [`Outcome`].
macro_rules! entry {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[allow(unsafe_code, non_snake_case, reason = "exported under the driver's own name")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::double::entry::call(stringify!($name), || $body)
        }
    )*};
}
pub(super) use entry;

/// Runs one entry: count, injected fault, `cuInit` seen, capture rule, gate, body.
pub(super) fn call(name: &'static str, body: impl FnOnce() -> Outcome) -> i32 {
    let run = || -> Outcome {
        start();
        faults::on_call(name)?;
        if name.starts_with("cu") && !BEFORE_INIT.contains(&name) && machine::get().mine().is_none()
        {
            return Err(code::NOT_INITIALIZED);
        }
        capture::on_call(name)?;
        let _inside = checkpoint::enter(name);
        body()
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => code::UNKNOWN,
    }
}

/// Brings the double up: once, before anything else of it runs.
pub(super) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        stay_loaded();
        faults::configure_from_environment();
    });
}

/// Streams run on threads of this library, so it must never be unmapped: a
/// `dlclose` by its user only drops a reference.
fn stay_loaded() {
    let mut here = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is of a function in this object and `here` is ours to fill.
    let found = unsafe { libc::dladdr(stay_loaded as *const c_void, &raw mut here) };
    if found != 0 {
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: dladdr succeeded, so the name is a string the loader keeps.
        unsafe { libc::dlopen(here.dli_fname, flags) };
    }
}

/// Where a C caller wants a value; null where it wants none.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value; null is an invalid value.
    pub(super) fn put(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised room for one `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the value unless the caller does not want it.
    pub(super) fn put_if_wanted(&self, value: T) {
        let _unwanted = self.put(value);
    }

    /// Reads what is there, for arguments that go both ways.
    pub(super) fn get(&self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Writes several values to a caller who said how many there is room for.
    pub(super) fn put_all(&self, values: &[T], room: usize) -> Outcome
    where
        T: Copy,
    {
        if self.0.is_null() || values.len() > room {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised room for `room` values.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

impl Out<c_char> {
    /// Writes a text with its terminating zero, cut to the room there is.
    pub(super) fn put_text(&self, text: &str, room: usize) -> Outcome {
        let fits = text.len().min(room.saturating_sub(1));
        let bytes: Vec<c_char> =
            text.as_bytes()[..fits].iter().chain(&[0]).map(|byte| byte.cast_signed()).collect();
        self.put_all(&bytes, room)
    }
}

/// Where a C caller keeps one value or several.
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value; null is an invalid value.
    pub(super) fn get(&self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised that a `T` is there.
        Ok(unsafe { self.0.read() })
    }

    /// The first `count` values.
    pub(super) fn get_all(&self, count: usize) -> Outcome<Vec<T>> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised that `count` values are there.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

/// A zero-terminated text.
#[repr(transparent)]
pub(super) struct Text(*const c_char);

impl Text {
    /// The text, with what is not UTF-8 replaced.
    pub(super) fn get(&self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised a zero-terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// The parameters of a kernel: a pointer to each.
#[repr(transparent)]
pub(super) struct Params(*const *const c_void);

impl Params {
    /// Parameter `index`, which the kernel's signature says is a `T`.
    pub(super) fn get<T: Copy>(&self, index: usize) -> Outcome<T> {
        let at = In(self.0).get_all(index + 1)?[index];
        In(at.cast::<T>()).get()
    }
}
