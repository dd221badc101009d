//! The identity of a process behind a PID, as far as this process may know it.
//!
//! The driver reports PIDs of the outermost namespace. Inside a container such a PID names no process,
//! or by chance another one: there a PID counts only if its process has the GPU open.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The kernel's fixed inode number of the outermost PID namespace.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The identity of a process, or the reason why it is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "identity")]
pub enum Identity {
    /// A process that can be looked up.
    Known {
        /// The name of the program.
        name: String,
        /// Its command line; empty where it has none.
        command: String,
    },
    /// No process with this PID is visible here: it has ended, or lives outside this container.
    NotVisible,
    /// The process exists, but this user may not look at it.
    NoPermission,
    /// The PID belongs to a process of this namespace that does not have the GPU open.
    OtherNamespace,
}

/// Looks up a process by a PID that the driver reported.
pub fn of_driver_pid(pid: u32) -> Identity {
    Proc::of_this_machine().of_driver_pid(pid)
}

/// Looks up a process by a PID of this namespace.
pub(crate) fn of_own_pid(pid: u32) -> Identity {
    Proc::of_this_machine().of_own_pid(pid)
}

/// Returns whether this process is in the PID namespace of the driver, and so sees the processes that
/// the driver reports.
pub fn sees_driver_pids() -> bool {
    Proc::of_this_machine().is_outermost()
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
        let name = match fs::read_to_string(process.join("comm")) {
            Ok(name) => name.trim_end().to_owned(),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Identity::NoPermission;
            }
            Err(_) => return Identity::NotVisible,
        };
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ").trim_end().to_owned();
        Identity::Known { name, command }
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
        for dir in ["self/ns", "7/fd", "8/fd"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        symlink(namespace, root.join("self/ns/pid")).unwrap();
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
    fn this_process_knows_itself() {
        assert!(matches!(of_own_pid(std::process::id()), Identity::Known { .. }));
    }
}
