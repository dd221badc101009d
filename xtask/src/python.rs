//! The Python package: built as anybody would build it, into an environment of its own with a real
//! torch, and tested there.

use std::path::Path;
use std::process::Command;

use crate::steps::run;

/// Thrown away and made anew each time, so that nothing of an older build is left in it.
const ENVIRONMENT: &str = "target/python-environment";
const PACKAGE: &str = "crates/lowtide-python";
/// What the tests need: the framework, the peers that `why` is held against, and who checks types.
const NEEDED: [&str; 6] = ["torch", "numpy", "objgraph", "pytest", "mypy", "ruff"];

/// Builds, checks and tests it.
pub(crate) fn test() -> anyhow::Result<()> {
    let python = Path::new(ENVIRONMENT).join("bin/python");
    run("environment", Command::new("python3").args(["-m", "venv", "--clear", ENVIRONMENT]))?;
    run("torch and tools", pip(&python).args(NEEDED))?;
    run("python package", pip(&python).arg("."))?;
    let module = |name: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", name]);
        command
    };
    run("python lints", module("ruff").args(["check", PACKAGE]))?;
    run("python format", module("ruff").args(["format", "--check", PACKAGE]))?;
    run("python types", module("mypy").args(["--package", "lowtide"]))?;
    run("stubs", module("mypy.stubtest").arg("lowtide._native"))?;
    run("python tests", module("pytest").args(["-q", "-p", "no:cacheprovider"]).arg(PACKAGE))
}

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    command
}
