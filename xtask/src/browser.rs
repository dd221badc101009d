//! `cargo xtask browser`: Chromium from Debian, in which the report is tried. Without it those tests are skipped.

use std::process::Command;

use crate::steps::run;

/// Installs Chromium where there is none. Needs root.
pub(crate) fn install() -> anyhow::Result<()> {
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        run("apt-get", command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if Command::new("chromium").arg("--version").output().is_err() {
        apt(&["update", "-q"])?;
        apt(&["install", "-q", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"])?;
    }
    run("chromium", Command::new("chromium").arg("--version"))
}
