//! Whether a process may be suspended at all, by what the kernel says about it.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lowtide_device::private_files::effective_user;
use lowtide_device::process_tree;
use lowtide_device::yama::PtraceScope;
use lowtide_proto::helper::{Refusal, Target};
use lowtide_types::{Bytes, kernel_text};

/// Libraries whose communicators may have live multicast objects, on which a checkpoint hangs.
const COMMUNICATING: [&str; 2] = ["libnccl", "libnvshmem"];

/// A process that was found, kept so that its number cannot come to mean another one unnoticed.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    target: Target,
    /// `None` on kernels without it: then the time of its start is compared.
    handle: Option<OwnedFd>,
}

impl ProcessHandle {
    /// Finds a process that belongs to this user and is no thread.
    pub(crate) fn find(target: Target) -> Result<ProcessHandle, Refusal> {
        let found = ProcessHandle::find_of_anybody(target)?;
        let (pid, user) = (target.pid, effective_user());
        match Status::read(pid)?.users.into_iter().find(|owner| *owner != user) {
            Some(owner) => Err(Refusal::OtherUser { pid, owner, user }),
            None => Ok(found),
        }
    }

    /// Finds a process that is no thread, whoever it belongs to.
    pub(crate) fn find_of_anybody(target: Target) -> Result<ProcessHandle, Refusal> {
        let pid = target.pid;
        if pid == std::process::id() {
            return Err(Refusal::Helper { pid });
        }
        let found = ProcessHandle { target, handle: process_tree::open(pid) };
        // Read after the handle was taken: the handle is of the process that this is about.
        if let Some(process) = Status::read(pid)?.process.filter(|process| *process != pid) {
            return Err(Refusal::Thread { pid, process });
        }
        found.check_alive()?;
        Ok(found)
    }

    /// Checks that the process has not ended.
    pub(crate) fn check_alive(&self) -> Result<(), Refusal> {
        let pid = self.target.pid;
        // The first thread may have ended, and the others go on: only the handle tells that.
        let has_ended = self.handle.as_ref().map_or_else(|| !is_alive(pid), process_tree::is_over);
        match Target::of(pid) {
            Err(error) if !has_ended => Err(unreadable(pid, &error)),
            Ok(now) if now == self.target && !has_ended => Ok(()),
            _ => Err(Refusal::Ended { pid }),
        }
    }

    /// Checks that the driver's calls on the process will not hang: it is neither stopped nor frozen.
    pub(crate) fn check_moving(&self) -> Result<(), Refusal> {
        self.check_alive()?;
        let pid = self.target.pid;
        if is_stopped(pid) { Err(Refusal::Stopped { pid }) } else { Ok(()) }
    }

    /// Checks that the process can be suspended.
    pub(crate) fn check_suspendable(&self, force: bool) -> Result<(), Refusal> {
        self.check_moving()?;
        let pid = self.target.pid;
        // The kernel gives the files of a process that may not be traced to root, and leaves their folder to
        // the process's user.
        let maps = format!("/proc/{pid}/maps");
        let owner = fs::metadata(&maps).map_err(|error| unreadable(pid, &error))?.uid();
        if owner != effective_user() {
            return Err(Refusal::NotDumpable { pid });
        }
        if force {
            return Ok(());
        }
        let maps = fs::read(maps).map_err(|_| Refusal::NotDumpable { pid })?;
        match communicating(&String::from_utf8_lossy(&maps)) {
            Some(library) => Err(Refusal::Library { pid, library }),
            None => Ok(()),
        }
    }

    /// Returns the host memory of the process.
    pub(crate) fn resident(&self) -> Bytes {
        let status = kernel_text(format!("/proc/{}/status", self.target.pid));
        let status = status.unwrap_or_default();
        let kib = |name| field(&status, name).and_then(|it| it.first()?.parse::<u64>().ok());
        let kib = ["VmRSS", "VmSwap"].into_iter().filter_map(kib).sum::<u64>();
        Bytes(kib << 10)
    }
}

/// Returns whether a process of this number exists and has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    match state_letter(pid) {
        Ok(letter) => letter.is_none_or(|letter| !"ZXx".contains(letter)),
        Err(error) => unreadable(pid, &error) != Refusal::Ended { pid },
    }
}

