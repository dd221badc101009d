//! A machine of a test's own: the driver double, a helper, and programs that are suspended.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{Answer, Ask, Helper, ProcessState, Refusal, Resume, Suspend, Target};
use lowtide_testing::double::Double;
use lowtide_testing::raw::Raw;
use tempfile::TempDir;

/// The time that anything may take: a test that would hang fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
const ROLE: &str = "LOWTIDE_TEST_SUSPENDED";
const ANSWER: &str = "=> ";
const MIB: u64 = 1 << 20;

/// A machine.
pub(crate) struct World {
    folder: TempDir,
}

impl World {
    /// Makes a machine with a folder for locks of its own.
    pub(crate) fn new() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("locks")).expect("a folder");
        World { folder }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Returns the folder of the sockets.
    pub(crate) fn sockets(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Returns the helper of this machine, which is started with these settings of the double.
    pub(crate) fn helper_with(&self, double: &str) -> Helper {
        self.helper_on_full_disk(double, "")
    }

    /// Returns the helper of this machine, whose journal cannot be written at these writes: `1+3`.
    pub(crate) fn helper_on_full_disk(&self, double: &str, writes: &str) -> Helper {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_lowtide-helper"));
        let helper = Helper::new(&self.sockets(), program).with_variable("LOWTIDE_DOUBLE", double);
        let variables = self.variables(writes).into_iter();
        variables.fold(helper, |helper, (name, value)| helper.with_variable(name, value))
    }

    /// Returns the variables of a helper of this machine, with the default double.
    pub(crate) fn variables(&self, writes: &str) -> [(&'static str, OsString); 4] {
        let locks = self.folder.path().join("locks");
        // Short, so that no helper outlives its test for long.
        let settings = format!("idle_ms=2000,locks={},full={writes}", locks.display());
        [
            ("LOWTIDE_CUDA_LIBRARY", Double::path().into()),
            ("LOWTIDE_NVML_LIBRARY", Double::path().into()),
            ("LOWTIDE_DOUBLE_STATE", self.state().into()),
            ("LOWTIDE_HELPER", settings.into()),
        ]
    }

    /// Returns the helper of this machine.
    pub(crate) fn helper(&self) -> Helper {
        self.helper_with("")
    }

    /// Starts a program with a context and this much memory.
    pub(crate) fn program(&self, mib: u64) -> Program {
        self.program_with(mib, "")
    }

    /// Starts a program with these settings of the double.
    pub(crate) fn program_with(&self, mib: u64, double: &str) -> Program {
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "the_program_that_is_suspended", "--nocapture", "--test-threads=1"])
            .env(ROLE, mib.to_string())
            .env("LOWTIDE_CUDA_LIBRARY", Double::path())
            .env("LOWTIDE_DOUBLE_STATE", self.state())
            .env("LOWTIDE_DOUBLE", double)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program, again");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (sender, answers) = mpsc::channel();
        let answers = Mutex::new(answers);
        thread::spawn(move || {
            let answers = lines
                .map_while(Result::ok)
                .filter_map(|line| line.split_once(ANSWER).map(|(_, answer)| answer.to_owned()));
            answers.map(|answer| sender.send(answer)).take_while(Result::is_ok).for_each(drop);
        });
        let orders = child.stdin.take().expect("its input");
        let program =
            Program { target: Target::of(child.id()).expect("it runs"), child, orders, answers };
        assert_eq!(program.answer(), "0", "it begins");
        program
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // It would end by itself; a test's process is not to leave any.
        if let Ok(Some(helper)) = self.helper().running() {
            kill(helper.pid());
        }
    }
}

/// A program that can be suspended.
pub(crate) struct Program {
    pub(crate) target: Target,
    child: Child,
    orders: ChildStdin,
    answers: Mutex<Receiver<String>>,
}

