//! How much host memory is left: the least of what the machine and every control group around this process
//! have left. Inside a container the machine's own number does not apply.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Bytes;
use crate::facts::HostLimit;

/// The memory that always stays with the machine.
pub(crate) const MARGIN: Bytes = Bytes::mib(256);

/// Host memory that can still be taken.
///
/// ```
/// use lowtide_device::headroom::HostHeadroom;
///
/// let headroom = HostHeadroom::now();
/// println!("{} left ({})", headroom.left, headroom.limit);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostHeadroom {
    /// The bytes that are left.
    pub left: Bytes,
    /// The limit that is nearest.
    pub limit: HostLimit,
}

impl HostHeadroom {
    /// Reads what is left right now.
    pub fn now() -> HostHeadroom {
        HostHeadroom::under(Path::new("/"))
    }

    pub(crate) fn under(root: &Path) -> HostHeadroom {
        let machine = meminfo(root, "MemAvailable:").unwrap_or(Bytes(u64::MAX));
        let mut headroom = HostHeadroom { left: machine, limit: HostLimit::Machine };
        for group in groups(root) {
            let Some(left) = group_left(&group) else { continue };
            if left < headroom.left {
                let path = Path::new("/").join(group.strip_prefix(root).unwrap_or(&group));
                headroom = HostHeadroom { left, limit: HostLimit::ControlGroup(path) };
            }
        }
        headroom
    }
}

/// Returns all the memory of this machine, or of the control group that confines this process.
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

// Above `memory.high` the kernel slows the group down until it stands still; above the others it kills.
fn limit(group: &Path) -> Option<Bytes> {
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    limits.iter().filter_map(|name| number(&group.join(name))).min()
}

fn group_left(group: &Path) -> Option<Bytes> {
    let used = number(&group.join("memory.current"))
        .or_else(|| number(&group.join("memory.usage_in_bytes")))?;
    Some(limit(group)?.saturating_sub(used.saturating_sub(cache(group))))
}

// File pages that the kernel drops before it refuses anybody: they count as used, but can be taken.
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
        let root = std::env::temp_dir().join(format!(
            "lowtide-headroom-{}-{:p}",
            std::process::id(),
            files
        ));
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
        let headroom = HostHeadroom::under(&root);
        assert_eq!(headroom.left, Bytes::gib(1));
        assert_eq!(headroom.limit, HostLimit::ControlGroup("/sys/fs/cgroup/outer".into()));
        let text = headroom.limit.to_string();
        assert_eq!(text, "the memory limit of control group /sys/fs/cgroup/outer");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_group_that_is_slowed_down_above_a_limit_has_that_limit() {
        let root = machine(&[
            ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n"),
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/memory.high", "1073741824\n"),
            ("sys/fs/cgroup/outer/memory.current", "536870912\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/outer/inner/memory.high", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "536870912\n"),
        ]);
        let limit = HostLimit::ControlGroup("/sys/fs/cgroup/outer".into());
        let expected = HostHeadroom { left: Bytes::mib(512), limit };
        assert_eq!(HostHeadroom::under(&root), expected);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn without_groups_the_machine_counts() {
        let root = machine(&[
            ("proc/meminfo", "MemAvailable:    1024 kB\n"),
            ("proc/self/cgroup", "4:cpu:/x\n7:memory,hugetlb:/y\n"),
        ]);
        let expected = HostHeadroom { left: Bytes::mib(1), limit: HostLimit::Machine };
        assert_eq!(HostHeadroom::under(&root), expected);
        fs::remove_dir_all(root).unwrap();
    }
}
