//! Has a Python before 3.14 execute a file, with a debugger that is installed.
//!
//! gdb loads the package's native module into the process and calls `lowtide_execute` there, which starts a thread and
//! returns. That needs the C library's locks for allocating and loading. So the call is made in a thread that can have
//! none of them: one that waits in the kernel, or one that is in the interpreter's own code.
//!
//! gdb ends by itself when its input does: it then leaves the process as it was, also where this one was killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lowtide_types::kernel_text;

use super::python::Python;
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
    until: Instant,
) -> anyhow::Result<Duration> {
    let pid = target.pid;
    target.is_not_traced()?;
    let library = package.join("_native.abi3.so");
    let mut debugger = Debugger::start()?;
    debugger.try_out()?;
    loop {
        let began = Instant::now();
        let said = debugger.ask(&format!("attach {pid}"))?;
        ensure!(
            target.tracer() == debugger.child.id().to_string(),
            "{}: {}",
            target.not_permitted(),
            said.trim().lines().last().unwrap_or_default()
        );
        let called = thread(pid, python).map(|at| debugger.call(pid, at, &library, script));
        debugger.ask("detach")?;
        if let Some(called) = called {
            return called.map(|()| began.elapsed());
        }
        ensure!(
            Instant::now() < until,
            "process {pid} was never where a debugger may call a function; ask again"
        );
        std::thread::sleep(PAUSE);
    }
}

/// Returns a thread of a stopped process in which a call can be made: the main one, if possible.
fn thread(pid: u32, python: &Python) -> Option<u32> {
    let maps = kernel_text(format!("/proc/{pid}/maps")).ok()?;
    let own = ranges(&maps, &python.path);
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
fn can_call(at: &str, own: &[(u64, u64)]) -> bool {
    let words: Vec<&str> = at.split_whitespace().collect();
    let (Some(first), Some(last)) = (words.first(), words.last()) else { return false };
    let counter = u64::from_str_radix(last.trim_start_matches("0x"), 16).unwrap_or_default();
    match first.parse::<i64>() {
        Ok(-1) => own.iter().any(|(start, end)| (*start..*end).contains(&counter)),
        Ok(number) => u64::try_from(number).is_ok_and(|number| WAITS.contains(&number)),
        Err(_) => false,
    }
}

/// Returns where the code of a file is mapped.
fn ranges(maps: &str, path: &Path) -> Vec<(u64, u64)> {
    let lines = maps.lines().filter(|line| {
        Path::new(line.splitn(6, ' ').nth(5).unwrap_or_default().trim_start()) == path
    });
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    lines.filter_map(range).collect()
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
        let mut disposable = Command::new("sleep");
        let mut child = disposable.arg("600").spawn().context("starting a process to try on")?;
        let found = self
            .ask(&format!("attach {}\nsharedlibrary libc[.]so", child.id()))
            .and_then(|_| self.value("((int(*)(void))getpid)()"));
        // It can be waited for when it is not traced any more.
        self.ask("detach\nfile\nnosharedlibrary")?;
        child.kill().and_then(|()| child.wait()).context("ending the process tried on")?;
        let found =
            found.context("gdb cannot call a function in a process here; a newer one may")?;
        ensure!(found == u64::from(child.id()), "gdb calls wrong functions here");
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

    /// Gives a command that has a value, and returns it.
    fn value(&mut self, expression: &str) -> anyhow::Result<u64> {
        let said = self.ask(&format!("print/u (unsigned long){expression}"))?;
        let value = said.rsplit_once("= ").and_then(|(_, value)| value.split_whitespace().next());
        let value = value.and_then(|value| value.parse().ok());
        value.with_context(|| format!("the debugger says: {}", said.trim()))
    }

    /// Calls the function in a thread of the process.
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
        self.ask(&format!("thread {number}"))?;
        // gdb would allocate a text of a command there, and never free it.
        let mut texts = Vec::new();
        let paths = [library, Path::new("lowtide_execute"), script].map(|path| {
            let begin = texts.len() as u64;
            texts.extend(path.as_os_str().as_bytes());
            texts.push(0);
            begin
        });
        let at = self.value(&format!("((void*(*)(unsigned long))malloc)({})", texts.len()))?;
        let done = self.start_there(pid, at, &texts, paths.map(|begin| at + begin));
        self.ask(&format!("call ((void(*)(unsigned long))free)({at})"))?;
        done
    }

    /// Writes the texts to an address, and has the function there start a thread.
    fn start_there(
        &mut self,
        pid: u32,
        at: u64,
        texts: &[u8],
        paths: [u64; 3],
    ) -> anyhow::Result<()> {
        ensure!(at != 0, "process {pid} has no host memory left");
        let [library, name, script] = paths;
        File::options().write(true).open(format!("/proc/{pid}/mem"))?.write_all_at(texts, at)?;
        let opened = self.value(&format!("((void*(*)(unsigned long,int))dlopen)({library},2)"))?;
        ensure!(opened != 0, "process {pid} cannot load lowtide's library");
        let function = format!("((void*(*)(unsigned long,unsigned long))dlsym)({opened},{name})");
        let function = self.value(&function)?;
        ensure!(function != 0, "the package there has no function for a debugger");
        let code = self.value(&format!("((int(*)(unsigned long)){function})({script})"))?;
        ensure!(code == 0, "process {pid} could not start a thread");
        Ok(())
    }
}
