//! Prints what the agent adds to a launch, in one and in two threads.
//!
//! `cargo run --release -p lowtide-agent --example cost`. The driver is one that does nothing: the driver
//! double takes locks, beside which the agent would not be seen.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bursts of launches by the driver's function and by the agent's, in turn.
const BURSTS: &str = "20000";

fn main() -> Result<(), Box<dyn Error>> {
    let agent = agent()?;
    let folder = tempfile::tempdir()?;
    let driver = folder.path().join("libcuda.so.1");
    compile(&driver, &["-DDRIVER", "-shared", "-fPIC"])?;
    let client = folder.path().join("cost");
    compile(&client, &["-pthread", "-ldl"])?;
    for threads in ["1", "2"] {
        let mut command = Command::new(&client);
        command.args([threads, BURSTS]).env("LD_LIBRARY_PATH", folder.path());
        command.env("XDG_RUNTIME_DIR", folder.path()).env("LD_PRELOAD", &agent);
        let output = command.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        print!("{threads} threads: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

/// Finds the library that cargo has built for this example.
fn agent() -> Result<PathBuf, Box<dyn Error>> {
    let program = env::current_exe()?;
    let profile = program.ancestors().nth(2).ok_or("the example is in no folder of cargo's")?;
    let found = profile.join("deps/liblowtide_agent.so");
    if found.exists() { Ok(found) } else { Err(format!("{} is missing", found.display()).into()) }
}

fn compile(to: &Path, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cost.c");
    let done = Command::new("cc")
        .args(["-O2", "-w", "-o"])
        .arg(to)
        .arg(source)
        .args(arguments)
        .status()?;
    if done.success() { Ok(()) } else { Err("cc failed".into()) }
}
