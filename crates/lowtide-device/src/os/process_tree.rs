//! Ending a process with all that it started, and proof that they ended.
//!
//! The kernel gives numbers again, so every process is held by a descriptor (`pidfd`) from the moment it is
//! found: a signal reaches that process or nobody. Children are found by their parents, whatever group or
//! session they are in. One whose parent ended before it was found belongs to nobody any more, and is not.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use std::{io, process, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};

use crate::{Error, Result};

/// The time in which killed processes end.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The end of a process and of all that it started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeEnd {
    /// The processes that ended, by number.
    pub ended: Vec<u32>,
    /// Those of them that did not end when they were asked to, and were killed.
    pub killed: Vec<u32>,
    /// The processes that are still there.
    pub left: Vec<u32>,
}

/// Ends a process and all that it started: asks them (`SIGTERM`), waits for up to `grace`, then kills the rest
/// (`SIGKILL`), and waits until they are gone. A process that has ended already is no error.
///
/// # Errors
/// [`Error::Os`] if the tree has this process in it, or if a process may not be signalled.
pub fn end(pid: u32, grace: Duration) -> Result<TreeEnd> {
    let mut tree = ProcessTree::of(pid)?;
    tree.signal(Signal::TERM)?;
    let asked_until = Instant::now() + grace;
    while !tree.has_ended() && Instant::now() < asked_until {
        thread::sleep(PAUSE);
        tree.look()?;
    }
    let killed = tree.living();
    let left = tree.kill(KILL_LIMIT)?;
    let ended = tree.members.keys().copied().filter(|pid| !left.contains(pid)).collect();
    Ok(TreeEnd { ended, killed, left })
}

/// A process and all that it started, as far as they were found. They stay found when their parents end.
#[derive(Debug, Default)]
pub struct ProcessTree {
    members: BTreeMap<u32, OwnedFd>,
}

impl ProcessTree {
    /// Finds a process and all that it has started.
    ///
    /// # Errors
    /// [`Error::Os`] if this process is one of them.
    pub fn of(pid: u32) -> Result<ProcessTree> {
        let mut tree = ProcessTree::default();
        tree.add(pid);
        tree.look()?;
        Ok(tree)
    }

    /// Kills them all, with what they start meanwhile, and waits until they have ended, up to a limit. Returns
    /// those that are still there.
    ///
    /// # Errors
    /// [`Error::Os`] if one of them may not be signalled.
    pub fn kill(&mut self, limit: Duration) -> Result<Vec<u32>> {
        let until = Instant::now() + limit;
        while !self.has_ended() && Instant::now() < until {
            // Again and again: a process may start another one until it is killed itself.
            self.signal(Signal::KILL)?;
            thread::sleep(PAUSE);
            self.look()?;
        }
        Ok(self.living())
    }

    fn add(&mut self, pid: u32) {
        if let Some(handle) = open(pid) {
            self.members.insert(pid, handle);
        }
    }

    /// Finds what the members have started since the last look.
    fn look(&mut self) -> Result<()> {
        let parents = parents();
        loop {
            let is_new = |(pid, parent): &(u32, u32)| {
                !self.members.contains_key(pid)
                    && self.members.get(parent).is_some_and(|handle| !is_over(handle))
            };
            let found: Vec<u32> = parents.iter().copied().filter(is_new).map(|it| it.0).collect();
            if self.members.contains_key(&process::id()) || found.contains(&process::id()) {
                let source = io::Error::other("it would end this process, too");
                return Err(Error::Os { operation: "ending a process", source });
            }
            let before = self.members.len();
            for pid in found {
                self.add(pid);
            }
            if self.members.len() == before {
                return Ok(());
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        for handle in self.members.values().filter(|handle| !is_over(handle)) {
            match pidfd_send_signal(handle, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(Error::os("signalling a process")(error)),
            }
        }
        Ok(())
    }

    fn living(&self) -> Vec<u32> {
        let living = self.members.iter().filter(|(_, handle)| !is_over(handle));
        living.map(|(pid, _)| *pid).collect()
    }

    fn has_ended(&self) -> bool {
        self.members.values().all(is_over)
    }
}

/// Returns every process with its parent.
fn parents() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(std::result::Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let with_parent = |pid| {
        let stat = lowtide_types::kernel_text(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        Some((pid, rest.split_ascii_whitespace().nth(1)?.parse().ok()?))
    };
    pids.filter_map(with_parent).collect()
}

/// Opens a handle of a process, by which its number cannot come to mean another one; `None` if the process has
/// ended, or on kernels without such handles.
pub fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Returns whether the process of a handle has ended, waited for or not.
pub fn is_over(handle: &OwnedFd) -> bool {
    let mut handles = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut handles, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Makes the kernel kill this process as soon as its parent ends, however that ends: a measurement
/// whose program was killed must not go on using the device.
///
/// `parent` is the PID that the parent knows itself by. The kernel looks at the thread that started
/// this process, so the parent starts it from a thread that lasts.
///
/// # Errors
/// If the parent has ended already, and if the kernel refuses.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that ended before the call is not noticed by the kernel: this process has another now.
    if std::os::unix::process::parent_id() == parent {
        return Ok(());
    }
    Err(io::Error::other(format!("the process {parent} that started this one has ended")))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a shell that has started others, and waits until it says their numbers.
    fn tree(script: &str, count: usize) -> (Child, Vec<u32>) {
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines().take(count);
        let pids = lines.map(|line| line.unwrap().trim().parse().unwrap()).collect();
        (shell, pids)
    }

    #[test]
    fn a_process_ends_with_what_it_started_in_other_groups_too() {
        let script = "setsid sh -c 'sleep 600 & echo $!; wait' & sleep 600 & echo $!; wait";
        let (mut shell, pids) = tree(script, 2);
        let end = end(shell.id(), Duration::from_secs(60)).unwrap();
        assert!(pids.iter().all(|pid| end.ended.contains(pid)), "{end:?} {pids:?}");
        assert!(end.ended.contains(&shell.id()) && end.ended.len() >= 4, "{end:?}");
        assert!(end.killed.is_empty() && end.left.is_empty(), "{end:?}");
        shell.wait().unwrap();
    }

    #[test]
    fn what_does_not_end_when_asked_is_killed() {
        let script = "trap '' TERM; echo $$; while :; do sleep 600; done";
        let (mut shell, pids) = tree(script, 1);
        let end = end(pids[0], Duration::from_millis(50)).unwrap();
        assert!(end.killed.contains(&pids[0]) && end.left.is_empty(), "{end:?}");
        shell.wait().unwrap();
        let again = super::end(pids[0], Duration::ZERO).unwrap();
        assert!(again.left.is_empty(), "{again:?}");
    }

    #[test]
    fn this_process_is_in_no_tree_that_ends() {
        let error = end(process::id(), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("this process"), "{error}");
        let parent = std::os::unix::process::parent_id();
        if parent > 1 {
            assert!(end(parent, Duration::ZERO).is_err(), "nobody was signalled");
        }
    }
}
