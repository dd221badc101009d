//! A process, named so that its number cannot come to mean another one.

use std::str::FromStr;
use std::{fmt, io};

use lowtide_types::kernel_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A process: its number and the time of its start. The kernel gives a number again after its process has
/// ended; with the time of its start it stays one process's.
///
/// ```
/// use lowtide_proto::helper::Target;
///
/// let this = Target::of(std::process::id())?;
/// assert_eq!(this, Target::of(std::process::id())?);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Target {
    /// The number of the process.
    pub pid: u32,
    /// The time of its start since the boot, in the kernel's clock ticks.
    pub start_ticks: u64,
}

impl Target {
    /// Looks up the process of this number.
    ///
    /// # Errors
    /// Those of reading `/proc`; [`io::ErrorKind::NotFound`] if there is none of this number.
    pub fn of(pid: u32) -> io::Result<Target> {
        let stat = kernel_text(format!("/proc/{pid}/stat"))?;
        let start_ticks = start_in(&stat).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {stat:?}"))
        })?;
        Ok(Target { pid, start_ticks })
    }
}

/// A text that names no process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no process; a name is its number, a dash and its start")]
pub struct ParseTargetError(String);

impl Target {
    /// Returns the text that is read as this process.
    pub fn to_text(self) -> String {
        format!("{}-{}", self.pid, self.start_ticks)
    }
}

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Target, ParseTargetError> {
        let found = text.split_once('-').and_then(|(pid, start_ticks)| {
            Some(Target { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
        });
        found.ok_or_else(|| ParseTargetError(text.to_owned()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

// The second field is the name, in parentheses, and may have anything in it. The start is field 22.
fn start_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["cat", "a b", "x) R 1 (", "))"] {
            assert_eq!(start_in(&format!("77 ({name}) {fields}")), Some(4711), "{name}");
        }
        assert_eq!(start_in("77 (cat) S 1"), None);
        assert_eq!(start_in(""), None);
        assert!(Target::of(u32::MAX).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_program_whose_name_the_kernel_cuts_in_a_character_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("fourteen bytesé");
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("a link");
        let mut child = std::process::Command::new(&program).arg("1000").spawn().expect("a child");
        let found = Target::of(child.id());
        let name = std::fs::read(format!("/proc/{}/comm", child.id()));
        child.kill().and_then(|()| child.wait()).expect("its end");
        assert_eq!(name.expect("a name"), b"fourteen bytes\xc3\n");
        assert!(found.is_ok_and(|target| target.start_ticks > 0));
    }
}
