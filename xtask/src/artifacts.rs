//! The programs that cargo built, read from its JSON messages.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A program that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The cargo target: a test's name, or the library whose unit tests these are.
    pub(crate) target: String,
    /// Whether these are the unit tests of a library or of a program.
    pub(crate) is_unit_tests: bool,
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
    let kinds = target.get("kind")?.as_array()?;
    Some(Program {
        target: target.get("name")?.as_str()?.to_owned(),
        is_unit_tests: !kinds.iter().any(|kind| kind == "test"),
        package: Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_owned(),
        executable: message.get("executable")?.as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_has_its_package_and_its_file() {
        let output = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/pool/Cargo.toml","target":{"kind":["lib"],"name":"pool"},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/pool/Cargo.toml","target":{"kind":["lib"],"name":"pool"},"executable":"/t/pool-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/pool/Cargo.toml","target":{"kind":["test"],"name":"suites"},"executable":"/t/suites-2"}
{"reason":"build-finished","success":true}
"#;
        let [unit, suites] = &programs(output)[..] else { panic!("two programs") };
        assert_eq!((unit.target.as_str(), unit.is_unit_tests), ("pool", true));
        assert_eq!((suites.target.as_str(), suites.is_unit_tests), ("suites", false));
        assert_eq!(suites.package_name(), "pool");
        assert_eq!(suites.executable, Path::new("/t/suites-2"));
    }
}
