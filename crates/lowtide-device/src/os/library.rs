//! Finding and loading a driver library.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use lowtide_types::variables;

use crate::facts::{Attempt, DriverLibrary};
use crate::{Error, Result};

impl DriverLibrary {
    /// Tries one name after another with `open`. Returns every attempt, and the first success.
    pub(crate) fn find<T>(
        self,
        mut open: impl FnMut(&Path) -> std::result::Result<T, String>,
    ) -> (Vec<Attempt>, Result<(T, PathBuf)>) {
        let mut tried = Vec::new();
        for name in self.candidates() {
            let opened = open(&name);
            let failure = opened.as_ref().err().cloned();
            tried.push(Attempt { name: name.display().to_string(), failure });
            if let Ok(found) = opened {
                return (tried, Ok((found, name)));
            }
        }
        let error = Error::NoLibrary { library: self, tried: tried.clone() };
        (tried, Err(error))
    }

    fn candidates(self) -> Vec<PathBuf> {
        match variables::get(self.variable()) {
            Some(path) if !path.is_empty() => vec![path.into()],
            _ => self.names().iter().map(PathBuf::from).collect(),
        }
    }
}

static LOADED: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());

/// Loads a library and never unloads it: a driver has threads and exit handlers of its own.
#[allow(unsafe_code, reason = "loads a shared object")]
pub(crate) fn load(path: &Path) -> std::result::Result<&'static Library, String> {
    // SAFETY: loading runs the library's initialisers; a driver's are what every CUDA program runs.
    let library = unsafe { Library::new(path) }.map_err(|error| reason(&error))?;
    let library: &'static Library = Box::leak(Box::new(library));
    // Reachable, so that no tool for leaks in the program takes it for one.
    LOADED.lock().unwrap_or_else(PoisonError::into_inner).push(library);
    Ok(library)
}

fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}
