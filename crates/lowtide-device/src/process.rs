//! Who a PID is, as far as this process may know.
//!
//! The driver tells PIDs of the outermost namespace. Inside a container they name nobody, or by
//! chance somebody else: a PID is believed there only if that process has the GPU open.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The kernel's fixed inode number of the outermost PID namespace.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A process, or why it is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "identity")]
pub enum Who {
    /// A process of this machine.
    Known {
        /// The program's name.
        name: String,
        /// Its command line; empty where it has none.
        command: String,
    },
    /// No process with this PID is visible here: it has ended, or lives outside this container.
    NotVisible,
    /// It is there, but this user may not look at it.
    NoPermission,
    /// In this PID namespace the number belongs to a process that does not have the GPU open.
    OtherNamespace,
}

/// Looks up a process that the driver told the PID of.
pub fn who(pid: u32) -> Who {
    Proc::of_this_machine().who(pid)
}

/// Looks up a process whose PID was found in this namespace.
pub(crate) fn known_here(pid: u32) -> Who {
    Proc::of_this_machine().known(pid)
}

/// Whether this process sees the PIDs that the driver tells.
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

    fn who(&self, pid: u32) -> Who {
        let known = self.known(pid);
        let process = self.root.join(pid.to_string());
        if matches!(known, Who::Known { .. })
            && !self.is_outermost()
            && has_gpu_open(&process) == Some(false)
        {
            return Who::OtherNamespace;
        }
        known
    }

    fn known(&self, pid: u32) -> Who {
        let process = self.root.join(pid.to_string());
        let name = match fs::read_to_string(process.join("comm")) {
            Ok(name) => name.trim_end().to_owned(),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Who::NoPermission,
            Err(_) => return Who::NotVisible,
        };
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ").trim_end().to_owned();
        Who::Known { name, command }
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
        assert_eq!(machine.who(8), Who::Known { name: "python3".to_owned(), command });
        assert_eq!(machine.who(9), Who::NotVisible);
        fs::remove_dir_all(machine.root).unwrap();
    }

    #[test]
    fn in_a_container_only_a_process_with_the_gpu_open_is_believed() {
        let machine = machine("inner", "pid:[4026532999]");
        assert!(matches!(machine.who(7), Who::Known { .. }));
        assert_eq!(machine.who(8), Who::OtherNamespace);
        fs::remove_dir_all(machine.root).unwrap();
    }

    #[test]
    fn this_process_knows_itself() {
        assert!(matches!(known_here(std::process::id()), Who::Known { .. }));
    }
}
