//! Prints what the agent adds to a launch, in nanoseconds, in one and in two threads.
//!
//! `cargo run --release -p lowtide-agent --example cost`. The driver is one that does nothing: the driver
//! double takes locks, beside which the agent would not be seen.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAUNCHES: &str = "20000000";
/// Pairs of runs, without and with the agent in turn; the fastest of each counts.
const PAIRS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let agent = agent()?;
    let folder = tempfile::tempdir()?;
    let driver = folder.path().join("libcuda.so.1");
    compile(&driver, &["-DDRIVER", "-shared", "-fPIC"])?;
    let client = folder.path().join("cost");
    compile(&client, &["-pthread", "-ldl"])?;
    println!("threads   without      with     added   (ns a launch, the fastest of {PAIRS})");
    for threads in ["1", "2"] {
        let mut fastest = [f64::INFINITY; 2];
        for _ in 0..PAIRS {
            for (kind, preload) in [None, Some(agent.as_path())].into_iter().enumerate() {
                let took_ns = run(&client, folder.path(), threads, preload)?;
                fastest[kind] = fastest[kind].min(took_ns);
            }
        }
        let [without, with] = fastest;
        println!("{threads:>7} {without:>9.2} {with:>9.2} {:>9.2}", with - without);
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

fn run(
    client: &Path,
    folder: &Path,
    threads: &str,
    preload: Option<&Path>,
) -> Result<f64, Box<dyn Error>> {
    let mut command = Command::new(client);
    command.args([threads, LAUNCHES]).env("LD_LIBRARY_PATH", folder);
    command.env("XDG_RUNTIME_DIR", folder).env_remove("LD_PRELOAD");
    if let Some(agent) = preload {
        command.env("LD_PRELOAD", agent);
    }
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().map_err(|_| {
        format!("{threads} threads: {}", String::from_utf8_lossy(&output.stderr)).into()
    })
}
