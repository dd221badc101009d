//! Has a Python before 3.14 execute a file, with a debugger that is installed.
//!
//! gdb loads the package's native module into the process and calls `lowtide_execute` there, which starts a thread and
//! returns. That needs the C library's locks for allocating and loading. So the call is made in a thread that can have
//! none of them: one that waits in the kernel, or one that is in the interpreter's own code.
//!
//! gdb ends by itself when its input does: it then leaves the process as it was, also where this one was killed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lowtide_types::kernel_text;

use super::python::{Python, mapped};
use super::target::Target;

const DEBUGGER: &str = "gdb";
/// What gdb prints behind the output of a command.
const MARK: &str = "lowtide-mark";
/// The symbols of all libraries would take seconds, in which the process stands still. A signal that comes during a call is
/// the process's own: where gdb stopped for it, it would break the call off in the middle.
const SETTINGS: &str = "set prompt\nset confirm off\nset pagination off\nset width 0\nset auto-load off\n\
    set auto-solib-add off\nset unwindonsignal on\nset print thread-events off\n\
    handle all nostop noprint pass\nhandle SIGINT nostop noprint pass";
/// The pause before the next look for a thread in which a call can be made.
const PAUSE: Duration = Duration::from_millis(20);
/// The system calls in which a thread waits and has none of those locks: `read`, `poll`, `select`, `nanosleep`, `accept`,
/// `recvfrom`, `recvmsg`, `wait4`, `futex`, `restart_syscall`, `clock_nanosleep`, `epoll_wait`, `waitid`, `pselect6`,
/// `ppoll`, `epoll_pwait`, `accept4`, `epoll_pwait2`.
const WAITS: [u64; 18] =
    [0, 7, 23, 35, 43, 45, 47, 61, 202, 219, 230, 232, 247, 270, 271, 281, 288, 441];

