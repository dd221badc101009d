//! Has a Python 3.14 execute a file at its next safe point, by its protocol for debuggers (PEP 768, `sys.remote_exec`).
//!
//! The target says itself where everything lies (`_Py_DebugOffsets`). A thread that is asked has the path of the file
//! and a flag in its state, and executes the file when it next looks at the flag, which may be never.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};

use super::python::Python;
use super::target::Target;

/// What the offsets begin with.
const COOKIE: &[u8; 8] = b"xdebugpy";
/// The version of Python whose table of offsets is known, without its last part.
const KNOWN: u64 = 0x030e;
/// How many words of that table are read, and which word is what.
const WORDS: u64 = 95;
const VERSION: usize = 1;
const FREE_THREADED: usize = 2;
const INTERPRETERS_HEAD: usize = 5;
const THREADS_HEAD: usize = 9;
const THREADS_MAIN: usize = 10;
const THREAD_NEXT: usize = 24;
const THREAD_NATIVE_ID: usize = 28;
const BREAKER: usize = 89;
const STATE: usize = 90;
const ENABLED: usize = 91;
const PENDING: usize = 92;
const PATH: usize = 93;
const PATH_SIZE: usize = 94;
/// The bit of a thread's `eval_breaker` that has it look at the flag.
const LOOK: u8 = 1 << 5;
/// The most threads that are asked.
const THREADS_MOST: usize = 1000;

/// The interpreter of a process, as its protocol for debuggers shows it.
pub(super) struct RemoteExec {
    pid: u32,
    memory: File,
    /// Where everything lies, by its own table.
    table: Vec<u64>,
    /// The address of its state.
    interpreter: u64,
    /// The states of the threads that were asked.
    asked: Vec<u64>,
}

impl RemoteExec {
    /// Opens the protocol; `None` if the interpreter is older than it.
    pub(super) fn open(target: &Target, python: &Python) -> anyhow::Result<Option<RemoteExec>> {
        let (pid, runtime) = (target.pid, python.runtime);
        let opened = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let memory = opened.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => anyhow::anyhow!(target.not_permitted()),
            _ => error.into(),
        })?;
        let number = |at: u64| {
            let what =
                "reading the state of its interpreter, which may not have begun or be at its end";
            read(&memory, at).context(what)
        };
        let table: Vec<u64> =
            (0..WORDS).map(|word| number(runtime + 8 * word)).collect::<anyhow::Result<_>>()?;
        let version = table[VERSION] >> 16;
        if table[0] != u64::from_le_bytes(*COOKIE) || version < KNOWN {
            return Ok(None);
        }
        ensure!(
            version == KNOWN,
            "process {pid} has Python {}.{}, which this version of lowtide does not know",
            version >> 8,
            version & 0xff
        );
        ensure!(
            table[FREE_THREADED] == 0,
            "process {pid} has a free-threaded Python; lowtide needs an ordinary one"
        );
        let interpreter = number(runtime + table[INTERPRETERS_HEAD])?;
        ensure!(
            number(interpreter + table[ENABLED])? as u32 != 0,
            "process {pid} does not let debuggers in: PYTHON_DISABLE_REMOTE_DEBUG is set, or it was started with -X \
             disable-remote-debug, or its Python was built --without-remote-debug; start it with `lowtide run`"
        );
        Ok(Some(RemoteExec { pid, memory, table, interpreter, asked: Vec::new() }))
    }

    /// Has the main thread execute a file.
    pub(super) fn ask_main(&mut self, script: &Path) -> anyhow::Result<()> {
        let main = read(&self.memory, self.interpreter + self.table[THREADS_MAIN])?;
        self.ask(main, script)
    }

    /// Has every other thread execute it.
    pub(super) fn ask_others(&mut self, script: &Path) -> anyhow::Result<()> {
        for thread in self.all()? {
            if !self.asked.contains(&thread) {
                self.ask(thread, script)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, thread: u64, script: &Path) -> anyhow::Result<()> {
        let mut path = script.as_os_str().as_bytes().to_vec();
        path.push(0);
        ensure!(
            path.len() as u64 <= self.table[PATH_SIZE],
            "{} is too long a path for Python",
            script.display()
        );
        // A thread that ends meanwhile takes its state with it.
        if !self.all()?.contains(&thread) {
            return Ok(());
        }
        self.asked.push(thread);
        let mut breaker = [0];
        let (at, breaker_at) = (thread + self.table[STATE], thread + self.table[BREAKER]);
        let written = self.memory.write_all_at(&path, at + self.table[PATH]).and_then(|()| {
            self.memory.write_all_at(&1_i32.to_le_bytes(), at + self.table[PENDING])?;
            // The byte alone: the rest of the word has the version of what is instrumented.
            self.memory.read_exact_at(&mut breaker, breaker_at)?;
            self.memory.write_all_at(&[breaker[0] | LOOK], breaker_at)
        });
        written.with_context(|| format!("asking a thread of process {}", self.pid))
    }

    /// Returns the states of the threads that exist.
    fn all(&self) -> anyhow::Result<Vec<u64>> {
        let mut found = Vec::new();
        let mut thread = read(&self.memory, self.interpreter + self.table[THREADS_HEAD])?;
        while thread != 0 && found.len() < THREADS_MOST {
            let number = read(&self.memory, thread + self.table[THREAD_NATIVE_ID])?;
            if fs::exists(format!("/proc/{}/task/{number}", self.pid))? {
                found.push(thread);
            }
            thread = read(&self.memory, thread + self.table[THREAD_NEXT])?;
        }
        Ok(found)
    }

    /// Asks back what nobody has begun to execute. Returns whether nothing is left of it.
    pub(super) fn withdraw(&self) -> bool {
        let all = self.all().unwrap_or_default();
        let left = self.asked.iter().filter(|thread| all.contains(thread));
        let pending = self.table[STATE] + self.table[PENDING];
        left.map(|thread| self.memory.write_all_at(&[0; 4], thread + pending))
            .all(|done| done.is_ok())
    }
}

fn read(memory: &File, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}