/// Returns whether a process has ended, or ends within a moment: the driver tells of a killed process before the
/// kernel has taken it apart.
pub(crate) fn is_ending(pid: u32) -> bool {
    (0..40).any(|_| {
        let is_over = !is_alive(pid);
        if !is_over {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        is_over
    })
}

/// Returns what it means that a file about a process cannot be read: the process has ended, or this one may not have more
/// files open, for example.
fn unreadable(pid: u32, error: &io::Error) -> Refusal {
    // The second where the file was open already.
    let is_gone = error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH);
    let why = || format!("looking at process {pid}: {error}");
    if is_gone { Refusal::Ended { pid } } else { Refusal::Broken { why: why() } }
}

/// Returns what is known about the kernel's rules for tracing, and what to do.
pub fn about_tracing(scope: PtraceScope) -> &'static str {
    match scope {
        PtraceScope::Everybody => {
            "it may belong to another user, forbid it (PR_SET_DUMPABLE), or be in a container that forbids tracing \
             (docker: --cap-add=SYS_PTRACE)"
        }
        PtraceScope::Named => {
            "Yama's ptrace_scope is 1, so a process must name its tracer; start it with `lowtide run`, or as root: \
             sysctl kernel.yama.ptrace_scope=0"
        }
        PtraceScope::Root => {
            "Yama's ptrace_scope is 2, so only root may trace; run this as root, or as root: sysctl \
             kernel.yama.ptrace_scope=0"
        }
        PtraceScope::Nobody => {
            "Yama's ptrace_scope is 3, so nobody may trace until the machine restarts with another setting"
        }
    }
}

/// What the kernel says about a process.
struct Status {
    /// The process, for a thread's number too.
    process: Option<u32>,
    /// The real, effective and saved user.
    users: Vec<u32>,
}

impl Status {
    fn read(pid: u32) -> Result<Status, Refusal> {
        let text = kernel_text(format!("/proc/{pid}/status"));
        let text = text.map_err(|error| unreadable(pid, &error))?;
        let numbers = |name| -> Vec<u32> {
            let words = field(&text, name).unwrap_or_default();
            words.iter().filter_map(|word| word.parse().ok()).collect()
        };
        let users = numbers("Uid").into_iter().take(3).collect();
        Ok(Status { process: numbers("Tgid").first().copied(), users })
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_ascii_whitespace().collect())
}

fn state_letter(pid: u32) -> io::Result<Option<char>> {
    let stat = kernel_text(format!("/proc/{pid}/stat"))?;
    Ok(stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()))
}

/// Returns whether a process is stopped by a signal or a tracer, or frozen with its control group.
pub fn is_stopped(pid: u32) -> bool {
    matches!(state_letter(pid), Ok(Some('T' | 't'))) || is_frozen(pid)
}

fn is_frozen(pid: u32) -> bool {
    let groups = kernel_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    is_frozen_in(&groups, Path::new("/sys/fs/cgroup"))
}

/// Returns whether one of a process's control groups is frozen: that of version 2, or the one for freezing of version 1.
fn is_frozen_in(groups: &str, mounted: &Path) -> bool {
    groups.lines().any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(group)) = (parts.next(), parts.next()) else { return false };
        let has = |file: &str, word: &str| {
            let path = format!("{}{group}/{file}", mounted.join(kinds).display());
            fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line == word))
        };
        match kinds {
            "" => has("cgroup.events", "frozen 1"),
            "freezer" => has("freezer.state", "FROZEN"),
            _ => false,
        }
    })
}

