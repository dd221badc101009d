//! What rules are asked with: a driver with its primary context current, short names for its calls, and
//! other processes.

use std::process::Command;

pub(super) use crate::code::{
    ALREADY_REGISTERED, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED,
    CAPTURE_WRONG_THREAD, CONTEXT_IS_DESTROYED, ILLEGAL_ADDRESS, ILLEGAL_STATE, INVALID_CONTEXT,
    INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, LAUNCH_FAILED, NOT_FOUND, NOT_READY,
    NOT_REGISTERED, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS,
};
use crate::double::Double;
use crate::keys;
use crate::raw::{Access, Properties, Raw, first};
use crate::role::Other;

/// The variable that tells a test program, started again, which rule to ask.
pub(super) const RULE_VARIABLE: &str = "LOWTIDE_RULE";
pub(super) const PAGE: u64 = 2 << 20;
/// The size of the copies that keep a stream busy.
pub(super) const BUSY_BYTES: u64 = 32 << 20;

/// Makes a call that writes what it makes. Returns that.
#[track_caller]
pub(super) fn made<T: Default>(call: impl FnOnce(&mut T) -> i32) -> T {
    let mut value = T::default();
    assert_eq!(call(&mut value), SUCCESS);
    value
}

/// The sentence of a rule, and how it is asked.
pub(super) type Rule = (&'static str, fn(&Fixture));

/// A driver with the primary context current, and what rules are asked with.
pub(super) struct Fixture {
    pub(super) raw: Raw,
    pub(super) context: u64,
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        let raw = Raw::load();
        let context = made(|context| raw.cuDevicePrimaryCtxRetain(context, 0));
        assert_eq!(raw.cuCtxPushCurrent_v2(context), SUCCESS);
        Fixture { raw, context }
    }

    pub(super) fn reserve(&self, pages: u64) -> u64 {
        made(|at| self.raw.cuMemAddressReserve(at, pages * PAGE, 0, 0, 0))
    }

    pub(super) fn create(&self, pages: u64) -> u64 {
        made(|handle| self.raw.cuMemCreate(handle, pages * PAGE, &Properties::default(), 0))
    }

    pub(super) fn map(&self, at: u64, pages: u64, handle: u64) -> i32 {
        self.raw.cuMemMap(at, pages * PAGE, 0, handle, 0)
    }

    pub(super) fn open(&self, at: u64, pages: u64) -> i32 {
        self.raw.cuMemSetAccess(at, pages * PAGE, &Access::READ_WRITE, 1)
    }

    pub(super) fn unmap(&self, at: u64, pages: u64) -> i32 {
        self.raw.cuMemUnmap(at, pages * PAGE)
    }

    /// Reserves, maps and opens pages; returns the address and the handle.
    pub(super) fn ready(&self, pages: u64) -> (u64, u64) {
        let (at, handle) = (self.reserve(pages), self.create(pages));
        assert_eq!(self.map(at, pages, handle), SUCCESS);
        assert_eq!(self.open(at, pages), SUCCESS);
        (at, handle)
    }

    /// Creates a stream that is not ordered with the legacy stream.
    pub(super) fn stream(&self) -> u64 {
        const NON_BLOCKING: u32 = 1;
        made(|stream| self.raw.cuStreamCreate(stream, NON_BLOCKING))
    }

    pub(super) fn blocking_stream(&self) -> u64 {
        made(|stream| self.raw.cuStreamCreate(stream, 0))
    }

    /// Puts work on a stream that takes tens of milliseconds or more: calls that do not wait for it
    /// return before it is done. Returns where it copies from, and the pinned memory that it copies to.
    pub(super) fn keep_busy(&self, stream: u64) -> (u64, u64) {
        let ((at, _), host) = (self.ready(BUSY_BYTES / PAGE), self.pinned(BUSY_BYTES));
        self.copy_for_long(host, at, stream);
        (at, host)
    }

    /// Submits copies that take long together. The double sleeps in each copy for as long as it is
    /// told to, so that its time does not depend on what else the machine does.
    pub(super) fn copy_for_long(&self, to: u64, from: u64, stream: u64) {
        let mut copies = 64;
        if std::env::var_os("LOWTIDE_CUDA_LIBRARY").is_some_and(|path| path == *Double::path()) {
            Double::load().configure("copy_us=400000");
            copies = 1;
        }
        for _ in 0..copies {
            assert_eq!(self.raw.cuMemcpyDtoHAsync_v2(to, from, BUSY_BYTES, stream), SUCCESS);
        }
    }

    /// Reads the first byte at a device address, once the legacy stream gets to it.
    pub(super) fn byte(&self, at: u64) -> u8 {
        let host = self.pinned(1);
        assert_eq!(self.raw.cuMemcpyDtoH_v2(host, at, 1), SUCCESS);
        host_byte(host)
    }

    /// Loads a module with lowtide's kernel.
    pub(super) fn module(&self) -> u64 {
        let image = concat!(include_str!("../../../lowtide-device/kernels/digest.ptx"), "\0");
        made(|module| self.raw.cuModuleLoadData(module, &image.as_bytes()[0]))
    }

    /// Loads lowtide's kernel.
    pub(super) fn digest(&self) -> u64 {
        let name = first(c"lowtide_digest");
        made(|function| self.raw.cuModuleGetFunction(function, self.module(), name))
    }

    /// Launches the kernel for pages whose list lies at a device address, with the digests behind it.
    pub(super) fn launch_digest(&self, function: u64, list: u64, count: u64) -> i32 {
        let (out, keys) = (list + 4096, *keys::fixed());
        let mut parameters = [
            (&raw const list).addr(),
            (&raw const out).addr(),
            (&raw const count).addr(),
            (&raw const keys).addr(),
        ]
        .map(|pointer| pointer as u64);
        self.raw.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, 0, &mut parameters, 0)
    }

    /// Runs `work` on another thread, with the context current there.
    pub(super) fn elsewhere<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let with_context = || {
            assert_eq!(self.raw.cuCtxSetCurrent(self.context), SUCCESS);
            work()
        };
        std::thread::scope(|scope| scope.spawn(with_context).join().expect("it does not panic"))
    }

    pub(super) fn event(&self) -> u64 {
        made(|event| self.raw.cuEventCreate(event, 0))
    }

    pub(super) fn pinned(&self, size: u64) -> u64 {
        made(|at| self.raw.cuMemHostAlloc(at, size, 0))
    }

    pub(super) fn plain(&self, size: u64) -> u64 {
        made(|at| self.raw.cuMemAlloc_v2(at, size))
    }

    pub(super) fn free_bytes(&self) -> u64 {
        made(|free| self.raw.cuMemGetInfo_v2(free, &mut 0))
    }
}

