//! The programs that cargo built, read from its JSON messages.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// What a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A file, or folder, in `tests`.
    Tests,
    /// The unit tests of a library or of a program.
    UnitTests,
    /// No tests: it is a program of its own.
    Program,
}

/// A program that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The cargo target: a test's name, or the library whose unit tests these are.
    pub(crate) target: String,
    /// What it runs.
    pub(crate) kind: Kind,
    /// The folder of its package.
    pub(crate) package: PathBuf,
    /// The file to run.
    pub(crate) executable: PathBuf,
}

impl Program {
    /// The name of its package's folder, which is the package's own.
    pub(crate) fn package_name(&self) -> String {
        self.package.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Returns the programs named in the output of a cargo command with
/// `--message-format json-render-diagnostics`. Other lines are passed over.
pub(crate) fn programs(output: &str) -> Vec<Program> {
    let messages = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| program(&message)).collect()
}

fn program(message: &Value) -> Option<Program> {
    let target = message.get("target")?;
    let is_test = message.get("profile")?.get("test")?.as_bool()?;
    let in_tests = target.get("kind")?.as_array()?.iter().any(|kind| kind == "test");
    let kind = match (is_test, in_tests) {
        (true, true) => Kind::Tests,
        (true, false) => Kind::UnitTests,
        (false, _) => Kind::Program,
    };
    Some(Program {
        target: target.get("name")?.as_str()?.to_owned(),
        kind,
        package: Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_owned(),
        executable: message.get("executable")?.as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_has_its_package_and_its_file() {
        let message = |kind: &str, name: &str, is_test: bool, executable: Value| {
            serde_json::json!({
                "manifest_path": "/w/crates/pool/Cargo.toml",
                "target": { "kind": [kind], "name": name },
                "profile": { "test": is_test },
                "executable": executable,
            })
            .to_string()
        };
        let output = [
            message("lib", "pool", false, Value::Null),
            message("bin", "pool-cli", false, "/t/pool-cli".into()),
            message("lib", "pool", true, "/t/pool-1".into()),
            message("test", "suites", true, "/t/suites-2".into()),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let [cli, unit, suites] = &programs(&output.join("\n"))[..] else { panic!("three") };
        assert_eq!((cli.target.as_str(), cli.kind), ("pool-cli", Kind::Program));
        assert_eq!((unit.target.as_str(), unit.kind), ("pool", Kind::UnitTests));
        assert_eq!((suites.target.as_str(), suites.kind), ("suites", Kind::Tests));
        assert_eq!(suites.package_name(), "pool");
        assert_eq!(suites.executable, Path::new("/t/suites-2"));
    }
}
