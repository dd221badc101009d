//! `ps --ray` and `top --ray` where nobody can be asked; with a cluster they are tried by the tests of `lowtide.ray`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::program::Machine;

const ASKED: [&[&str]; 4] = [
    &["ps", "--ray"],
    &["ps", "--ray", "10.0.0.1:6379", "--json"],
    &["top", "--ray", "--once"],
    &["top", "--ray", "--once", "--json"],
];

/// Runs each command with a folder as the search path. Returns what people read, on one line.
fn refusals(path: &Path) -> Vec<String> {
    let machine = Machine::without_gpu();
    let refusal = |words: &&[&str]| {
        let output = machine.command(crate::PROGRAM, words).env("PATH", path).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}");
        if words.contains(&"--json") {
            let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(printed["answer"], "refused", "{printed}");
        } else {
            assert!(output.stdout.is_empty(), "{words:?}");
        }
        crate::program::one_line(&String::from_utf8_lossy(&output.stderr))
    };
    ASKED.iter().map(refusal).collect()
}

#[test]
fn without_python_or_the_package_it_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    for said in refusals(folder.path()) {
        assert!(said.contains("`python3` does not start"), "{said}");
        assert!(said.contains("pip install \"lowtide[ray]\""), "{said}");
    }
    // A Python without packages: the one of this machine, isolated.
    let python = folder.path().join("python3");
    let path = std::env::var("PATH").unwrap();
    let script = format!("#!/bin/sh\nPATH='{path}' exec python3 -I -S \"$@\"\n");
    fs::write(&python, script).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    for said in refusals(folder.path()) {
        assert!(said.contains("No module named"), "{said}");
        assert!(said.contains("`python3 -m pip install \"lowtide[ray]\"` installs"), "{said}");
    }
}

#[test]
fn the_view_of_a_cluster_has_one_order_and_all_devices() {
    let machine = Machine::without_gpu();
    for other in [&["--watch"][..], &["--device", "cuda:0"], &["--sort", "pid"]] {
        let finished = machine.run(&[&["ps", "--ray"], other].concat());
        assert_eq!(finished.code(), 2, "{other:?}: {}", finished.err());
    }
}