impl Program {
    /// Gives it an order, and does not wait.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it takes orders");
    }

    /// Waits for its answer.
    pub(crate) fn answer(&self) -> String {
        self.answers.lock().expect("no panic").recv_timeout(LIMIT).expect("it answers in time")
    }

    /// Returns whether it has answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.answers.lock().expect("no panic").try_recv().is_ok()
    }

    /// Checks that its calls go on and its memory is right.
    pub(crate) fn is_right(&mut self) {
        self.tell("byte");
        assert_eq!(self.answer(), "7");
    }

    pub(crate) fn kill_it(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("it ended");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.target.pid.to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(sent.success());
        // The kernel stops a process a moment later.
        let is_as_told = || (signal == "-STOP") == (letter(self.target.pid) == Some('T'));
        until("the signal has come", is_as_told);
    }

    pub(crate) fn suspend(&self) -> Ask {
        self.suspend_within(60_000)
    }

    pub(crate) fn suspend_within(&self, limit_ms: u64) -> Ask {
        let target = self.target;
        Ask::Suspend(Suspend {
            target,
            lock_limit_ms: 10_000,
            limit_ms,
            force: false,
            is_alone: false,
        })
    }

    pub(crate) fn resume(&self, wait_ms: u64) -> Ask {
        let target = self.target;
        Ask::Resume(Resume {
            target,
            needs: Vec::new(),
            maps: Vec::new(),
            wait_ms,
            limit_ms: 60_000,
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills a process as `kill -9` does.
pub(crate) fn kill(pid: u32) {
    let sent = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "killing {pid}");
    until("it has ended", || has_ended(pid));
}

/// Returns whether a process has ended, waited for or not.
pub(crate) fn has_ended(pid: u32) -> bool {
    letter(pid).is_none_or(|letter| "ZX".contains(letter))
}

/// Returns the kernel's letter for the state of a process.
fn letter(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Waits until something is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}: not in {LIMIT:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Asks a helper over a connection of its own.
pub(crate) fn ask(helper: &Helper, ask: Ask) -> Answer {
    helper.connect().expect("it listens").ask(ask).expect("it answers")
}

/// Asks a helper for what it refuses.
pub(crate) fn refused(helper: &Helper, question: Ask) -> Refusal {
    match ask(helper, question) {
        Answer::Refused { refusal } => refusal,
        answer => panic!("not refused: {answer:?}"),
    }
}

/// Asks for the state of a program.
pub(crate) fn state(helper: &Helper, program: &Program) -> ProcessState {
    match ask(helper, Ask::State { target: program.target }) {
        Answer::State(status) => status.state,
        answer => panic!("no state: {answer:?}"),
    }
}

/// Plays the program that is suspended.
pub(crate) fn play() {
    let Ok(mib) = env::var(ROLE) else { return };
    let (raw, mib) = (Raw::load(), mib.parse::<u64>().expect("a number"));
    let (mut context, mut at) = (0, 0);
    assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
    assert_eq!(raw.cuCtxPushCurrent_v2(context), 0);
    assert_eq!(raw.cuMemAlloc_v2(&mut at, mib * MIB), 0);
    assert_eq!(raw.cuMemsetD8Async(at, 7, mib * MIB, 0), 0);
    assert_eq!(raw.cuCtxSynchronize(), 0);
    answer(0);
    for order in std::io::stdin().lines().map_while(Result::ok) {
        match order.split_once(' ').unwrap_or((&order, "")) {
            ("byte", _) => {
                let mut host = 0;
                assert_eq!(raw.cuMemHostAlloc(&mut host, 1, 0), 0);
                assert_eq!(raw.cuMemcpyDtoH_v2(host, at + mib * MIB - 1, 1), 0);
                answer(i32::from(byte(host)));
            }
            ("take", mib) => {
                let bytes = mib.parse::<u64>().expect("a number") * MIB;
                answer(raw.cuMemAlloc_v2(&mut 0, bytes));
            }
            _ => panic!("{order}"),
        }
    }
}

fn answer(code: i32) {
    println!("{ANSWER}{code}");
}

#[allow(unsafe_code, reason = "reads host memory by its address")]
fn byte(at: u64) -> u8 {
    // SAFETY: allocated by the double in this process, and never freed.
    unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() }
}
