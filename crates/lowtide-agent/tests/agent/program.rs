//! A C program under test, with the agent preloaded and the driver double in the driver's place.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::line::at_socket;
use lowtide_proto::{Answer, Ask, Request, Status, socket_name};
use lowtide_testing::double::Double;
use tempfile::TempDir;

/// The way in which a program finds the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Loads it and looks functions up.
    Dlsym,
    /// Asks the driver for each function, as the CUDA runtime does.
    Address,
    /// Links it.
    Linked,
}

/// The time that anything may take: a test that would hang fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// A machine of its own for one test.
pub(crate) struct World {
    folder: TempDir,
}

/// A program that runs.
pub(crate) struct Program {
    child: Child,
    answers: Mutex<Receiver<String>>,
    waiting: Mutex<Option<String>>,
    folder: PathBuf,
    /// Its machine, where it is the only program there.
    world: Option<World>,
    is_killed: bool,
}

impl World {
    pub(crate) fn new() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        symlink(Double::path(), folder.path().join("libcuda.so.1")).expect("a link to the double");
        fs::create_dir(folder.path().join("run")).expect("a folder for the socket");
        World { folder }
    }

    /// Puts a driver in the double's place that waits for the end of work in the system, and is otherwise the double.
    pub(crate) fn with_waiting_driver(&self) {
        let (path, double) = (self.folder.path().join("libcuda.so.1"), Double::path());
        fs::remove_file(&path).expect("a link");
        let way = ["-DWAITER", "-shared", "-fPIC", "-fexceptions", "-Wl,--no-as-needed"];
        compile(&path, &[&way[..], &[&double.to_string_lossy()]].concat());
    }

    /// Starts a program that has initialised the driver.
    pub(crate) fn start(&self, route: Route) -> Program {
        self.start_with(route, &[])
    }

    pub(crate) fn start_with(&self, route: Route, variables: &[(&str, &str)]) -> Program {
        let word = match route {
            Route::Dlsym => "dlsym",
            Route::Address => "address",
            Route::Linked => "linked",
        };
        let mut command = self.command(client(route));
        command.arg(word).env("LD_PRELOAD", agent());
        let mut program = self.spawn(command.envs(variables.iter().copied()));
        program.does("start");
        program
    }

    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("LOWTIDE_DOUBLE_STATE", self.folder.path().join("state"))
            .env("LOWTIDE_NVML_LIBRARY", Double::path())
            .env("XDG_RUNTIME_DIR", self.folder.path().join("run"));
        command
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Program {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.stderr())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let folder = self.folder.path().join("run/lowtide");
        let (answers, waiting) = (Mutex::new(answers), Mutex::default());
        Program { child, answers, waiting, folder, world: None, is_killed: false }
    }

    fn stderr(&self) -> File {
        let path = self.folder.path().join("said");
        File::options().create(true).append(true).open(path).expect("a file")
    }

    /// Returns what programs have written to standard error.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("said")).unwrap_or_default()
    }

    /// Makes a library that touches the device while a program loads it.
    pub(crate) fn plugin(&self, name: &str) -> PathBuf {
        compile(&self.folder.path().join(name), &["-DPLUGIN", "-shared", "-fPIC"])
    }

    /// Makes a library whose `dlsym` asks the C library's, past whatever is loaded behind it.
    pub(crate) fn interposer(&self) -> PathBuf {
        compile(&self.folder.path().join("interposer.so"), &["-DINTERPOSER", "-shared", "-fPIC"])
    }

    /// Makes a library whose clocks are wrong by as many seconds as a file says.
    pub(crate) fn clock(&self) -> PathBuf {
        compile(&self.folder.path().join("clock.so"), &["-DCLOCK", "-shared", "-fPIC"])
    }

    /// Returns the folder of this machine's files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn has_socket(&self) -> bool {
        let found = fs::read_dir(self.folder.path().join("run/lowtide"));
        found.is_ok_and(|mut names| {
            names.any(|name| {
                name.is_ok_and(|name| name.file_name().to_string_lossy().starts_with("agent-"))
            })
        })
    }
}

impl Program {
    /// Starts a program on a machine of its own.
    pub(crate) fn start(route: Route) -> Program {
        let world = World::new();
        let mut program = world.start(route);
        program.world = Some(world);
        program
    }

    /// Tells it some lines, with `; ` between them, and expects that each works.
    pub(crate) fn does(&mut self, lines: &str) {
        for line in lines.split("; ") {
            assert_eq!(self.text(line), "ok", "{line}");
        }
    }

    /// Makes virtual memory as a program does: a handle, addresses, a mapping, access.
    pub(crate) fn makes(&mut self, number: u64, bytes: u64) {
        self.does(&format!("create {number} {bytes}; reserve {number} {bytes}"));
        self.does(&format!("map {number} {number}; grant {number} 3"));
    }

