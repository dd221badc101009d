//! The identity of a process behind a PID, as far as this process may know it.
//!
//! The driver reports PIDs of the outermost namespace. Inside a container such a PID names no process,
//! or by chance another one: there a PID counts only if its process has the GPU open.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lowtide_types::printable_bytes;
use serde::Serialize;

/// The kernel's fixed inode number of the outermost PID namespace.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The identity of a process, or the reason why it is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "identity")]
pub enum Identity {
    /// A process that can be looked up.
    Known {
        /// The name of the program, as [`printable_bytes`] shows it.
        name: String,
        /// Its command line, shown in the same way; empty where it has none.
        command: String,
    },
    /// No process with this PID is visible here: it has ended, or lives outside this container.
    NotVisible,
    /// The process exists, but this user may not look at it.
    NoPermission,
    /// The PID belongs to a process of this namespace that does not have the GPU open.
    OtherNamespace,
    /// No process can be looked up here: /proc is not mounted or cannot be read.
    NoProc,
}

/// Looks up a process by a PID that the driver reported.
pub fn of_driver_pid(pid: u32) -> Identity {
    Proc::of_this_machine().of_driver_pid(pid)
}

/// Looks up a process by a PID of this namespace.
pub fn of_own_pid(pid: u32) -> Identity {
    Proc::of_this_machine().of_own_pid(pid)
}

/// Returns whether this process is in the PID namespace of the driver, and so sees the processes that
/// the driver reports.
pub fn sees_driver_pids() -> bool {
    Proc::of_this_machine().is_outermost()
}

/// Returns the reason why no process can be looked up here; `None` if /proc can be read.
pub fn why_unreadable() -> Option<String> {
    Proc::of_this_machine().why_unreadable()
}

struct Proc {
    root: PathBuf,
}

impl Proc {
    fn of_this_machine() -> Proc {
        Proc { root: PathBuf::from("/proc") }
    }

    fn is_outermost(&self) -> bool {
        let namespace = fs::read_link(self.root.join("self/ns/pid"));
        namespace.is_ok_and(|namespace| namespace == Path::new(INITIAL_PID_NAMESPACE))
    }

    fn of_driver_pid(&self, pid: u32) -> Identity {
        let known = self.of_own_pid(pid);
        let process = self.root.join(pid.to_string());
        if matches!(known, Identity::Known { .. })
            && !self.is_outermost()
            && has_gpu_open(&process) == Some(false)
        {
            return Identity::OtherNamespace;
        }
        known
    }

    fn of_own_pid(&self, pid: u32) -> Identity {
        let process = self.root.join(pid.to_string());
        let name = match fs::read(process.join("comm")) {
            Ok(name) => printable_bytes(name.strip_suffix(b"\n").unwrap_or(&name)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Identity::NoPermission;
            }
            Err(_) if self.why_unreadable().is_some() => return Identity::NoProc,
            Err(_) => return Identity::NotVisible,
        };
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let words = command.split(|byte| *byte == 0).map(printable_bytes).collect::<Vec<_>>();
        Identity::Known { name, command: words.join(" ").trim_end().to_owned() }
    }

    // The kernel shows every process at least itself.
    fn why_unreadable(&self) -> Option<String> {
        let root = self.root.display();
        match fs::read_link(self.root.join("self")) {
            Ok(_) => None,
            Err(error) => Some(format!("{root} cannot be read: {root}/self: {error}")),
        }
    }
}

fn has_gpu_open(process: &Path) -> Option<bool> {
    let open = fs::read_dir(process.join("fd")).ok()?;
    let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Some(targets.into_iter().any(|target| target.to_string_lossy().starts_with("/dev/nvidia")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn machine(name: &str, namespace: &str) -> Proc {
        let root = std::env::temp_dir().join(format!("lowtide-proc-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for dir in ["1/ns", "7/fd", "8/fd"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        symlink(namespace, root.join("1/ns/pid")).unwrap();
        symlink("1", root.join("self")).unwrap();
        for (pid, target) in [("7", "/dev/nvidia0"), ("8", "/dev/null")] {
            fs::write(root.join(pid).join("comm"), "python3\n").unwrap();
            fs::write(root.join(pid).join("cmdline"), "python3\0serve.py\0").unwrap();
            symlink(target, root.join(pid).join("fd/3")).unwrap();
        }
        Proc { root }
    }

    #[test]
    fn in_the_outermost_namespace_a_pid_is_who_it_says() {
        let machine = machine("outer", INITIAL_PID_NAMESPACE);
        let command = "python3 serve.py".to_owned();
        assert_eq!(
            machine.of_driver_pid(8),
            Identity::Known { name: "python3".to_owned(), command }
        );
        assert_eq!(machine.of_driver_pid(9), Identity::NotVisible);
        fs::remove_dir_all(machine.root).unwrap();
    }

    #[test]
    fn in_a_container_only_a_process_with_the_gpu_open_is_believed() {
        let machine = machine("inner", "pid:[4026532999]");
        assert!(matches!(machine.of_driver_pid(7), Identity::Known { .. }));
        assert_eq!(machine.of_driver_pid(8), Identity::OtherNamespace);
        fs::remove_dir_all(machine.root).unwrap();
    }

    #[test]
    fn a_name_that_is_no_utf8_or_moves_the_cursor_is_shown_escaped() {
        let machine = machine("names", INITIAL_PID_NAMESPACE);
        let process = machine.root.join("7");
        fs::write(process.join("comm"), b"p\xff\x1b[31m\n").unwrap();
        fs::write(process.join("cmdline"), b"a\xfe\0--flag=\xe2\x80\xae\0\0\0").unwrap();
        let (name, command) = (r"p\xff\u{1b}[31m".to_owned(), r"a\xfe --flag=\u{202e}".to_owned());
        assert_eq!(machine.of_driver_pid(7), Identity::Known { name, command });
        // The name of a process may end with a blank, and is then not another process's name.
        fs::write(process.join("comm"), "x \n").unwrap();
        assert!(matches!(machine.of_own_pid(7), Identity::Known { name, .. } if name == "x "));
        fs::remove_dir_all(machine.root).unwrap();
    }

    #[test]
    fn where_nothing_can_be_looked_up_that_is_told() {
        let root = PathBuf::from("/nowhere/proc");
        let machine = Proc { root };
        assert_eq!(machine.of_driver_pid(7), Identity::NoProc);
        assert!(machine.why_unreadable().unwrap().contains("/nowhere/proc cannot be read"));
        assert_eq!(why_unreadable(), None);
    }

    #[test]
    fn this_process_knows_itself() {
        assert!(matches!(of_own_pid(std::process::id()), Identity::Known { .. }));
    }
}
