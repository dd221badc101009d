//! The pointers of C callers, and what an entry may do with them.
//!
//! Pointers arrive as [`Out`], [`In`], [`Text`] and [`Params`]. A value of these types is made only by
//! a C caller, who promises by the driver's contract that it is null or good for its purpose. The
//! unsafe blocks below rest on that promise.
#![allow(unsafe_code, reason = "reads and writes what C callers point at")]

use std::ffi::{CStr, c_char, c_void};

use super::code;

/// The result of a driver call: a driver code if it failed.
pub(super) type CallResult<T = ()> = Result<T, i32>;

/// A pointer to where a C caller wants a value; null if it wants none.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value; null is an invalid value.
    pub(super) fn put(&self, value: T) -> CallResult {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised room for one `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes a value of 32 bits, where the caller has space for no more.
    pub(super) fn put_small(&self, value: u32) -> CallResult {
        Out(self.0.cast()).put(value)
    }

    /// Writes the value unless the caller does not want it.
    pub(super) fn put_if_wanted(&self, value: T) {
        let _unwanted = self.put(value);
    }

    /// Reads what is there, for arguments that go both ways.
    pub(super) fn get(&self) -> CallResult<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Writes several values, if the caller has space for them.
    pub(super) fn put_all(&self, values: &[T], room: usize) -> CallResult
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
    /// Writes a text with its terminating zero, cut to the caller's space.
    pub(super) fn put_text(&self, text: &str, room: usize) -> CallResult {
        let fits = text.len().min(room.saturating_sub(1));
        let bytes: Vec<c_char> =
            text.as_bytes()[..fits].iter().chain(&[0]).map(|byte| byte.cast_signed()).collect();
        self.put_all(&bytes, room)
    }
}

/// A pointer to where a C caller keeps one value or several.
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value; null is an invalid value.
    pub(super) fn get(&self) -> CallResult<T> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised that a `T` is there.
        Ok(unsafe { self.0.read() })
    }

    /// Reads the first `count` values.
    pub(super) fn get_all(&self, count: usize) -> CallResult<Vec<T>> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promised that `count` values are there.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

impl<T> In<Out<T>> {
    /// Reads the first `count` places.
    pub(super) fn get_places(&self, count: usize) -> CallResult<Vec<Out<T>>> {
        let places = In(self.0.cast::<*mut T>()).get_all(count)?;
        Ok(places.into_iter().map(Out).collect())
    }
}

/// A pointer to a zero-terminated text.
#[repr(transparent)]
pub(super) struct Text(*const c_char);

impl Text {
    /// Reads the text and replaces what is not UTF-8.
    pub(super) fn get(&self) -> CallResult<String> {
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
    /// Reads parameter `index`, which is a `T` by the kernel's signature.
    pub(super) fn get<T: Copy>(&self, index: usize) -> CallResult<T> {
        let at = In(self.0).get_all(index + 1)?[index];
        In(at.cast::<T>()).get()
    }
}
