//! Finding a driver's library: several names, each try remembered.

use std::env;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::{Attempt, Error, Result};

/// A library that is looked up at run time.
pub(crate) struct Wanted {
    /// What people call it.
    pub(crate) library: &'static str,
    /// The variable that names one file and nothing else.
    pub(crate) override_variable: &'static str,
    /// Where it usually is, in the order to try.
    pub(crate) names: &'static [&'static str],
}

/// The CUDA driver (R29).
pub(crate) const CUDA: Wanted = Wanted {
    library: "CUDA driver",
    override_variable: "LOWTIDE_CUDA_LIBRARY",
    names: if cfg!(windows) {
        &["nvcuda.dll"]
    } else if cfg!(target_os = "linux") {
        &[
            "libcuda.so.1",
            "libcuda.so",
            "/usr/lib/wsl/lib/libcuda.so.1",
            "/usr/local/nvidia/lib64/libcuda.so.1",
            "/run/opengl-driver/lib/libcuda.so.1",
        ]
    } else {
        // There has been no CUDA on macOS since 2019.
        &[]
    },
};

/// NVML.
pub(crate) const NVML: Wanted = Wanted {
    library: "NVML",
    override_variable: "LOWTIDE_NVML_LIBRARY",
    names: if cfg!(windows) {
        &["nvml.dll"]
    } else if cfg!(target_os = "linux") {
        &[
            "libnvidia-ml.so.1",
            "libnvidia-ml.so",
            "/usr/lib/wsl/lib/libnvidia-ml.so.1",
            "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
            "/run/opengl-driver/lib/libnvidia-ml.so.1",
        ]
    } else {
        &[]
    },
};

impl Wanted {
    /// Tries one name after another with `open`, and says what each came to.
    pub(crate) fn find<T>(
        &self,
        mut open: impl FnMut(&Path) -> std::result::Result<T, String>,
    ) -> (Vec<Attempt>, Result<(T, PathBuf)>) {
        let mut tried = Vec::new();
        for name in self.candidates() {
            let outcome = open(&name);
            let failure = outcome.as_ref().err().cloned();
            tried.push(Attempt { name: name.display().to_string(), failure });
            if let Ok(found) = outcome {
                return (tried, Ok((found, name)));
            }
        }
        let error = Error::NoLibrary {
            library: self.library,
            override_variable: self.override_variable,
            tried: tried.clone(),
        };
        (tried, Err(error))
    }

    fn candidates(&self) -> Vec<PathBuf> {
        match env::var_os(self.override_variable) {
            Some(path) if !path.is_empty() => vec![path.into()],
            _ => self.names.iter().map(PathBuf::from).collect(),
        }
    }
}

/// Loads a library and never unloads it: a driver has threads and exit handlers of its own.
#[allow(unsafe_code, reason = "loads a shared object")]
pub(crate) fn load(path: &Path) -> std::result::Result<&'static Library, String> {
    // SAFETY: loading runs the library's initialisers; a driver's are what every CUDA program runs.
    let library = unsafe { Library::new(path) }.map_err(|error| reason(&error))?;
    Ok(Box::leak(Box::new(library)))
}

fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}
