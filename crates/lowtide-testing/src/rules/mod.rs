//! The rules of the CUDA driver that lowtide relies on, asked of a real GPU and of the double.
//!
//! Each rule is a sentence, asked with raw calls in a process of its own, because some of them cost
//! the context. What a GPU answers is the rule; the double must answer the same. A rule that a GPU
//! does not have is no rule, and goes.

mod accounts;
mod capture;
mod checkpoint;
mod contexts;
mod host_memory;
mod lost;
mod streams;
mod virtual_memory;

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, panic};

use crate::raw::{Access, Properties, Raw, first};
use crate::suite::Case;

const RULE_VARIABLE: &str = "LOWTIDE_RULE";
/// No rule takes longer than a few seconds; one that hangs must not hold the suite.
const PATIENCE: Duration = Duration::from_secs(30);
const PAGE: u64 = 2 << 20;
/// One of the copies that keep a stream busy.
const BUSY_BYTES: u64 = 32 << 20;

// The driver's result codes, by the names it gives them.
const SUCCESS: i32 = 0;
const INVALID_VALUE: i32 = 1;
const INVALID_DEVICE: i32 = 101;
const INVALID_CONTEXT: i32 = 201;
const OPERATING_SYSTEM: i32 = 304;
const ILLEGAL_STATE: i32 = 401;
const NOT_FOUND: i32 = 500;
const NOT_READY: i32 = 600;
const ILLEGAL_ADDRESS: i32 = 700;
const CONTEXT_IS_DESTROYED: i32 = 709;
const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
const LAUNCH_FAILED: i32 = 719;
const NOT_SUPPORTED: i32 = 801;
const CAPTURE_UNSUPPORTED: i32 = 900;
const CAPTURE_INVALIDATED: i32 = 901;
const CAPTURE_IMPLICIT: i32 = 906;
const CAPTURE_WRONG_THREAD: i32 = 908;

/// A rule's sentence and how it is asked.
type Rule = (&'static str, fn(&World));

fn all() -> impl Iterator<Item = &'static Rule> {
    [
        virtual_memory::RULES,
        host_memory::RULES,
        streams::RULES,
        contexts::RULES,
        lost::RULES,
        capture::RULES,
        accounts::RULES,
        checkpoint::RULES,
    ]
    .into_iter()
    .flatten()
}

/// Asks the one rule that the environment names, and returns the process's exit code. Returns
/// `None` if it names none. A test program with rules calls this first in its `main`.
pub fn main_of_child() -> Option<ExitCode> {
    env::var(RULE_VARIABLE).ok().map(|name| ask(&name))
}

/// Returns one case for each rule.
pub fn cases() -> Vec<Case> {
    all().map(|(name, _)| Case::new(name, |_| in_a_child(name))).collect()
}

fn in_a_child(name: &str) {
    let state = env::temp_dir().join(format!("lowtide-rule-{name}-{}", std::process::id()));
    let program = env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.env(RULE_VARIABLE, name).env("LOWTIDE_DOUBLE_STATE", &state).env("RUST_BACKTRACE", "0");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("this program starts again");
    let ended = ended_within(&mut child, PATIENCE);
    if !ended {
        child.kill().expect("a child of ours can be killed");
    }
    let output = child.wait_with_output().expect("a child of ours can be waited for");
    let _ = std::fs::remove_file(state);
    let said = String::from_utf8_lossy(&output.stderr);
    // What the child said is the message; a panic here would put a second one around it.
    if !ended {
        panic::resume_unwind(Box::new(format!("no answer within {PATIENCE:?}: {said}")));
    } else if !output.status.success() {
        panic::resume_unwind(Box::new(format!("{}: {said}", output.status)));
    }
}

