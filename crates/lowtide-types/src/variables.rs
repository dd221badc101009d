//! The environment's variables. The agent lives in programs that may set variables at any time, while the C library lets
//! nobody read them then; so it has them kept before it starts a thread.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

static KEPT: OnceLock<BTreeMap<OsString, OsString>> = OnceLock::new();

/// Keeps the variables as they are now: code of lowtide in this process does not read the environment any more.
pub fn keep() {
    KEPT.get_or_init(|| env::vars_os().collect());
}

/// Returns a variable, as it is or as it was kept.
pub fn get(name: impl AsRef<OsStr>) -> Option<OsString> {
    match KEPT.get() {
        Some(kept) => kept.get(name.as_ref()).cloned(),
        None => env::var_os(name),
    }
}

/// Returns a variable that is text.
pub fn text(name: &str) -> Option<String> {
    get(name)?.into_string().ok()
}
