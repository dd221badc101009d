//! Other processes: a test program starts itself again in a role, on a machine with little memory.
//!
//! The program has one test that plays all roles ([`play`]). It does nothing when it runs as a test.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs, process};

use lowtide_device::Bytes;

const ROLE: &str = "LOWTIDE_TEST_ROLE";
const ROOT: &str = "LOWTIDE_TEST_ROOT";
/// Before an answer, because the test harness prints, too.
const ANSWER: &str = "=> ";

/// A folder with the kernel's numbers, for `headroom::pretend`.
pub struct SmallMachine {
    root: PathBuf,
    player: &'static str,
}

impl SmallMachine {
    /// Creates a machine with so much memory available. `player` is the path of the test that plays the
    /// roles.
    ///
    /// # Panics
    /// If the folder cannot be made.
    pub fn new(name: &str, available: Bytes, player: &'static str) -> SmallMachine {
        let root = env::temp_dir().join(format!("lowtide-machine-{}-{name}", process::id()));
        fs::create_dir_all(root.join("proc/self")).expect("a folder for the machine");
        let machine = SmallMachine { root, player };
        machine.set_available(available);
        machine
    }

    /// Sets the memory that is available.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn set_available(&self, available: Bytes) {
        let text = format!("MemAvailable: {} kB\n", available.0 / 1024);
        fs::write(self.root.join("proc/meminfo"), text).expect("the machine's numbers");
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Starts this program again, in a role, on this machine.
    pub fn start(&self, role: &str) -> Other {
        Other::start(&self.root, self.player, role)
    }

    /// Runs a role to its end.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, role: &str) {
        let mut other = self.start(role);
        assert_eq!(other.next_answer(), "passed");
        assert!(other.child.wait().expect("the process's end").success());
    }
}

impl Drop for SmallMachine {
    fn drop(&mut self) {
        // Nothing depends on it: the folder is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// This program, started again in a role. Dropping it kills the process.
pub struct Other {
    pub(crate) child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Other {
    /// Starts this program again on the machine in a folder.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(root: &Path, player: &str, role: &str) -> Other {
        Other::start_with(|command| {
            command.args(["--exact", player, "--nocapture", "--test-threads=1"]);
            command.env(ROLE, role).env(ROOT, root);
        })
    }

    /// Starts this program again, with the arguments and the environment that `set_up` sets.
    pub(crate) fn start_with(set_up: impl FnOnce(&mut Command)) -> Other {
        let mut command = Command::new(env::current_exe().expect("this program's path"));
        set_up(&mut command);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("this program, again");
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        Other { orders: child.stdin.take().expect("it was asked for"), answers, child }
    }

    /// Gives an order and returns the answer.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.next_answer()
    }

    /// Gives an order, and does not wait for the answer.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the process takes orders");
    }

    /// Waits for the next answer.
    ///
    /// # Panics
    /// If the process ends without one.
    pub fn next_answer(&mut self) -> String {
        let mut line = String::new();
        while self.answers.read_line(&mut line).expect("a line of text") > 0 {
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended without an answer")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended already, or waits for orders.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays the role that this process was started in, with the folder of its machine. Does nothing in a
/// process without a role.
pub fn play(play: impl FnOnce(&str, &Path)) {
    let (Ok(role), Some(root)) = (env::var(ROLE), env::var_os(ROOT)) else { return };
    play(&role, Path::new(&root));
    answer("passed");
}

/// Answers the process that started this one.
pub fn answer(text: &str) {
    println!("{ANSWER}{text}");
}