// What a rule says is a few lines: the pipe holds it until the child has ended.
fn ended_within(child: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if child.try_wait().expect("a child of ours can be asked").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn ask(name: &str) -> ExitCode {
    if let Some(pid) = name.strip_prefix(checkpoint::LOCKER) {
        return checkpoint::locker(pid.parse().expect("a pid"));
    }
    let Some((_, rule)) = all().find(|(known, _)| *known == name) else {
        eprintln!("there is no rule {name:?}");
        return ExitCode::from(2);
    };
    rule(&World::new());
    ExitCode::SUCCESS
}

/// A driver with the primary context current, and what rules are asked with.
struct World {
    raw: Raw,
    context: u64,
}

impl World {
    fn new() -> World {
        let raw = Raw::load();
        let mut context = 0;
        assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut context, 0), SUCCESS);
        assert_eq!(raw.cuCtxPushCurrent_v2(context), SUCCESS);
        World { raw, context }
    }

    fn reserve(&self, pages: u64) -> u64 {
        let mut at = 0;
        assert_eq!(self.raw.cuMemAddressReserve(&mut at, pages * PAGE, 0, 0, 0), SUCCESS);
        at
    }

    fn create(&self, pages: u64) -> u64 {
        let mut handle = 0;
        assert_eq!(
            self.raw.cuMemCreate(&mut handle, pages * PAGE, &Properties::default(), 0),
            SUCCESS
        );
        handle
    }

    fn map(&self, at: u64, pages: u64, handle: u64) -> i32 {
        self.raw.cuMemMap(at, pages * PAGE, 0, handle, 0)
    }

    fn open(&self, at: u64, pages: u64) -> i32 {
        self.raw.cuMemSetAccess(at, pages * PAGE, &Access::READ_WRITE, 1)
    }

    fn unmap(&self, at: u64, pages: u64) -> i32 {
        self.raw.cuMemUnmap(at, pages * PAGE)
    }

    /// Reserved, mapped and open; the address and the handle.
    fn ready(&self, pages: u64) -> (u64, u64) {
        let (at, handle) = (self.reserve(pages), self.create(pages));
        assert_eq!(self.map(at, pages, handle), SUCCESS);
        assert_eq!(self.open(at, pages), SUCCESS);
        (at, handle)
    }

    /// A stream that the legacy stream does not wait for, nor it for that.
    fn stream(&self) -> u64 {
        const NON_BLOCKING: u32 = 1;
        let mut stream = 0;
        assert_eq!(self.raw.cuStreamCreate(&mut stream, NON_BLOCKING), SUCCESS);
        stream
    }

    fn blocking_stream(&self) -> u64 {
        let mut stream = 0;
        assert_eq!(self.raw.cuStreamCreate(&mut stream, 0), SUCCESS);
        stream
    }

    /// Puts work on a stream that takes tens of milliseconds: what does not wait for it is there
    /// before it is done. Where it copies from, and the pinned memory that it copies to.
    fn keep_busy(&self, stream: u64) -> (u64, u64) {
        let ((at, _), host) = (self.ready(BUSY_BYTES / PAGE), self.pinned(BUSY_BYTES));
        self.copy_for_long(host, at, stream);
        (at, host)
    }

    fn copy_for_long(&self, to: u64, from: u64, stream: u64) {
        for _ in 0..64 {
            assert_eq!(self.raw.cuMemcpyDtoHAsync_v2(to, from, BUSY_BYTES, stream), SUCCESS);
        }
    }

    /// The first byte at a device address, once the legacy stream gets to it.
    fn byte(&self, at: u64) -> u8 {
        let host = self.pinned(1);
        assert_eq!(self.raw.cuMemcpyDtoH_v2(host, at, 1), SUCCESS);
        host_byte(host)
    }

    /// A module with lowtide's kernel.
    fn module(&self) -> u64 {
        let image = concat!(include_str!("../../../lowtide-device/kernels/digest.ptx"), "\0");
        let mut module = 0;
        assert_eq!(self.raw.cuModuleLoadData(&mut module, &image.as_bytes()[0]), SUCCESS);
        module
    }

    /// lowtide's kernel.
    fn digest(&self) -> u64 {
        let (mut function, name) = (0, first(c"lowtide_digest"));
        assert_eq!(self.raw.cuModuleGetFunction(&mut function, self.module(), name), SUCCESS);
        function
    }

    /// Launches it for pages whose list lies at a device address, with the digests behind it.
    fn launch_digest(&self, function: u64, list: u64, count: u64) -> i32 {
        let (out, keys) = (list + 4096, *crate::keys());
        let mut parameters = [
            (&raw const list).addr(),
            (&raw const out).addr(),
            (&raw const count).addr(),
            (&raw const keys).addr(),
        ]
        .map(|pointer| pointer as u64);
        self.raw.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, 0, &mut parameters, 0)
    }

    /// Does it on another thread, with the context current there.
    fn elsewhere<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let with_context = || {
            assert_eq!(self.raw.cuCtxSetCurrent(self.context), SUCCESS);
            work()
        };
        std::thread::scope(|scope| scope.spawn(with_context).join().expect("it does not panic"))
    }

    fn event(&self) -> u64 {
        let mut event = 0;
        assert_eq!(self.raw.cuEventCreate(&mut event, 0), SUCCESS);
        event
    }

    fn pinned(&self, size: u64) -> u64 {
        let mut at = 0;
        assert_eq!(self.raw.cuMemHostAlloc(&mut at, size, 0), SUCCESS);
        at
    }

    fn plain(&self, size: u64) -> u64 {
        let mut at = 0;
        assert_eq!(self.raw.cuMemAlloc_v2(&mut at, size), SUCCESS);
        at
    }

    fn free_bytes(&self) -> u64 {
        let (mut free, mut total) = (0, 0);
        assert_eq!(self.raw.cuMemGetInfo_v2(&mut free, &mut total), SUCCESS);
        free
    }
}

/// Pages of this process, aligned and real, until it ends.
fn pages_of_this_process(size: usize) -> u64 {
    let memory = vec![1u8; size + PAGE as usize].leak();
    (memory.as_ptr().addr() as u64).next_multiple_of(PAGE)
}

/// A byte of this process's memory, wherever it came from.
#[allow(unsafe_code, reason = "reads what a rule has by its address")]
fn host_byte(at: u64) -> u8 {
    let byte = std::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: rules ask for memory of this process only, pinned or pageable, that they keep.
    unsafe { byte.read_volatile() }
}

/// Fills memory of this process.
#[allow(unsafe_code, reason = "writes what a rule has by its address")]
fn fill_host(at: u64, byte: u8, size: u64) {
    let first = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    // SAFETY: as above, and nothing else of this process writes there.
    unsafe { first.write_bytes(byte, size as usize) };
}
