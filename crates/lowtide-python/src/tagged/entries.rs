//! The C functions that torch's pluggable allocator calls.
//!
//! torch calls them with its own lock and perhaps the interpreter's. They take neither.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::Arc;

use lowtide::pool::Tag;

use crate::tagged::error::Refusal;
use crate::tagged::pools;
use crate::tagged::scope;

/// The name of the pool's first tag: what is allocated while no tag is in force.
const UNTAGGED: &str = "default";

thread_local! {
    /// Why the last allocation on this thread was refused. torch only says that it is out of memory.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Allocates memory of a device in the tag that is in force on this thread. Returns null if that is
/// refused, which torch reports as out of memory.
#[unsafe(no_mangle)]
extern "C" fn lowtide_tag_malloc(size: isize, device: c_int, _stream: *mut c_void) -> *mut c_void {
    let allocated = catch_unwind(|| allocate(size, device).map_err(|refusal| refusal.to_string()));
    let allocated = allocated.unwrap_or_else(|_| Err("lowtide broke an invariant".to_owned()));
    match allocated {
        Ok(at) => ptr::with_exposed_provenance_mut(at as usize),
        Err(refusal) => {
            let _ = REFUSED.try_with(|refused| *refused.borrow_mut() = Some(refusal));
            ptr::null_mut()
        }
    }
}

/// Frees what `lowtide_tag_malloc` returned, on whatever thread. Another address is left alone.
#[unsafe(no_mangle)]
extern "C" fn lowtide_tag_free(at: *mut c_void, _size: isize, device: c_int, _stream: *mut c_void) {
    // A panic cannot go further up; what it left is for the next free.
    let _ = catch_unwind(|| free(at.addr() as u64, device));
}

/// Takes the reason of this thread's last refusal.
pub(crate) fn take_refusal() -> Option<String> {
    REFUSED.try_with(|refused| refused.borrow_mut().take()).unwrap_or_default()
}

fn allocate(size: isize, device: c_int) -> Result<u64, Refusal> {
    let size = u64::try_from(size).unwrap_or(u64::MAX);
    pools::check_process()?;
    if let Some(scope) = scope::in_force(device) {
        return scope.tagged.allocate(size, scope.tag, &scope.name);
    }
    pools::of_device(device)?.allocate(size, Tag::default(), &Arc::from(UNTAGGED))
}

fn free(at: u64, device: c_int) {
    // In a forked child the memory is the parent's.
    let of_device = |(number, _): &(u32, _)| i64::from(*number) == i64::from(device);
    let Some((_, tagged)) = pools::all().into_iter().find(of_device) else { return };
    // What the device does not take back shows in `lowtide.tags()`, and torch cannot be told.
    let _refused = tagged.free(at);
}