fn communicating(maps: &str) -> Option<String> {
    let mut files = maps.lines().filter_map(|line| line.rsplit('/').next());
    let is_one = |file: &&str| COMMUNICATING.iter().any(|name| file.starts_with(name));
    files.find(is_one).map(str::to_owned)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "sends signals, and asks for a thread's number")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn sleeper() -> std::process::Child {
        Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep runs")
    }

    fn signal(pid: u32, signal: i32) {
        // SAFETY: a child of this test.
        assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
    }

    #[test]
    fn a_process_is_told_from_threads_others_and_the_dead() {
        let mut child = sleeper();
        let pid = child.id();
        let target = Target::of(pid).expect("it runs");
        let found = ProcessHandle::find(target).expect("it is this user's");
        found.check_suspendable(false).expect("nothing is in the way");
        assert!(found.resident() > Bytes::ZERO);
        let older = Target { start_ticks: target.start_ticks - 1, ..target };
        assert_eq!(ProcessHandle::find(older).expect_err("another one"), Refusal::Ended { pid });
        signal(pid, libc::SIGSTOP);
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        assert_eq!(found.check_suspendable(true), Err(Refusal::Stopped { pid }));
        child.kill().expect("a child of ours");
        while is_alive(pid) {
            std::thread::yield_now();
        }
        // It has not been waited for: its number is still taken.
        assert_eq!(found.check_alive(), Err(Refusal::Ended { pid }));
        child.wait().expect("it ended");
        assert_eq!(ProcessHandle::find(target).expect_err("it ended"), Refusal::Ended { pid });
        let this = std::process::id();
        let own =
            ProcessHandle::find(Target::of(this).expect("it runs")).expect_err("this process");
        assert_eq!(own, Refusal::Helper { pid: this });
    }

    #[test]
    fn a_frozen_control_group_is_found_in_both_versions() {
        let mounted = tempfile::tempdir().expect("a folder");
        let state = |file: &str, text: &str| {
            let path = mounted.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let is_frozen = |groups: &str| is_frozen_in(groups, mounted.path());
        let (both, other) = ("9:memory:/a\n7:freezer:/a/b\n0::/c\n", "7:freezer:/nowhere\n0::/\n");
        state("freezer/a/b/freezer.state", "THAWED\n");
        state("c/cgroup.events", "populated 1\nfrozen 0\n");
        assert!(!is_frozen(both) && !is_frozen(other));
        state("freezer/a/b/freezer.state", "FROZEN\n");
        assert!(is_frozen(both) && !is_frozen(other));
        state("freezer/a/b/freezer.state", "THAWED\n");
        state("c/cgroup.events", "populated 1\nfrozen 1\n");
        assert!(is_frozen(both) && !is_frozen(other));
    }

    #[test]
    fn too_few_files_are_not_the_end_of_a_process() {
        let told = |code| unreadable(7, &io::Error::from_raw_os_error(code));
        assert_eq!(
            [libc::ENOENT, libc::ESRCH].map(told),
            [(); 2].map(|()| Refusal::Ended { pid: 7 })
        );
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EACCES] {
            assert!(matches!(told(code), Refusal::Broken { .. }), "{code}");
        }
    }

    #[test]
    fn a_threads_number_is_refused_with_its_process() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: returns a number.
            sender.send(unsafe { libc::gettid() }.cast_unsigned()).expect("the test waits");
            let _ended = ended.recv();
        });
        let pid = receiver.recv().expect("a number");
        let refused = ProcessHandle::find(Target::of(pid).expect("it runs")).expect_err("a thread");
        assert_eq!(refused, Refusal::Thread { pid, process: std::process::id() });
        drop(end);
        thread.join().expect("it ends");
    }

    #[test]
    fn each_restriction_of_yama_is_told_with_a_way_out() {
        let ways = [
            (PtraceScope::Everybody, "SYS_PTRACE"),
            (PtraceScope::Named, "lowtide run"),
            (PtraceScope::Root, "as root"),
            (PtraceScope::Nobody, "restarts"),
        ];
        for (scope, way) in ways {
            assert!(about_tracing(scope).contains(way), "{scope:?}");
        }
    }

    #[test]
    fn a_library_that_communicates_is_found_by_its_file() {
        let line = |file: &str| format!("7f00-7f01 r-xp 00000000 08:01 99   {file}\n");
        let maps = line("/usr/lib/libc.so.6") + &line("/opt/nccl/x/libnccl.so.2.29");
        assert_eq!(communicating(&maps).as_deref(), Some("libnccl.so.2.29"));
        assert_eq!(
            communicating(&line("/a/libnvshmem_host.so")).as_deref(),
            Some("libnvshmem_host.so")
        );
        assert_eq!(communicating(&line("/libnccl/libm.so")), None);
    }
}