    /// Makes virtual memory that can be given to others.
    pub(crate) fn makes_shared(&mut self, number: u64, bytes: u64) {
        self.does(&format!("create {number} {bytes} 1; reserve {number} {bytes}"));
        self.does(&format!("map {number} {number}; grant {number} 3"));
    }

    /// Asks it for a number.
    pub(crate) fn number(&mut self, line: &str) -> u64 {
        self.tell(line);
        let answer = self.answer();
        answer.parse().unwrap_or_else(|_| panic!("{line}: {answer}"))
    }

    /// Asks it for a text.
    pub(crate) fn text(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("its input");
        writeln!(input, "{line}").expect("the program reads");
    }

    /// Tells it that nothing will come: it ends.
    pub(crate) fn end_of_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Kills it, and waits for its end.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
        self.is_killed = true;
    }

    /// Waits for its end; `None` if a signal ended it.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status.code();
            }
            assert!(began.elapsed() < LIMIT, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Says that it was to end, in whatever way.
    pub(crate) fn is_over(&mut self) {
        self.is_killed = true;
    }

    pub(crate) fn has_answered(&self) -> bool {
        let mut waiting = self.waiting.lock().expect("no panic");
        if waiting.is_none() {
            match self.answers.lock().expect("no panic").try_recv() {
                Ok(answer) => *waiting = Some(answer),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => panic!("the program has ended"),
            }
        }
        true
    }

    pub(crate) fn answer(&self) -> String {
        let earlier = self.waiting.lock().expect("no panic").take();
        let answers = self.answers.lock().expect("no panic");
        earlier.unwrap_or_else(|| answers.recv_timeout(LIMIT).expect("the program answers"))
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Asks the agent.
    pub(crate) fn ask(&self, ask: Ask) -> Answer {
        let answer = self.say(Request::new(ask).to_line().as_bytes());
        serde_json::from_str(&answer).unwrap_or_else(|why| panic!("{answer}: {why}"))
    }

    pub(crate) fn status(&self) -> Status {
        match self.ask(Ask::Status) {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the path of the agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        let namespace = fs::read_link("/proc/self/ns/pid").expect("a namespace");
        self.folder.join(socket_name(&namespace.to_string_lossy(), self.child.id()))
    }

    /// Sends bytes to the agent and returns its answer.
    pub(crate) fn say(&self, bytes: &[u8]) -> String {
        let socket = at_socket(&self.socket(), |path| UnixStream::connect(path));
        let mut socket = socket.expect("the agent listens");
        socket.set_read_timeout(Some(LIMIT)).expect("a limit");
        socket.set_write_timeout(Some(LIMIT)).expect("a limit");
        // A line that is too long is not read to its end.
        let _sent = socket.write_all(bytes);
        let _ended = socket.shutdown(Shutdown::Write);
        let mut answer = String::new();
        let _read = socket.read_to_string(&mut answer);
        answer
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the programs said: {}", self.said());
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let began = Instant::now();
        let ended = loop {
            match self.child.try_wait().expect("a child") {
                Some(ended) => break ended,
                None if began.elapsed() < LIMIT => thread::sleep(Duration::from_millis(2)),
                None => {
                    self.child.kill().expect("a child");
                    break self.child.wait().expect("a child");
                }
            }
        };
        if !thread::panicking() && !self.is_killed {
            assert!(ended.success(), "the program ended with {ended}");
        }
        // Its machine goes after it.
        drop(self.world.take());
    }
}

/// Returns the agent's library.
pub(crate) fn agent() -> PathBuf {
    built("liblowtide_agent.so")
}

/// Returns the program that suspends processes.
pub(crate) fn helper() -> PathBuf {
    built("lowtide-helper")
}

/// Returns a file that cargo builds beside the double's.
fn built(name: &str) -> PathBuf {
    let double = Double::path();
    let folders = double.ancestors().skip(1).take(2);
    let mut places = folders.flat_map(|folder| [folder.join(name), folder.join("deps").join(name)]);
    places.find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is not beside the double"))
}

/// Compiles the program, once for each way of finding the driver.
pub(crate) fn client(route: Route) -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static PLAIN: OnceLock<PathBuf> = OnceLock::new();
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder")).path();
    let compile = |name: &str, arguments: &[&str]| compile(&folder.join(name), arguments);
    match route {
        Route::Dlsym | Route::Address => {
            PLAIN.get_or_init(|| compile("client", &["-rdynamic", "-ldl"]))
        }
        Route::Linked => LINKED.get_or_init(|| {
            let double = folder.join("libcuda.so.1");
            symlink(Double::path(), &double).expect("a link to the double");
            compile("linked", &["-DLINKED", &double.to_string_lossy(), "-ldl"])
        }),
    }
}

/// Compiles `client.c` to a file.
fn compile(to: &Path, arguments: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../lowtide-agent/tests/agent/client.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-w", "-pthread", "-o"]).arg(to).arg(source).args(arguments);
    assert!(command.status().expect("a C compiler").success());
    to.to_owned()
}
