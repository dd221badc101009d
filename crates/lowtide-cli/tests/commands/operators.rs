//! What probes, log collectors and systemd meet.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::Value;

use crate::program::Machine;

#[test]
fn a_probe_ends_with_three_where_the_device_cannot_do_what_it_requires() {
    let double = Machine::with_double("total=256MiB,context=48MiB");
    assert_eq!(double.run(&["doctor", "--require", "cuda", "--json"]).code(), 0);
    let report = double.run(&["doctor", "--require", "cuda", "--json"]).json();
    assert!(report["devices"][0]["capabilities"].get("suspend").is_none(), "it is not tried");
    let without = Machine::without_gpu();
    for what in ["cuda", "suspend"] {
        let finished = without.run(&["doctor", "--require", what]);
        assert_eq!(finished.code(), 3);
        assert!(finished.err().contains(&format!("--require {what}")), "{}", finished.err());
        assert!(
            finished.out().contains("host"),
            "the rest is told all the same: {}",
            finished.out()
        );
    }
    assert_eq!(without.run(&["doctor"]).code(), 0);
    assert_eq!(without.run(&["doctor", "--require", "luck"]).code(), 2);
}

#[test]
fn each_line_of_the_log_is_an_object_if_that_is_asked_for() {
    let machine = Machine::with_double("total=256MiB");
    let logged = |format: &str| {
        let mut command =
            machine.command(crate::PROGRAM, &["doctor", "--measure", "--device", "host"]);
        command.env("LOWTIDE_LOG", "trace").env("LOWTIDE_LOG_FORMAT", format);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let text = logged("json");
    assert!(text.lines().count() > 0, "something is logged");
    for line in text.lines() {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(object["level"].is_string() && object["fields"].is_object(), "{line}");
    }
    assert!(!logged("text").starts_with('{'));
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_of_the_helper() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join(".local/lib/lowtide");
    fs::create_dir_all(&place).unwrap();
    symlink("/bin/true", place.join("lowtide-helper")).unwrap();
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/lowtide-helper.service");
    let mut command = Command::new("systemd-analyze");
    command.args(["--user", "verify", unit]);
    command.env("HOME", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    let Ok(output) = command.output() else {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
