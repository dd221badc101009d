//! Yama, the part of the kernel that may restrict which processes trace others.

use std::fs;
use std::path::Path;

/// The folder of the kernel's settings for it.
const FOLDER: &str = "/proc/sys/kernel/yama";

/// Whom the kernel lets trace a process of the same user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PtraceScope {
    /// Everybody of that user, also where there is no Yama.
    Everybody,
    /// Its ancestors, and whom it names (`PR_SET_PTRACER`).
    Named,
    /// Root only.
    Root,
    /// Nobody, until the machine restarts.
    Nobody,
}

impl PtraceScope {
    /// Reads the setting of this machine.
    pub fn now() -> PtraceScope {
        PtraceScope::in_folder(Path::new(FOLDER))
    }

    /// Reads the setting in a folder such as `/proc/sys/kernel/yama`. A setting that this version does not know
    /// is the strictest.
    pub fn in_folder(folder: &Path) -> PtraceScope {
        let text = fs::read_to_string(folder.join("ptrace_scope")).unwrap_or_default();
        match text.trim() {
            "" | "0" => PtraceScope::Everybody,
            "1" => PtraceScope::Named,
            "2" => PtraceScope::Root,
            _ => PtraceScope::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_read_as_the_kernel_writes_it() {
        let folder = std::env::temp_dir().join(format!("lowtide-yama-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(PtraceScope::in_folder(&folder), PtraceScope::Everybody, "no Yama");
        let scopes = [
            ("0\n", PtraceScope::Everybody),
            ("1\n", PtraceScope::Named),
            ("2\n", PtraceScope::Root),
            ("3\n", PtraceScope::Nobody),
            ("7\n", PtraceScope::Nobody),
        ];
        for (text, scope) in scopes {
            fs::write(folder.join("ptrace_scope"), text).unwrap();
            assert_eq!(PtraceScope::in_folder(&folder), scope, "{text:?}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