/// Another process: this program, started again in a role. It answers a number for each word.
pub(super) struct OtherProcess(pub(super) Other);

impl OtherProcess {
    /// Starts it, with settings of the double.
    pub(super) fn start(role: &str, double: &str) -> OtherProcess {
        let start = |command: &mut Command| {
            command.env(RULE_VARIABLE, role).env("LOWTIDE_DOUBLE", double);
        };
        OtherProcess(Other::start_with(start))
    }

    /// Returns the answer to a word.
    pub(super) fn ask(&mut self, word: &str) -> i32 {
        self.tell(word);
        self.answer(word)
    }

    /// Asks several words, whose answers are all a success.
    pub(super) fn steps(&mut self, words: &[&str]) {
        for word in words {
            assert_eq!(self.ask(word), SUCCESS, "{word}");
        }
    }

    /// Says a word, and does not wait for the answer.
    pub(super) fn tell(&mut self, word: &str) {
        self.0.tell(word);
    }

    /// Waits for the answer to a word.
    pub(super) fn answer(&mut self, word: &str) -> i32 {
        let answer = self.0.next_answer();
        answer.parse().unwrap_or_else(|_| panic!("{word}: {answer:?}"))
    }
}

/// Allocates pages of this process, aligned and real, until it ends.
pub(super) fn pages_of_this_process(size: usize) -> u64 {
    let memory = vec![1u8; size + PAGE as usize].leak();
    (memory.as_ptr().addr() as u64).next_multiple_of(PAGE)
}

/// Reads a byte of this process's memory by its address.
#[allow(unsafe_code, reason = "reads what a rule has by its address")]
pub(super) fn host_byte(at: u64) -> u8 {
    let byte = std::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: rules ask for memory of this process only, pinned or pageable, that they keep.
    unsafe { byte.read_volatile() }
}

/// Fills memory of this process.
#[allow(unsafe_code, reason = "writes what a rule has by its address")]
pub(super) fn fill_host(at: u64, byte: u8, size: u64) {
    let first = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    // SAFETY: as above, and nothing else of this process writes there.
    unsafe { first.write_bytes(byte, size as usize) };
}
