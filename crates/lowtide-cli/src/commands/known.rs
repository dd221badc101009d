//! Processes that are looked at again and again: what seldom changes of them is looked up seldom.

use std::collections::HashMap;

use lowtide_device::identity::{self, Identity};
use lowtide_proto::helper::Target;

/// The most looks between two in which a process is looked up.
const LOOKS_MOST: u32 = 16;

/// The processes of the last looks.
#[derive(Default)]
pub(super) struct Processes {
    known: HashMap<u32, Known>,
    look: u32,
}

/// A process that was looked up. It may become another program by an exec, and its number another process.
struct Known {
    identity: Identity,
    start_ticks: Option<u64>,
    /// The looks in which it was first looked up, last looked up, and last asked for.
    first: u32,
    last: u32,
    asked: u32,
}

impl Known {
    fn look_up(pid: u32, is_own: bool, first: u32, look: u32) -> Known {
        let identity =
            if is_own { identity::of_own_pid(pid) } else { identity::of_driver_pid(pid) };
        let is_here = matches!(identity, Identity::Known { .. });
        let start_ticks = if is_here { Target::of(pid).ok() } else { None };
        let start_ticks = start_ticks.map(|target| target.start_ticks);
        Known { identity, start_ticks, first, last: look, asked: look }
    }
}

impl Processes {
    /// Begins another look. What was not asked for in the last one is forgotten.
    pub(super) fn begin(&mut self) {
        self.known.retain(|_, known| known.asked == self.look);
        self.look = self.look.wrapping_add(1);
    }

    /// Returns whether a process was there when it was looked up last.
    pub(super) fn is_known(&self, target: Target) -> bool {
        let known = self.known.get(&target.pid);
        known.is_some_and(|known| known.start_ticks == Some(target.start_ticks))
    }

    /// Returns the process of a number, of this namespace or else of the driver's, and the time of its start since the
    /// boot in clock ticks, `None` where it has ended or is not of this namespace. A new one is looked up again in the
    /// next looks, an old one in every sixteenth.
    pub(super) fn of(&mut self, pid: u32, is_own: bool) -> (Identity, Option<u64>) {
        let look = self.look;
        let new = || Known::look_up(pid, is_own, look, look);
        let known = self.known.entry(pid).or_insert_with(new);
        let age = known.last.wrapping_sub(known.first);
        if look.wrapping_sub(known.last) >= age.clamp(1, LOOKS_MOST) {
            *known = Known::look_up(pid, is_own, known.first, look);
        }
        known.asked = look;
        (known.identity.clone(), known.start_ticks)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::{fs, thread};

    use super::*;

    #[test]
    fn a_process_that_becomes_another_program_is_looked_up_again_and_one_that_ended_is_forgotten() {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "read line; exec sleep 1000"]).stdin(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let pid = child.id();
        let until_it_is = |command: &str| {
            let words = command.replace('|', "\0");
            while fs::read(format!("/proc/{pid}/cmdline")).unwrap() != words.as_bytes() {
                thread::yield_now();
            }
        };
        until_it_is("sh|-c|read line; exec sleep 1000|");
        let mut processes = Processes::default();
        let mut command_in_next_look = || {
            processes.begin();
            match processes.of(pid, true).0 {
                Identity::Known { command, .. } => Some(command),
                _ => None,
            }
        };
        for _ in 0..40 {
            assert_eq!(command_in_next_look().as_deref(), Some("sh -c read line; exec sleep 1000"));
        }
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        until_it_is("sleep|1000|");
        let later: Vec<_> = (0..LOOKS_MOST).map(|_| command_in_next_look()).collect();
        assert_eq!(later.last(), Some(&Some("sleep 1000".to_owned())));
        child.kill().unwrap();
        child.wait().unwrap();
        let later: Vec<_> = (0..LOOKS_MOST).map(|_| command_in_next_look()).collect();
        assert_eq!(later.last(), Some(&None));
        processes.begin();
        processes.begin();
        assert!(processes.known.is_empty());
    }

    #[test]
    fn a_number_that_names_nobody_here_has_no_start() {
        let mut processes = Processes::default();
        let own = std::process::id();
        let start = Target::of(own).unwrap().start_ticks;
        assert_eq!(processes.of(own, true).1, Some(start));
        assert_eq!(processes.of(u32::MAX, false).1, None);
    }
}
