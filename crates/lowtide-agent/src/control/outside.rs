//! Questions from outside (`lowtide why PID`): a thread executes the text that answers them, once it has the interpreter's
//! lock.
#![allow(unsafe_code, reason = "hands the text to a thread")]

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::{fs, process, ptr};

use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::{Answer, question_name, question_script};

use crate::interpreter;

/// Whether a thread waits for the interpreter's lock. It answers whoever asks by then.
static WAITS: AtomicBool = AtomicBool::new(false);

/// Has a thread answer.
pub(crate) fn ask() -> Answer {
    if WAITS.swap(true, SeqCst) {
        return Answer::Asked;
    }
    let started = script().map(|script| {
        let script = script.into_raw();
        let started = interpreter::start(run, script.cast());
        if !started {
            // SAFETY: no thread owns it.
            drop(unsafe { CString::from_raw(script) });
        }
        started
    });
    if started != Ok(true) {
        WAITS.store(false, SeqCst);
    }
    match started {
        Ok(true) => Answer::Asked,
        Ok(false) => Answer::Refused { reason: "no thread could be started".to_owned() },
        Err(reason) => Answer::Refused { reason },
    }
}

fn script() -> Result<CString, String> {
    let folder = PrivateFolder::of_user().map_err(|error| error.to_string())?;
    let namespace = fs::read_link("/proc/thread-self/ns/pid").map_err(|error| error.to_string())?;
    let name = question_name(&namespace.to_string_lossy(), process::id());
    CString::new(question_script(&folder.path().join(name))).map_err(|error| error.to_string())
}

extern "C-unwind" fn run(script: *mut c_void) -> *mut c_void {
    if let Some(interpreter) = interpreter::find() {
        // SAFETY: the text that `ask` gave away, dropped below.
        let text = unsafe { CStr::from_ptr(script.cast()) };
        interpreter.with_lock(|| {
            let names = interpreter.new_names();
            interpreter.execute(text, names);
            interpreter.drop_names(names);
        });
    }
    // SAFETY: as above.
    drop(unsafe { CString::from_raw(script.cast()) });
    WAITS.store(false, SeqCst);
    ptr::null_mut()
}
