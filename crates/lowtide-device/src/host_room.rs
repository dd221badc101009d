//! How much memory this machine, and every control group around this process, has left.
//!
//! Inside a container the machine's number is somebody else's: the least of all limits counts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Bytes, Error, Result};

/// What is left, and which limit says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can still be taken.
    pub left: Bytes,
    /// The limit that is nearest, in words.
    pub limit: String,
}

/// What is left right now.
pub fn left() -> Room {
    left_under(Path::new("/"))
}

/// What is always left to the machine.
const MARGIN: Bytes = Bytes::mib(256);

/// Refuses what would leave the machine less than a margin.
///
/// # Errors
/// [`Error::NoHostRoom`] with what is left and which limit says so.
pub fn ask_for(requested: Bytes) -> Result<()> {
    let room = left();
    let left = room.left.saturating_sub(MARGIN);
    if requested > left {
        return Err(Error::NoHostRoom { requested, left, limit: room.limit });
    }
    Ok(())
}

fn left_under(root: &Path) -> Room {
    let machine = meminfo(root, "MemAvailable:").unwrap_or(Bytes(u64::MAX));
    let mut room = Room { left: machine, limit: "the machine's available memory".to_owned() };
    for group in groups(root) {
        let Some(left) = group_left(&group) else { continue };
        if left < room.left {
            let name = group.strip_prefix(root).unwrap_or(&group);
            room = Room {
                left,
                limit: format!("the memory limit of control group /{}", name.display()),
            };
        }
    }
    room
}

/// All the memory of this machine, or of the control group it is confined to.
pub(crate) fn total() -> Bytes {
    let root = Path::new("/");
    let machine = meminfo(root, "MemTotal:").unwrap_or(Bytes::ZERO);
    groups(root).iter().filter_map(|group| limit(group)).fold(machine, Bytes::min)
}

fn meminfo(root: &Path, key: &str) -> Option<Bytes> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(Bytes::kib(line.split_whitespace().next()?.parse().ok()?))
}

// This process's control group and all its parents, in the unified and in the old hierarchy.
fn groups(root: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let mount = match controllers {
            "" => root.join("sys/fs/cgroup"),
            list if list.split(',').any(|name| name == "memory") => {
                root.join("sys/fs/cgroup/memory")
            }
            _ => continue,
        };
        let group = mount.join(path.trim_start_matches('/'));
        groups
            .extend(group.ancestors().take_while(|at| at.starts_with(&mount)).map(Path::to_owned));
    }
    groups
}

fn number(file: &Path) -> Option<Bytes> {
    fs::read_to_string(file).ok()?.trim().parse().ok().map(Bytes)
}

fn limit(group: &Path) -> Option<Bytes> {
    number(&group.join("memory.max")).or_else(|| number(&group.join("memory.limit_in_bytes")))
}

fn group_left(group: &Path) -> Option<Bytes> {
    let used = number(&group.join("memory.current"))
        .or_else(|| number(&group.join("memory.usage_in_bytes")))?;
    Some(limit(group)?.saturating_sub(used.saturating_sub(cache(group))))
}

// File pages that the kernel drops before it refuses anybody: they count as used, but are room.
fn cache(group: &Path) -> Bytes {
    let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let line = |key| text.lines().find_map(|line| line.strip_prefix(key));
    let value = line("total_inactive_file ").or_else(|| line("inactive_file "));
    value.and_then(|value| value.trim().parse().ok()).map_or(Bytes::ZERO, Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("lowtide-room-{}-{:p}", std::process::id(), files));
        for (name, text) in files {
            let file = root.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_enclosing_group_counts() {
        let root = machine(&[
            ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n"),
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/outer/memory.current", "1610612736\n"),
            ("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 536870912\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "4096\n"),
        ]);
        let room = left_under(&root);
        assert_eq!(room.left, Bytes::gib(1));
        assert!(room.limit.ends_with("cgroup/outer"), "{}", room.limit);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn without_groups_the_machine_counts() {
        let root = machine(&[
            ("proc/meminfo", "MemAvailable:    1024 kB\n"),
            ("proc/self/cgroup", "4:cpu:/x\n7:memory,hugetlb:/y\n"),
        ]);
        assert_eq!(left_under(&root).left, Bytes::mib(1));
        fs::remove_dir_all(root).unwrap();
    }
}
