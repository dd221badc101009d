//! The view of a cluster, for `ps --ray` and `top --ray`: what `python -m lowtide.ray` says of every node. Ray is asked
//! by the package, because Ray's programs are Python.

use std::env;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, bail};

/// The package's program while it runs. It ends when its standard input does, so at the latest with this process.
pub(super) struct Cluster {
    python: PathBuf,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// The last line of its standard error, which has to be read so that it never waits for a reader.
    said: Option<JoinHandle<Option<String>>>,
}

impl Cluster {
    /// Starts the package's program with these words for the cluster at an address; `auto` is the one that
    /// `RAY_ADDRESS` names, or that of this machine.
    pub(super) fn ask(address: &str, words: &[&str]) -> anyhow::Result<Cluster> {
        let python = python();
        let mut command = Command::new(&python);
        command.args(["-m", "lowtide.ray"]).args(words).args(["--address", address]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| {
            let python = python.display();
            format!(
                "Ray is asked by Python, and `{python}` does not start; install Python and `pip install \"lowtide[ray]\"`"
            )
        })?;
        let (out, err) = child.stdout.take().zip(child.stderr.take()).expect("both are pipes");
        let said = move || BufReader::new(err).lines().map_while(Result::ok).last();
        let said = Some(thread::spawn(said));
        Ok(Cluster { python, child, lines: BufReader::new(out).lines(), said })
    }

    /// Returns the next line, or `None` at the end. Fails with what it says if it has failed.
    pub(super) fn line(&mut self) -> anyhow::Result<Option<String>> {
        if let Some(line) = self.lines.next().transpose().context("reading from Python")? {
            return Ok(Some(line));
        }
        if self.child.wait().context("waiting for Python")?.success() {
            return Ok(None);
        }
        let said = self.said.take().and_then(|said| said.join().expect("reading does not panic"));
        let said = said.unwrap_or_default();
        let python = self.python.display();
        match said.strip_prefix("lowtide: ") {
            Some(reason) => bail!("{reason}"),
            None => bail!(
                "`{python} -m lowtide.ray` failed: {said}; `{python} -m pip install \"lowtide[ray]\"` installs \
                 what it needs"
            ),
        }
    }
}

/// Returns the Python beside this program, as in the environment of the wheel, or the one on the search path.
fn python() -> PathBuf {
    let beside = env::current_exe().ok().map(|program| program.with_file_name("python3"));
    beside.filter(|python| python.exists()).unwrap_or_else(|| "python3".into())
}
