//! `lowtide generate`: completions and man pages have every command and every flag that `--help` has.

use std::fs;

use crate::program::Machine;

/// The commands in the program's help, and the flags in each command's help.
fn flags(machine: &Machine) -> Vec<(String, Vec<String>)> {
    let help = machine.run(&["--help"]).out();
    let list = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next());
    let names = list.expect("a list of commands").lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?;
        let name = name.split_whitespace().next().filter(|_| !name.starts_with(' '))?;
        (name != "help").then(|| name.to_owned())
    });
    let of = |name: &str| {
        let help = machine.run(&[name, "--help"]).out();
        let words = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
        let mut flags: Vec<String> = words
            .map(|word| word.trim_end_matches(|last: char| !last.is_alphanumeric()).to_owned())
            .collect();
        flags.sort();
        flags.dedup();
        flags
    };
    names.map(|name| (name.clone(), of(&name))).collect()
}

#[test]
fn every_command_and_flag_is_in_the_completions_and_man_pages() {
    let machine = Machine::without_gpu();
    let to = machine.path("prefix");
    let ended = machine.run(&["generate", to.to_str().expect("text")]);
    assert_eq!(ended.code(), 0, "{}", ended.err());
    let read = |path: &str| {
        fs::read_to_string(to.join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
    };
    let shells = [
        read("share/bash-completion/completions/lowtide"),
        read("share/zsh/site-functions/_lowtide"),
        read("share/fish/vendor_completions.d/lowtide.fish"),
    ];
    let commands = flags(&machine);
    assert!(commands.iter().any(|(name, flags)| name == "run" && flags.len() > 3), "{commands:?}");
    let whole = read("share/man/man1/lowtide.1");
    for (name, flags) in &commands {
        assert!(whole.contains(&format!("lowtide\\-{name}(1)")), "{name} is not in {whole}");
        let page = read(&format!("share/man/man1/lowtide-{name}.1")).replace("\\-", "-");
        for flag in flags {
            assert!(page.contains(flag), "{name} {flag} has no place in its page:\n{page}");
            let word = flag.trim_start_matches('-');
            assert!(shells.iter().all(|script| script.contains(word)), "{name} {flag}");
        }
    }
    let pages: Vec<_> = fs::read_dir(to.join("share/man/man1")).expect("pages").collect();
    let has = |wanted: &str| pages.iter().flatten().any(|page| page.file_name() == wanted);
    assert!(!has("lowtide-floor-child.1"), "hidden commands have none: {pages:?}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let machine = Machine::without_gpu();
    fs::write(machine.path("file"), "").expect("a file");
    let to = machine.path("file").join("below");
    let ended = machine.run(&["generate", to.to_str().expect("text")]);
    assert_eq!(ended.code(), 3, "{}", ended.err());
    assert!(
        ended.err().contains("writing") && ended.err().contains("file/below"),
        "{}",
        ended.err()
    );
}
