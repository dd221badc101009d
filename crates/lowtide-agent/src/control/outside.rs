//! Questions from outside (`lowtide why PID`): a thread executes the text that answers them, once it has the interpreter's
//! lock.
#![allow(unsafe_code, reason = "hands the text to a thread")]

use std::error::Error;
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
    let refused = |reason| {
        WAITS.store(false, SeqCst);
        Answer::Refused { reason }
    };
    let script = match script() {
        Ok(script) => script.into_raw(),
        Err(error) => return refused(error.to_string()),
    };
    if interpreter::start(run, script.cast()) {
        return Answer::Asked;
    }
    // SAFETY: no thread owns it.
    drop(unsafe { CString::from_raw(script) });
    refused("no thread could be started".to_owned())
}

fn script() -> Result<CString, Box<dyn Error>> {
    let folder = PrivateFolder::of_user()?;
    let namespace = fs::read_link("/proc/thread-self/ns/pid")?;
    let name = question_name(&namespace.to_string_lossy(), process::id());
    Ok(CString::new(question_script(&folder.path().join(name)))?)
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