/// gdb, as it is talked to.
struct Debugger {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Has a thread of the process execute a file. Returns for how long the process stood still.
pub(super) fn execute(
    target: &Target,
    python: &Python,
    package: &Path,
    script: &Path,
    limit: Duration,
) -> anyhow::Result<Duration> {
    let pid = target.pid;
    if let Some(tracer) = target.tracer() {
        bail!("a debugger is attached to process {pid} already: process {tracer}");
    }
    let library = package.join("_native.abi3.so");
    let mut debugger = Debugger::start()?;
    debugger.try_out()?;
    let until = Instant::now() + limit;
    loop {
        let began = Instant::now();
        let said = debugger.ask(&format!("attach {pid}"))?;
        ensure!(
            target.tracer() == Some(debugger.child.id()),
            "{}: {}",
            target.not_permitted(),
            said.trim().lines().last().unwrap_or_default()
        );
        if let Some(thread) = thread(pid, python) {
            return debugger.call(pid, thread, &library, script).map(|()| began.elapsed());
        }
        debugger.ask("detach")?;
        ensure!(
            Instant::now() < until,
            "process {pid} was never where a debugger may call a function; ask again"
        );
        std::thread::sleep(PAUSE);
    }
}

/// Returns a thread of a stopped process in which a call can be made: the main one, if possible.
fn thread(pid: u32, python: &Python) -> Option<u32> {
    let mapped = mapped(&kernel_text(format!("/proc/{pid}/maps")).ok()?).into_iter();
    let own: Vec<_> = mapped.filter(|one| one.path == python.path).map(|one| one.range).collect();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut tasks: Vec<u32> =
        tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect();
    tasks.sort_by_key(|task| (*task != pid, *task));
    tasks.into_iter().find(|task| {
        let at = fs::read_to_string(format!("/proc/{pid}/task/{task}/syscall")).unwrap_or_default();
        can_call(&at, &own)
    })
}

/// Returns whether a thread that is stopped here can make a call. `at` is `/proc/PID/task/TID/syscall`: the number and
/// arguments of a system call, or -1, and the pointers to the stack and to the next instruction.
fn can_call(at: &str, own: &[Range<u64>]) -> bool {
    let words: Vec<&str> = at.split_whitespace().collect();
    let (Some(first), Some(last)) = (words.first(), words.last()) else { return false };
    let counter = u64::from_str_radix(last.trim_start_matches("0x"), 16).unwrap_or_default();
    match first.parse::<i64>() {
        Ok(-1) => own.iter().any(|part| part.contains(&counter)),
        Ok(number) => u64::try_from(number).is_ok_and(|number| WAITS.contains(&number)),
        Err(_) => false,
    }
}

impl Debugger {
    /// Starts gdb. A signal of the terminal does not reach it: it would end in the middle of a call.
    fn start() -> anyhow::Result<Debugger> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {DEBUGGER} --nx --quiet 2>&1")]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env_remove("DEBUGINFOD_URLS").env_remove("LD_PRELOAD");
        let mut child = command.spawn().context("starting a shell")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.context("its input")?, output.context("its output")?);
        let mut debugger = Debugger { child, input, output: BufReader::new(output) };
        debugger.ask(SETTINGS)?;
        Ok(debugger)
    }

    /// Calls a function in a process of ours first: a debugger that cannot write all registers of this processor would
    /// leave the other process with wrong ones.
    fn try_out(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting `cat`")?;
        // It has loaded its libraries when it answers, and ends with its input.
        child.stdin.as_mut().context("its input")?.write_all(b"\n")?;
        child.stdout.as_mut().context("its output")?.read_exact(&mut [0])?;
        let called = self.value(&format!(
            "attach {}\nsharedlibrary libc[.]so\nprint/u ((int(*)(void))getpid)()\ndetach\nfile\nnosharedlibrary",
            child.id()
        ));
        // The debugger has left it, or has ended.
        child.kill().and_then(|()| child.wait()).context("ending the process tried on")?;
        let called =
            called.context("gdb cannot call a function in a process here; a newer one may")?;
        ensure!(called == u64::from(child.id()), "gdb calls wrong functions here");
        Ok(())
    }

    /// Gives a command, and returns what is said up to its end.
    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        writeln!(self.input, "{command}\necho \\n{MARK}\\n").context("talking to the debugger")?;
        let mut said = String::new();
        loop {
            let mut line = String::new();
            ensure!(
                self.output.read_line(&mut line)? > 0,
                "--inject needs the debugger {DEBUGGER} on the search path (Debian: apt install gdb); it said: {}",
                said.trim()
            );
            if line.trim_end().ends_with(MARK) {
                return Ok(said);
            }
            said.push_str(&line);
        }
    }

    /// Gives commands of which the last printed value counts, and returns it.
    fn value(&mut self, commands: &str) -> anyhow::Result<u64> {
        let said = self.ask(commands)?;
        let value = said.rsplit_once("= ").and_then(|(_, value)| value.split_whitespace().next());
        let value = value.and_then(|value| value.parse().ok());
        value.with_context(|| format!("the debugger says: {}", said.trim()))
    }

    /// Calls the function in a thread of the process, and leaves the process.
    ///
    /// The debugger is given all of it at once: it goes through with that where this process is killed meanwhile.
    fn call(&mut self, pid: u32, thread: u32, library: &Path, script: &Path) -> anyhow::Result<()> {
        let threads =
            self.ask("sharedlibrary libc[.]so\nsharedlibrary libdl[.]so\ninfo threads")?;
        let line = threads.lines().find(|line| {
            let words =
                [format!("LWP {thread})"), format!("LWP {thread} "), format!("process {thread}")];
            words.iter().any(|word| line.contains(word))
        });
        let number = line.and_then(|line| line.trim_start_matches(['*', ' ']).split(' ').next());
        let number = number.with_context(|| format!("no thread {thread}: {threads}"))?;
        let library = [library.as_os_str().as_bytes(), b"\0"].concat();
        let name = library.len();
        let texts = [&library, &b"lowtide_execute\0"[..]].concat();
        let path = texts.len();
        let texts = [&texts, script.as_os_str().as_bytes(), b"\0"].concat();
        let size = texts.len();
        // gdb would allocate a text of a command there, and never free it.
        let bytes = format!("{texts:?}").replace('[', "{").replace(']', "}");
        let code = self.value(&format!(
            "thread {number}\n\
             set $at = ((void*(*)(unsigned long))malloc)({size})\n\
             if $at\n\
             set {{unsigned char[{size}]}}$at = {bytes}\n\
             set $library = ((void*(*)(void*,int))dlopen)($at, 2)\n\
             set $execute = ((void*(*)(void*,void*))dlsym)($library, $at + {name})\n\
             print/u $execute ? ((int(*)(void*))$execute)($at + {path}) : 100\n\
             end\n\
             call ((void(*)(void*))free)($at)\n\
             detach"
        ))?;
        ensure!(code != 100, "process {pid} cannot load lowtide's library");
        ensure!(code == 0, "process {pid} could not start a thread");
        Ok(())
    }
}
