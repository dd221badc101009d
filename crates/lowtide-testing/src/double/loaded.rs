//! The double from a test's side: found, loaded and driven.
#![allow(unsafe_code, reason = "loads a shared object and calls into it")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

use super::control::Live;
use crate::Dice;
use crate::raw::Raw;
use crate::strikes::Strikes;

const FILE_NAME: &str = "liblowtide_testing.so";

/// The calls of a pool that a driver may refuse.
pub const REFUSABLE: [&str; 14] = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuEventSynchronize",
    "cuEventRecord",
    "cuLaunchKernel",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
];

/// The answers of a driver that refuses: out of memory, and an error without a meaning.
pub const REFUSALS: [i32; 2] = [2, 999];

/// The driver double, loaded into this process.
///
/// Its state belongs to the process: loading the same file again gives the same double. Tests in one
/// process therefore use it one after another, with [`Double::take`].
///
/// ```no_run
/// use lowtide_testing::double::Double;
///
/// let double = Double::take();
/// double.fail_nth("cuMemCreate", 2, 2);
/// // … run what is tested with `Double::path()` as its CUDA library …
/// assert_eq!(double.live().handles, 0);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Double {
    library: &'static Library,
}

/// A test's exclusive use of the double. At its end faults and settings are cleared.
#[derive(Debug)]
pub struct DoubleGuard {
    double: Double,
    _alone: MutexGuard<'static, ()>,
}

impl Double {
    /// Finds the shared object: `LOWTIDE_DOUBLE_LIBRARY`, or the file that cargo builds.
    ///
    /// # Panics
    /// If it is nowhere.
    pub fn path() -> PathBuf {
        if let Some(path) = std::env::var_os("LOWTIDE_DOUBLE_LIBRARY") {
            return path.into();
        }
        let program = std::env::current_exe().expect("this program has a path");
        let folders = program.ancestors().skip(1).take(2);
        let mut candidates = folders
            .flat_map(|folder| [folder.join(FILE_NAME), folder.join("deps").join(FILE_NAME)]);
        candidates.find(|path| path.exists()).unwrap_or_else(|| {
            panic!(
                "{FILE_NAME} is not beside {}: run `cargo build -p lowtide-testing`",
                program.display()
            )
        })
    }

    /// Loads the double, and never unloads it.
    ///
    /// # Panics
    /// If it cannot be loaded.
    pub fn load() -> Double {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| {
            let path = Double::path();
            // SAFETY: the double's initialisers are those of Rust's std, which may run.
            let library = unsafe { Library::new(&path) };
            library.unwrap_or_else(|why| panic!("{}: {why}", path.display()))
        });
        Double { library }
    }

    /// Waits for this process's other tests to be done with the double, then loads it.
    pub fn take() -> DoubleGuard {
        static IN_USE: Mutex<()> = Mutex::new(());
        let alone = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        DoubleGuard { double: Double::load(), _alone: alone }
    }

    /// Returns the double's driver calls. `cuInit` is left to the caller.
    pub fn raw(&self) -> Raw {
        Raw::of(self.library)
    }

    /// Returns the address of an exported function.
    ///
    /// # Panics
    /// If the double has none of that name.
    fn address(&self, name: &str) -> *const c_void {
        // SAFETY: the address is only handed on; who calls it says with which type.
        let found = unsafe { self.library.get::<*const c_void>(name) };
        *found.unwrap_or_else(|why| panic!("the driver double has no {name}: {why}"))
    }

    /// Applies settings; see the table in `double/faults.rs`.
    ///
    /// # Panics
    /// If the text is wrong.
    pub fn configure(&self, text: &str) {
        let address = self.address("lowtide_double_configure");
        // SAFETY: the type is that of the definition in `control.rs`.
        let configure: extern "C" fn(*const c_char) -> i32 =
            unsafe { std::mem::transmute(address) };
        let c_text = CString::new(text).expect("settings hold no zero byte");
        assert_eq!(configure(c_text.as_ptr()), 0, "the driver double refused `{text}`");
    }

    /// Makes the `nth` call of a function from now (the first is 1) answer `code`, once.
    ///
    /// # Panics
    /// If the double has no such function, or `nth` is 0.
    pub fn fail_nth(&self, name: &str, nth: u64, code: i32) {
        self.address(name);
        self.configure(&format!("fail={name}@{nth}:{code}"));
    }

    /// Makes every call of a function answer `code`.
    ///
    /// # Panics
    /// If the double has no such function.
    pub fn fail_always(&self, name: &str, code: i32) {
        self.address(name);
        self.configure(&format!("fail={name}:{code}"));
    }

    /// Makes one or two of these calls fail soon, for a while or until the faults are cleared.
    ///
    /// # Panics
    /// If there are no calls, or the double has no such function.
    pub fn arm(&self, calls: &[&str], dice: &mut Dice) {
        for _ in 0..=dice.roll(2) {
            let (call, code) = (dice.pick(calls), dice.pick(&REFUSALS));
            let Strikes { spared, times } = Strikes::roll(dice);
            match times {
                None => self.fail_always(call, code),
                Some(times) => {
                    for time in 1..=times {
                        self.fail_nth(call, spared + time, code);
                    }
                }
            }
        }
    }

    /// Disarms every injected fault.
    pub fn clear_faults(&self) {
        self.tell("lowtide_double_clear_faults");
    }

    /// Starts the tally of calls anew.
    pub fn reset_calls(&self) {
        self.tell("lowtide_double_reset_calls");
    }

    /// Returns calls by name since the last reset, in order of first use.
    ///
    /// # Panics
    /// If the double answers nonsense.
    pub fn calls(&self) -> Vec<(String, u64)> {
        serde_json::from_str(&self.ask("lowtide_double_calls")).expect("a list of calls")
    }

    /// Returns how many calls have failed because of an injected fault, since the process began.
    ///
    /// # Panics
    /// If the double answers nonsense.
    pub fn struck(&self) -> u64 {
        serde_json::from_str(&self.ask("lowtide_double_struck")).expect("a number")
    }

    /// Returns what this process has at the double, and how many contexts the calling thread has
    /// stacked.
    ///
    /// # Panics
    /// If the double answers nonsense.
    pub fn live(&self) -> Live {
        serde_json::from_str(&self.ask("lowtide_double_live")).expect("counts")
    }

    fn tell(&self, name: &str) {
        // SAFETY: the type is that of the definitions in `control.rs` that are told.
        let call: extern "C" fn() = unsafe { std::mem::transmute(self.address(name)) };
        call();
    }

    fn ask(&self, name: &str) -> String {
        // SAFETY: the type is that of the definitions in `control.rs` that are asked.
        let call: extern "C" fn() -> *const c_char =
            unsafe { std::mem::transmute(self.address(name)) };
        let text = call();
        assert!(!text.is_null(), "{name} failed");
        // SAFETY: a string that the double keeps until this thread asks again.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl Deref for DoubleGuard {
    type Target = Double;

    fn deref(&self) -> &Double {
        &self.double
    }
}

impl Drop for DoubleGuard {
    fn drop(&mut self) {
        self.double.clear_faults();
        self.double.configure("defaults");
    }
}
