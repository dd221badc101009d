//! A program as a user runs it, on a machine of the test's choice.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use lowtide_testing::double::Double;
use serde_json::Value;
use tempfile::TempDir;

/// A machine: its driver libraries, and a cache folder of its own.
pub(crate) struct Machine {
    folder: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Machine {
    /// No GPU, and no driver library.
    pub(crate) fn without_gpu() -> Machine {
        Machine::with_libraries("/nowhere/libcuda.so.1", "/nowhere/libnvidia-ml.so.1")
    }

    /// The driver double, with settings (`double/faults.rs` lists them).
    pub(crate) fn with_double(settings: &str) -> Machine {
        let double = Double::path().display().to_string();
        let mut machine = Machine::with_libraries(&double, &double);
        let state = machine.path("state").display().to_string();
        machine.variables.push(("LOWTIDE_DOUBLE", settings.to_owned()));
        machine.variables.push(("LOWTIDE_DOUBLE_STATE", state));
        machine
    }

    /// These files as driver libraries.
    pub(crate) fn with_libraries(cuda: &str, nvml: &str) -> Machine {
        let variables = vec![
            ("LOWTIDE_CUDA_LIBRARY", cuda.to_owned()),
            ("LOWTIDE_NVML_LIBRARY", nvml.to_owned()),
        ];
        Machine { folder: TempDir::new().unwrap(), variables }
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env_remove("LOWTIDE_LOG")
            .env_remove("COLUMNS")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        let output = self.command(crate::PROGRAM, arguments).output().unwrap();
        Finished { output }
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) output: Output,
}

impl Finished {
    pub(crate) fn code(&self) -> i32 {
        self.output.status.code().expect("it was not killed")
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    /// What it wrote to standard error, on one line: it is wrapped to a width.
    pub(crate) fn err(&self) -> String {
        one_line(&String::from_utf8(self.output.stderr.clone()).unwrap())
    }

    /// What it wrote to standard output, on one line.
    pub(crate) fn words(&self) -> String {
        one_line(&self.out())
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code(), 0, "{}", self.err());
        serde_json::from_str(&self.out()).unwrap_or_else(|why| panic!("{why}: {}", self.out()))
    }
}

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
