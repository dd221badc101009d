//! The view of a cluster, for `ps --ray` and `top --ray`: what `python -m lowtide.ray` says of every node. Ray is asked
//! by the package, because Ray's programs are Python.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::commands::look::{DeviceLook, Look, ProgramLook};

/// The package's program while it runs. It ends when its standard input does, so at the latest with this process.
pub(super) struct Cluster {
    python: PathBuf,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// The last line of its standard error, which has to be read so that it never waits for a reader.
    said: Option<JoinHandle<Option<String>>>,
}

/// A node as `python -m lowtide.ray top` prints it.
#[derive(Deserialize)]
struct NodeLook {
    /// Why it could not be looked at.
    reason: Option<String>,
    #[serde(flatten)]
    look: Look,
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

    /// Returns the next look at all nodes.
    pub(super) fn look(&mut self) -> anyhow::Result<Look> {
        let line = self.line()?.context("the view of the cluster has ended")?;
        let nodes = serde_json::from_str(&line).with_context(|| format!("reading {line:?}"))?;
        Ok(joined(nodes))
    }
}

/// Returns the Python beside this program, as in the environment of the wheel, or the one on the search path.
fn python() -> PathBuf {
    let beside = env::current_exe().ok().map(|program| program.with_file_name("python3"));
    beside.filter(|python| python.exists()).unwrap_or_else(|| "python3".into())
}

fn joined(nodes: BTreeMap<String, NodeLook>) -> Look {
    let mut all = Look::default();
    for (node, NodeLook { reason, look }) in nodes {
        let Look { devices, programs, problems } = look;
        let of_node = |problem| format!("node {node:.8}: {problem}");
        all.problems.extend(reason.into_iter().chain(problems).map(of_node));
        let own = || Some(node.clone());
        let named = devices.into_iter().map(|device| DeviceLook { node: own(), ..device });
        all.devices.extend(named);
        let named = programs.into_iter().map(|program| ProgramLook { node: own(), ..program });
        all.programs.extend(named);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_equal_on_two_nodes_keeps_its_node_and_a_reason_is_a_problem() {
        let look = r#"{"devices": [{"id": "cuda:0", "uuid": "GPU-1", "total_bytes": 8, "free_bytes": 2,
            "bands": {"live": 6}}], "programs": [{"pid": 7, "start_ticks": 1, "command": "x", "state": "asleep",
            "held_bytes": null, "sleep_frees_bytes": 0, "obstacle": null, "turn": null}], "problems": ["cold"]}"#;
        let text = format!(
            r#"{{"aaaaaaaa11": {look}, "bbbbbbbb22": {look}, "cccccccc33": {{"reason": "no lowtide"}}}}"#
        );
        let all = joined(serde_json::from_str(&text).unwrap());
        let nodes = ["aaaaaaaa11", "bbbbbbbb22"].map(|node| Some(node.to_owned()));
        assert!(all.devices.iter().map(|device| device.node.clone()).eq(nodes.clone()));
        assert!(all.programs.iter().map(|program| program.node.clone()).eq(nodes));
        let problems = ["node aaaaaaaa: cold", "node bbbbbbbb: cold", "node cccccccc: no lowtide"];
        assert_eq!(all.problems, problems);
    }
}
